"""Find the root causes of a run: failures of all scenarios, grouped by their cause.

Failures that need no judge are grouped by kind and by a pattern: their text without values that vary between
conversations. Groups from judges are joined by label, and as a model joined them. Root causes never change a
verdict.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from hashlib import sha1

from agentest.domain.metrics import GOAL
from agentest.domain.reasons import conversation_reasons
from agentest.domain.results import (
    AlignedRow,
    CauseExample,
    CauseJoin,
    CauseKind,
    CausePlace,
    ConversationResult,
    Reason,
    ReasonKind,
    RootCause,
    RowStatus,
    RunResult,
    ScenarioCause,
    ScenarioResult,
    Severity,
    Status,
    TrajectoryResult,
    UniqueError,
)
from agentest.domain.tool_visibility import ToolOutcome
from agentest.domain.transcript import NO_RECORDED_ANSWER, Conversation
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, cut_middle, shortened

_TITLE_CHARS = 160
_TEXT_CHARS = 300
_READ_CHARS = 600
_MOST_WORDS = 25  # the length of an error's pattern; a message begins with the cause
_MOST_PLACES = 40
_MOST_ARGUMENTS = 3
_QUOTED = re.compile(r"""(?<!\w)'(?:[^'\\]|\\.)*'(?!\w)|"(?:[^"\\]|\\.)*\"""")
_URL = re.compile(r"(?<!\w)\w+://\S+")
_NUMBERED = re.compile(r"(?<![\w-])[\w-]*\d[\w-]*(?:[.:]\d[\w-]*)*")
_PATH = re.compile(r"(?<![\w.~-])(?:[\w.~-]*/){2,}[\w.~-]*")
_ANSWERED = re.compile(r"(?:[A-Z]+ )?\w+://\S+ answered (\d{3}|[A-Z_]+)(?: \(.*?\))?: (.*)", re.S)
_MODEL = re.compile(r"(?:^|: |\()(model \S+?)(?: is down)?: (?:no answer within [^:]+: )?(.*)", re.S)
_MODEL_ADVICE = re.compile(r" \(no answer for |; (?:raise `|not called again|check its address)")
_UNSCORED = re.compile(r"^.*? could not be scored(?: \d+ of .*? times?)?(?:: | (?=\())?")
_EITHER = "Either add a mock"
_SENT = ". The request had this body: "
_JSON = re.compile(r""": '?[{\[]["'{\[]""")
_MESSAGE_KEYS = ("error", "message", "detail", "errors", "msg", "title")
_QUOTED_MESSAGE = re.compile(r"""\W(?:message|detail|error|msg)['"]: ?"((?:[^"\\]|\\.)+)""")
_TITLE_TAG = re.compile(r"<title>([^<]*)</title>", re.I)
_CLAUSE_END = re.compile(r"(?:(?<=.{20})[.;]|(?<=.{60}):) ")
_REPEATED = re.compile(r"…(?:[ ,;/-]*…)+")
_REFUSED_SCENARIO = re.compile(
    r"""^\S.*?\.\w+:\d+: (?:scenario ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\S+)"""
    r"""(?:, (?:[^:\n]+:\d+|(?:[^:\n]+, )?row \d+|all \d+ rows))?: )?"""
)
"""The location and the name of a refused scenario; the cause follows them."""
_NON_CAUSES = (ReasonKind.INTERRUPTED, ReasonKind.ERROR)
"""Reasons without a cause here: an early end, and judged groups, which are read from the scenario."""
_SUMMARIES = (CauseKind.THRESHOLD, CauseKind.PASS_RATE)
"""Kinds that only summarize other failures. They count as causes if there are no others."""


# --- causes of one scenario


@dataclass(slots=True)
class _Finding:
    """One fault of a conversation. Its texts are shortened only when it is shown."""

    kind: CauseKind
    title: str
    pattern: str
    text: str
    turn_index: int | None = None


@dataclass(slots=True)
class _FindingGroup:
    first: _Finding
    reason: Reason
    agree: bool = True
    conversations: set[str] = field(default_factory=set)

    def cause(self) -> ScenarioCause:
        finding, reason = self.first, self.reason
        return ScenarioCause(
            kind=finding.kind,
            title=_title(finding.title if self.agree else finding.pattern),
            pattern=finding.pattern,
            conversations=len(self.conversations),
            conversation_id=reason.conversation_id,
            turn_index=reason.turn_index if finding.turn_index is None else finding.turn_index,
            text=_text(finding.text),
        )


def scenario_causes(scenario: ScenarioResult) -> tuple[ScenarioCause, ...]:
    """Return the causes of one scenario that need no judge, in the order of its reasons."""
    return scenario.causes or find_scenario_causes(scenario.verdict.reasons, scenario.conversations)


def find_scenario_causes(
    reasons: Iterable[Reason], conversations: Sequence[ConversationResult] = ()
) -> tuple[ScenarioCause, ...]:
    """Return a verdict's causes that need no judge; tools and turns come from `conversations`."""
    reasons = tuple(reasons)
    relevant = [reason for reason in reasons if reason.kind not in _NON_CAUSES]
    if not relevant:
        return ()
    known = {  # of a slim conversation, only its reasons have the id
        (each.reasons or (each.conversation,))[0].conversation_id: each.conversation for each in conversations
    }
    ended = {r.conversation_id for r in relevant if r.kind is ReasonKind.CONVERSATION and not _is_goal(r)}
    explained: set[str | None] = set()
    if any(map(_is_goal, relevant)):
        explained = {r.conversation_id for r in relevant if r.status is Status.FAILED and not _is_goal(r)}
        explained |= {_conversation_of(id) for r in reasons if r.group for id in r.group.occurrences}
    causes: dict[tuple[CauseKind, str], _FindingGroup] = {}
    for reason in relevant:
        id = reason.conversation_id
        if id in explained and _is_goal(reason):
            continue
        for finding in _findings(reason, known.get(id or ""), ended=id in ended):
            cause = causes.get((finding.kind, finding.pattern))
            if cause is None:
                cause = causes[finding.kind, finding.pattern] = _FindingGroup(finding, reason)
            cause.agree = cause.agree and cause.first.title == finding.title
            if id is not None:
                cause.conversations.add(id)
    explaining = any(kind not in (*_SUMMARIES, CauseKind.ERRORED) for kind, _ in causes)
    return tuple(
        group.cause() for group in causes.values() if not (explaining and group.first.kind in _SUMMARIES)
    )


def cause_patterns(result: ConversationResult) -> frozenset[tuple[CauseKind, str]]:
    """Return kind and pattern of each cause that the conversation's reasons name."""
    reasons, conversation = conversation_reasons(result), result.conversation
    findings = (each for reason in reasons for each in _findings(reason, conversation, ended=False))
    return frozenset((each.kind, each.pattern) for each in findings)


def _conversation_of(failure_id: str) -> str:
    return failure_id.rpartition("-")[0]


def _is_goal(reason: Reason) -> bool:
    return reason.status is Status.FAILED and reason.metric == GOAL and reason.conversation_id is not None


def _findings(reason: Reason, conversation: Conversation | None, *, ended: bool) -> Iterator[_Finding]:
    if reason.status is not Status.FAILED:
        yield _errored_finding(reason)
    elif _is_goal(reason):
        yield _Finding(CauseKind.GOAL, "goal not reached", "goal not reached", reason.message)
    elif reason.trajectory is not None:
        findings = list(_call_findings(reason.trajectory, conversation))
        if not ended:
            findings += _missing_call_findings(reason.trajectory)
            # A trajectory may have requirements that are not about calls.
            findings = findings or [_finding_from_text(CauseKind.TRAJECTORY, reason.trajectory.summary)]
        yield from findings
    elif reason.check is not None:
        if not (ended and reason.turn_index is None):
            text = f"{reason.check.check}: {reason.check.summary}"
            yield _finding_from_text(CauseKind.CHECK, text, f"{reason.check.check}: {reason.check.reason}")
    elif reason.criterion is not None:
        title = _title(f"criterion violated: {reason.criterion.text}")
        yield _Finding(CauseKind.CRITERION, title, title, reason.message)
    elif reason.kind is ReasonKind.CONVERSATION:
        calls = conversation.unfinished.tool_calls if conversation and conversation.unfinished else ()
        unmocked = next((call.name for call in calls if call.outcome is ToolOutcome.UNMOCKED), None)
        if unmocked is None:
            yield _error_finding(CauseKind.AGENT_ERROR, _without_id(reason), reason.message)
        else:
            title = f"{unmocked} has no mock"
            yield _Finding(CauseKind.UNMOCKED_TOOL, title, title, what_to_do(reason.message))
    elif reason.kind in (ReasonKind.THRESHOLD, ReasonKind.PASS_RATE):
        kind = CauseKind(reason.kind.value)
        pattern = f"{reason.metric} {'above its limit' if reason.is_of_limit else 'below its threshold'}"
        title = pattern if reason.expected is None else f"{pattern} of {reason.expected:g}"
        yield _Finding(kind, title, pattern, reason.message)
    else:
        yield _finding_from_text(CauseKind.CHECK, reason.message)


def _error_finding(kind: CauseKind, text: str, message: str) -> _Finding:
    """Return the finding of an error, whose details do not repeat its title."""
    title = error_title(text)
    return _finding_from_text(kind, title, what_to_do(message).removeprefix(title).lstrip(".;: "))


def error_title(text: str, model: str = "") -> str:
    """Return an error in short: without addresses and advice, and of a JSON or HTML body only its message."""
    text, who = text.partition(_SENT)[0], model or "the agent"
    if answered := _ANSWERED.match(text):
        return f"{who} answered {answered[1]}: {_message_of(answered[2])}".removesuffix(": ")
    address = "its address" if model else who
    text = _URL.sub(lambda url: address + url[0][len(url[0].rstrip(".,:;)")) :], text)
    return f"{model}: {text.removeprefix(f'{address}: ')}" if model else _first_clause(text)


def _first_clause(text: str) -> str:
    """Return the first clause of a text that is long or ends with JSON; other texts whole."""
    before = _JSON.split(text, maxsplit=1)[0]
    is_short = before == text and len(text) <= _TITLE_CHARS
    clauses = (before[: each.start()] for each in _CLAUSE_END.finditer(before))
    whole = (each for each in clauses if each.count("(") == each.count(")"))
    return text if is_short else next(whole, before)


def what_to_do(message: str) -> str:
    """Return what an error's message says beyond its title: the address and advice, or what to change."""
    problem, *sent = message.partition(_SENT)
    answered = _ANSWERED.match(problem)
    if answered and _is_short(answered[2]) and _message_of(answered[2]):
        return "".join((problem[: answered.start(2)].rstrip(": "), *sent))
    before, _, after = message.partition(_EITHER)
    return f"{_EITHER}{after}" if after else before


def _is_short(body: str) -> bool:
    """True if a title has all of the body that a reader needs."""
    return len(body) < _TITLE_CHARS // 2 or body[:1] in ("{", "<", "[")


def _message_of(body: str) -> str:
    """Return the message in a body: its text, or "" for JSON without a message."""
    value = json_or(body)
    while isinstance(value, Mapping | list):
        parts = value if isinstance(value, list) else map(value.get, _MESSAGE_KEYS)
        value = next(filter(None, parts), None)
    if isinstance(value, str):
        return value
    found = _TITLE_TAG.search(body) or _QUOTED_MESSAGE.search(body)
    return found[1].strip().replace('\\"', '"') if found else "" if body[:1] in ("{", "[") else body


def _errored_finding(reason: Reason) -> _Finding:
    text = _without_id(reason)
    if reason.kind is not ReasonKind.FILE and not _ANSWERED.match(text) and (model := _MODEL.search(text)):
        # One outage prevents the judging of every metric, goal and criterion.
        title = error_title(_MODEL_ADVICE.split(model[2])[0], model[1])
        return _finding_from_text(CauseKind.ERRORED, title, text[model.start(1) :])
    if reason.trajectory is not None and reason.trajectory.error:
        text = f"trajectory: {reason.trajectory.error}"
    elif reason.check is not None and reason.check.error:
        text = f"{reason.check.check}: {reason.check.error}"
    elif reason.criterion is not None:
        title = f"criterion could not be judged: {reason.criterion.text}"
        return _Finding(CauseKind.ERRORED, title, "criteria could not be judged", reason.message)
    elif reason.metric is not None and "could not be scored" in text:
        # The same problem prevents the scoring of every metric, so the metric's name does not matter.
        why = f"could not be scored: {_UNSCORED.sub('', text).strip('()')}"
        return _Finding(CauseKind.ERRORED, f"{reason.metric} {why}", template(why), reason.message)
    elif NO_RECORDED_ANSWER in text:
        text = _replay_miss(text)
    elif reason.kind is ReasonKind.FILE:
        # A traceback ends with the error; examples are indented.
        last = next(row for row in reversed(text.strip().split("\n")) if row[:1] != " ")
        text = _REFUSED_SCENARIO.sub("", last)
        title = _first_clause(text)
        before, _, rest = reason.message.partition(text)
        details = reason.message if before or title != text else rest.rpartition("\n")[2]
        return _finding_from_text(CauseKind.ERRORED, title, details)
    return _error_finding(CauseKind.ERRORED, text, reason.message)


def _replay_miss(text: str) -> str:
    _, _, why = text.partition(f"{NO_RECORDED_ANSWER}: ")
    path, differs, _ = why.partition(" is ")
    return f"{NO_RECORDED_ANSWER}: {f'{path} differs' if differs and ' ' not in path else why}"


def _call_findings(trajectory: TrajectoryResult, conversation: Conversation | None) -> Iterator[_Finding]:
    reported, calls = set(), conversation.tool_calls if conversation else ()
    for row in trajectory.alignment:
        if row.status is RowStatus.DIFFERENT:
            reported.add(row.tool)
            finding = _different_call(row)
            if row.call is not None and row.call < len(calls):
                finding.turn_index = calls[row.call].turn_index
            yield finding
    turns = {call.name: call.turn_index for call in reversed(calls)}
    for name in dict.fromkeys(trajectory.forbidden_calls):
        title = f"{name} called although it is forbidden"
        yield replace(_finding_with_title(title), turn_index=turns.get(name))
    for words in trajectory.broken:
        yield _finding_from_text(CauseKind.TRAJECTORY, words)
    for name in dict.fromkeys(trajectory.extra_calls):
        if name not in reported:
            title = f"{name} called although it is not expected"
            yield replace(_finding_with_title(title), turn_index=turns.get(name))


def _missing_call_findings(trajectory: TrajectoryResult) -> Iterator[_Finding]:
    rows = trajectory.alignment
    for row in rows:
        if row.status is RowStatus.MISSING and row.expected:
            title = f"{row.expected} not called"
            pattern = f"{row.tool or template(row.expected)} not called"
            yield _Finding(CauseKind.TRAJECTORY, title, pattern, title)
    # Older files do not record whether the tool was called with other arguments.
    for name in dict.fromkeys(trajectory.missing_calls if not rows else ()):
        yield _finding_with_title(f"{name} not called as expected")
    for issue in trajectory.ordering_issues:
        yield _finding_from_text(CauseKind.TRAJECTORY, f"wrong order: {issue}")


def _different_call(row: AlignedRow) -> _Finding:
    tool, differences = row.tool or template(row.expected or ""), row.differences
    text = f"{tool}: {row.difference or 'not as expected'}"
    if not differences:
        return _finding_from_text(CauseKind.TRAJECTORY, text)
    texts = [f"{each.path} {each.words}" for each in differences[:_MOST_ARGUMENTS]]
    if len(differences) > _MOST_ARGUMENTS:
        texts.append(count(len(differences) - _MOST_ARGUMENTS, "more argument"))
    pattern = f"{tool}: {', '.join(f'{each.path} {each.pattern}' for each in differences)}"
    return _Finding(CauseKind.TRAJECTORY, f"{tool}: {'; '.join(texts)}", pattern, text)


def _finding_with_title(title: str) -> _Finding:
    return _Finding(CauseKind.TRAJECTORY, title, title, title)


def _finding_from_text(kind: CauseKind, text: str, details: str = "") -> _Finding:
    return _Finding(kind, text, template(text), details or text)


def _without_id(reason: Reason) -> str:
    id = reason.conversation_id
    return reason.message.replace(id, "…") if id else reason.message


def _title(text: str) -> str:
    return cut_middle(shortened(text.strip().partition("\n")[0], _READ_CHARS), _TITLE_CHARS)


def _text(text: str) -> str:
    return shortened(text.strip().partition("\n")[0], _TEXT_CHARS)


def template(text: str) -> str:
    """Return a message's first line with "…" for numbers, ids, quotes, URLs, paths, not an HTTP status."""
    # Read more characters than are shown, so that the cut does not change the pattern.
    words = _QUOTED.sub("…", text[:_READ_CHARS].strip().partition("\n")[0]).split()[:_MOST_WORDS]
    pattern = [
        word if word.isalpha() or before in ("status", "answered") else _without_values(word)
        for before, word in zip(["", *words], words, strict=False)
    ]
    return _REPEATED.sub("…", " ".join(pattern))


@lru_cache(maxsize=1024)
def _without_values(word: str) -> str:
    if "://" in word:
        word = _URL.sub("…", word)
    if "/" in word:
        word = _PATH.sub("…", word)
    return _NUMBERED.sub("…", word)


# --- causes of the whole run


@dataclass(slots=True)
class JudgedCause:
    """The judged groups of all scenarios that share a label."""

    label: str  # the label as the first group spells it
    labels: tuple[str, ...]
    severity: Severity
    explanation: str
    groups: list[tuple[ScenarioResult, UniqueError]] = field(default_factory=list)

    @property
    def scenarios(self) -> set[tuple[str, str]]:
        """Name and agent of each affected scenario."""
        return {(scenario.name, scenario.agent) for scenario, _ in self.groups}


def normalized_label(label: str) -> str:
    """Normalize a label for comparisons: ignore case and punctuation."""
    return " ".join(re.findall(r"\w+", label.casefold())) or label


def judged_causes(scenarios: Iterable[ScenarioResult], joins: Iterable[CauseJoin] = ()) -> list[JudgedCause]:
    """Combine the judged groups of all scenarios by labels and joins, from worst to mildest."""
    joined = _joined_labels(joins)
    causes: dict[str, JudgedCause] = {}
    for scenario in scenarios:
        for group in scenario.errors:
            label = normalized_label(group.label)
            join = joined.get(label)
            cause = causes.setdefault(
                join.labels[0] if join else label,
                JudgedCause(
                    label=join.title if join else group.label,
                    labels=join.labels if join else (label,),
                    severity=group.severity,
                    explanation=group.explanation,
                ),
            )
            cause.severity = max(cause.severity, group.severity)
            cause.groups.append((scenario, group))
    return sorted(causes.values(), key=lambda cause: (-cause.severity, -len(cause.groups)))


def _joined_labels(joins: Iterable[CauseJoin]) -> dict[str, CauseJoin]:
    by_label: dict[str, CauseJoin] = {}
    for join in joins:
        known = list(dict.fromkeys(by_label[label] for label in join.labels if label in by_label))
        labels = dict.fromkeys(label for each in (*known, join) for label in each.labels)
        merged = CauseJoin(title=known[0].title if known else join.title, labels=tuple(labels))
        by_label |= dict.fromkeys(labels, merged)
    return by_label


def root_causes(result: RunResult) -> tuple[RootCause, ...]:
    """Return the root causes of a run: the worst first, then those that affect the most scenarios."""
    return root_causes_of(result.scenarios, result.joins)


def root_causes_of(
    scenarios: Iterable[ScenarioResult], joins: Iterable[CauseJoin] = ()
) -> tuple[RootCause, ...]:
    """Return the root causes of the scenarios, with a model's `joins`, ordered like those of a run."""
    troubled = [each for each in scenarios if each.errors or each.causes or each.verdict.reasons]
    causes = [*_deterministic(troubled), *map(_judged_root_cause, judged_causes(troubled, joins))]

    def badness(cause: RootCause) -> tuple[int, bool, int, int, str]:
        errored = cause.kind is CauseKind.ERRORED
        return -cause.severity, errored, -cause.scenarios, -cause.conversations, cause.title

    return tuple(sorted(causes, key=badness))


def _deterministic(scenarios: Iterable[ScenarioResult]) -> Iterator[RootCause]:
    by_pattern: dict[tuple[CauseKind, str], list[tuple[ScenarioResult, ScenarioCause]]] = {}
    for scenario in scenarios:
        reasons = scenario.verdict.reasons
        for cause in scenario_causes(scenario):
            is_summary = cause.kind in _SUMMARIES
            if not (is_summary and any(reason.kind is ReasonKind.ERROR for reason in reasons)):
                by_pattern.setdefault((cause.kind, cause.pattern), []).append((scenario, cause))
    for (kind, pattern), causes in by_pattern.items():
        titles = {cause.title for _, cause in causes}
        scenario, first = causes[0]
        places = tuple(
            CausePlace(
                scenario=each.name,
                agent=each.agent,
                conversations=cause.conversations,
                conversation_id=cause.conversation_id,
                turn_index=cause.turn_index,
            )
            for each, cause in causes
        )
        yield _root_cause(
            kind=kind,
            key=pattern,
            title=first.title if len(titles) == 1 else _title(pattern),
            severity=Severity.HIGH,
            places=places,
            text=first.text,
        )


def _judged_root_cause(cause: JudgedCause) -> RootCause:
    return replace(
        _root_cause(
            kind=CauseKind.JUDGED,
            key=min(cause.labels),
            title=_title(cause.label),
            severity=cause.severity,
            places=tuple(_judged_places(cause.groups)),
            text=_text(cause.explanation),
        ),
        labels=cause.labels if len(cause.labels) > 1 else (),
    )


def _judged_places(groups: Iterable[tuple[ScenarioResult, UniqueError]]) -> Iterator[CausePlace]:
    by_scenario: dict[tuple[str, str], list[UniqueError]] = {}
    for scenario, group in groups:
        by_scenario.setdefault((scenario.name, scenario.agent), []).append(group)
    for (name, agent), of_scenario in by_scenario.items():
        ids = dict.fromkeys(_conversation_of(id) for group in of_scenario for id in group.occurrences)
        turns = {each.conversation_id: each.turn_index for group in of_scenario for each in group.examples}
        first = next(iter(turns), next(iter(ids), None))
        yield CausePlace(
            scenario=name,
            agent=agent,
            conversations=len(ids),
            conversation_id=first,
            turn_index=turns.get(first) if first else None,
        )


def _root_cause(
    *, kind: CauseKind, key: str, title: str, severity: Severity, places: Sequence[CausePlace], text: str
) -> RootCause:
    first = places[0]
    return RootCause(
        id=root_cause_id(kind, key),
        title=title,
        kind=kind,
        severity=severity,
        scenarios=len({place.scenario for place in places}),
        conversations=sum(place.conversations for place in places),
        agents=tuple(dict.fromkeys(place.agent for place in places if place.agent)),
        example=CauseExample(
            scenario=first.scenario,
            agent=first.agent,
            conversation_id=first.conversation_id,
            turn_index=first.turn_index,
            text=text,
        ),
        places=tuple(places[:_MOST_PLACES]),
    )


def root_cause_id(kind: str, key: str) -> str:
    """Return the id of the cause with this pattern, or of judged groups with this normalized label."""
    digest = sha1(f"{kind} {key}".encode(errors="replace"), usedforsecurity=False)
    return f"rc-{digest.hexdigest()[:8]}"
