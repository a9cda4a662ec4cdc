"""The other formats of evaluation sets, and their conversion to an EvalSet.

    legacy, with cases     [{name, data: [turn], initial_session?}]
    legacy, bare           [turn]: the whole file is one conversation
    ADK-TypeScript's data  {name, metrics?, thresholds?, rubric?, data: [{name, query, …}]}
    scenarios              {scenarios: [{starting_prompt, conversation_plan, user_persona?}]}

The conversion depends only on the file: it uses neither the clock nor random ids.

A rubric that is one text is split into properties that a judge can answer individually:

    The answer must: (1) name the order, (2) be polite. Deduct if: it is late, or too long.

Every numbered item is a property, together with the text before the first item. Every reason for a deduction
is a property that must not hold. No text is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import AliasChoices, Field, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from agentest.domain.metrics import ADK_METRICS
from agentest.plugins.adk.formats import eval_set
from agentest.plugins.adk.formats.problems import valid_keys_of
from agentest.support.text import did_you_mean, snake_case

DEFAULT_THRESHOLD = 0.8
THRESHOLDS = {
    "tool_trajectory_avg_score": 1.0,
    "safety_v1": 1.0,
    "reference_answer_match": 1.0,
    "response_evaluation_score": 4.0,  # on a scale from 1 to 5
}
"""Thresholds of metrics that a file names without one. Other metrics use `DEFAULT_THRESHOLD`."""

_ABOUT_CALLS = frozenset({"tool_trajectory_avg_score", "tool_trajectory_f1"})
_ABOUT_REFERENCES = frozenset({"response_match_score", "reference_answer_match"})
RUBRIC_PREFIX = "rubric_based_"
RUBRIC_METRIC = "rubric_based_final_response_quality_v1"
"""The metric that a file's rubric applies to if the file names no rubric metric."""
_NUMBER = re.compile(r"\((\d+)\)|^[ \t]*(\d+)[.)](?=\s)", re.MULTILINE)
_DEDUCT = re.compile(
    r"(?:^|(?<=[.;:!?\n]))[^\S\n]*(?:and\s+)?deduct(?:\s+(?:a\s+)?points?)?(?:\s+(?:if|for|when|where)\b)?\s*:?\s*",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"[.!?](?=\s+[A-Z])")
_EDGES = " \t\r\n,;:."
_AND = re.compile(r"(?:(?<![,;\s])[,;\s]+(?:and|or)[,;.\s]*|(?<![,;.\s])[,;.\s]+)$", re.IGNORECASE)
_OF_A_TEXT = re.compile(r"(part|deduction)-\d+")
"""Generated ids of parts, which the author of the rubric does not know."""


@dataclass(slots=True, frozen=True, config=eval_set.CLOSED)
class LegacyToolUse:
    """A call: `{tool_name, tool_input}`, or `{name, args}` from ADK-TS."""

    tool_name: Annotated[str, Field(validation_alias=AliasChoices("tool_name", "toolName", "name"))]
    tool_input: Annotated[
        dict[str, Any] | None, Field(validation_alias=AliasChoices("tool_input", "toolInput", "args"))
    ] = None
    mock_tool_output: Any = None  # ignored, as in ADK


@dataclass(slots=True, frozen=True, config=eval_set.CLOSED)
class LegacyAgentResponse:
    """A message of an agent before the final response."""

    author: str
    text: str


@dataclass(slots=True, frozen=True, config=eval_set.CLOSED)
class LegacyTurn:
    """A user's message and the expected reaction."""

    query: str
    reference: str | None = None
    expected_tool_use: tuple[LegacyToolUse, ...] | None = None
    expected_intermediate_agent_responses: tuple[LegacyAgentResponse, ...] | None = None
    response: Any = None  # a response that some agent gave once. Ignored, as in ADK.


@dataclass(slots=True, frozen=True, config=eval_set.OPEN)
class InitialSession:
    """The session in which a conversation starts. Every part is optional."""

    app_name: str = ""
    user_id: str = ""
    state: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None


@dataclass(slots=True, frozen=True, config=eval_set.OPEN)
class LegacyCase:
    """A conversation with a name."""

    name: str
    data: tuple[LegacyTurn, ...]
    initial_session: InitialSession | None = None


@dataclass(slots=True, frozen=True, config=eval_set.CLOSED)
class DataCase:
    """A conversation with one message."""

    name: str
    query: str
    expected_tool_calls: tuple[str, ...] | None = None
    expected_tool_args: dict[str, dict[str, Any]] | None = None
    reference_answer: str | None = None

    @field_validator("expected_tool_args")
    @classmethod
    def _of_expected_calls(
        cls, args: dict[str, dict[str, Any]] | None, info: ValidationInfo
    ) -> dict[str, dict[str, Any]] | None:
        calls = info.data.get("expected_tool_calls") or ()
        for name in args or ():
            if name not in calls:
                hint = did_you_mean(name, calls) if calls else "name it in `expected_tool_calls`"
                raise ValueError(f"`{name}` is not among the expected calls; {hint}")
        return args


@dataclass(slots=True, frozen=True, config=eval_set.CLOSED)
class DataSet:
    """ADK-TypeScript's format."""

    data: tuple[DataCase, ...]
    name: str | None = None
    description: str | None = None
    metrics: tuple[str, ...] | None = None
    thresholds: dict[str, float] | None = None
    rubric: str | None = None


@dataclass(slots=True, frozen=True, config=eval_set.CLOSED)
class ScenariosFile:
    """Conversations that simulated users lead."""

    scenarios: tuple[eval_set.ConversationScenario, ...]


_MISSPELT = 0.7  # how similar an unknown key must be to a known one to count as misspelled


def without_extras(entries: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Remove unknown keys from legacy cases or turns; also return those keys, without duplicates.

    google-adk ignores unknown keys. A key that looks misspelled is not removed, so that it raises an error.
    """
    extras: dict[str, None] = {}

    def cleaned(node: Any, kind: str) -> Any:
        if isinstance(node, list):
            return [cleaned(item, kind) for item in node]
        valid = valid_keys_of(LegacyCase).get(kind)
        if valid is None or kind == "initial_session" or not isinstance(node, Mapping):
            return node  # a session, and the values of arguments, may have any keys
        known = {}
        for key, value in node.items():
            name = snake_case(str(key))
            if name in valid or get_close_matches(name, valid, n=1, cutoff=_MISSPELT):
                known[key] = cleaned(value, name)
            else:
                extras[str(key)] = None
        return known

    kept = [cleaned(e, "" if isinstance(e, Mapping) and "data" in e else "data") for e in entries]
    return kept, tuple(extras)


def from_legacy_cases(cases: Sequence[LegacyCase], name: str) -> eval_set.EvalSet:
    return eval_set.EvalSet(name, tuple(_legacy_case(case) for case in cases), name)


def from_legacy_turns(turns: Sequence[LegacyTurn], name: str) -> eval_set.EvalSet:
    """Return the whole file as one case, as in ADK."""
    return from_legacy_cases([LegacyCase(name, tuple(turns))] if turns else (), name)


def from_data(data_set: DataSet, name: str) -> eval_set.EvalSet:
    cases = tuple(_data_case(case) for case in data_set.data)
    return eval_set.EvalSet(data_set.name or name, cases, data_set.name or name, data_set.description)


def from_scenarios(document: ScenariosFile, name: str) -> eval_set.EvalSet:
    cases = (
        eval_set.EvalCase(f"scenario-{number}", conversation_scenario=scenario)
        for number, scenario in enumerate(document.scenarios, 1)
    )
    return eval_set.EvalSet(name, tuple(cases), name)


def session_input(session: InitialSession | None) -> eval_set.SessionInput | None:
    """Return the session of a case; None if no part of it is given, as in ADK."""
    if session is None or session == InitialSession():
        return None
    return eval_set.SessionInput(session.app_name, session.user_id, session.state, session.session_id)


def data_criteria(data_set: DataSet) -> Mapping[str, Any] | None:
    """Return the file's criteria as the content of a `test_config.json`; None if it has none.

    A reference answer need not be repeated word for word: unless the file names `response_match_score`, the
    response must contain it or mean the same (`reference_answer_match`). Data that no metric in `metrics`
    uses is scored for information.
    """
    if data_set.metrics is not None:
        deciding = list(data_set.metrics)
    else:
        named = list(data_set.thresholds or ())
        deciding = [*named, *_metrics_with_unused_data(data_set, named)]
    criteria: dict[str, Any] = {}
    for metric in deciding:
        keys = _criterion(metric, data_set)
        criteria[metric] = keys if "rubrics" in keys else keys.get("threshold")
    for metric in unlisted_metrics(data_set):
        criteria[metric] = {"information": True, **_criterion(metric, data_set)}
    return {"criteria": criteria} if criteria or data_set.metrics is not None else None


def unlisted_metrics(data_set: DataSet) -> tuple[str, ...]:
    """Return the metrics that the file has data or a threshold for, but does not list in `metrics`."""
    if data_set.metrics is None:
        return ()
    wanted = [*(data_set.thresholds or ()), *_metrics_with_unused_data(data_set, data_set.metrics)]
    return tuple(metric for metric in dict.fromkeys(wanted) if metric not in data_set.metrics)


def _metrics_with_unused_data(data_set: DataSet, named: Sequence[str]) -> list[str]:
    calls = any(case.expected_tool_calls is not None for case in data_set.data)
    # Without `metrics`, the thresholds name all metrics of tool calls.
    calls = calls and (data_set.metrics is not None or not data_set.thresholds)
    references = any(case.reference_answer for case in data_set.data)
    rubric = data_set.rubric and not any(metric.startswith(RUBRIC_PREFIX) for metric in named)
    return [
        *["tool_trajectory_avg_score"] * (calls and _ABOUT_CALLS.isdisjoint(named)),
        *[RUBRIC_METRIC] * bool(rubric),
        *["reference_answer_match"] * (references and _ABOUT_REFERENCES.isdisjoint(named)),
    ]


def _criterion(metric: str, data_set: DataSet) -> dict[str, Any]:
    never_fails = metric in ADK_METRICS and ADK_METRICS[metric].thresholds is None
    default = None if never_fails else THRESHOLDS.get(metric, DEFAULT_THRESHOLD)
    threshold = (data_set.thresholds or {}).get(metric, default)
    keys: dict[str, Any] = {} if threshold is None else {"threshold": threshold}
    if data_set.rubric and metric.startswith(RUBRIC_PREFIX):
        keys["rubrics"] = rubrics_of(data_set.rubric)
    return keys


def _legacy_case(case: LegacyCase) -> eval_set.EvalCase:
    conversation = []
    for turn in case.data:
        uses, responses = turn.expected_tool_use, turn.expected_intermediate_agent_responses
        expected = {
            "tool_uses": [{"name": use.tool_name, "args": use.tool_input} for use in uses or ()],
            "intermediate_responses": [(each.author, [{"text": each.text}]) for each in responses or ()],
        }
        expects = uses is not None or responses is not None
        conversation.append((turn.query, turn.reference, expected if expects else None))
    return _case(case.name, conversation, session_input(case.initial_session))


def _data_case(case: DataCase) -> eval_set.EvalCase:
    calls, args = case.expected_tool_calls, case.expected_tool_args or {}
    uses = None if calls is None else {"tool_uses": [{"name": n, "args": args.get(n)} for n in calls]}
    made = _case(case.name, [(case.query, case.reference_answer, uses)])
    loose = set(calls or ()) - args.keys()
    return replace(made, agentest=eval_set.AgentestKeys(any_args_where_absent=True)) if loose else made


def _case(
    name: str,
    turns: Sequence[tuple[str, str | None, dict[str, Any] | None]],
    session: eval_set.SessionInput | None = None,
) -> eval_set.EvalCase:
    conversation = [
        {
            "invocation_id": f"turn-{number}",
            "user_content": eval_set.content(query, "user"),
            # ADK reads an absent reference as "": treat both as nothing to compare with.
            "final_response": eval_set.content(reference, "model") if reference else None,
            "intermediate_data": intermediate,
        }
        for number, (query, reference, intermediate) in enumerate(turns, 1)
    ]
    # Convert the whole document at once: this halves the time for ten thousand cases.
    return eval_set.EVAL_CASE.validate_python(
        {"eval_id": name, "conversation": conversation, "session_input": session}
    )


def split_rubric(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the properties that must hold and those that must not, in the order of the text.

    A text without numbered items and deductions is one property.
    """
    before, deductions, after = _without_deductions(text)
    numbered = _numbered_items(before)
    if not deductions and len(numbered) < 2:
        return (text.strip(),), ()
    rest = [part for part in (after.strip(),) if part.strip(_EDGES)]
    return (*numbered, *rest), tuple(deductions)


def rubrics_of(text: str) -> list[dict[str, Any]]:
    """Convert a text to rubrics of a criterion. Their ids number the parts."""
    wanted, unwanted = split_rubric(text)
    if len(wanted) == 1 and not unwanted:
        return [_rubric("rubric", wanted[0])]
    return [
        *(_rubric(f"part-{n}", part) for n, part in enumerate(wanted, 1)),
        *(_rubric(f"deduction-{n}", f"This must not happen: {p}") for n, p in enumerate(unwanted, 1)),
    ]


def is_part(rubric_id: str) -> bool:
    """Return True if the id may be generated by `rubrics_of`, and so means nothing to a reader."""
    return _OF_A_TEXT.fullmatch(rubric_id) is not None


def _rubric(rubric_id: str, text: str) -> dict[str, Any]:
    return {"rubric_id": rubric_id, "rubric_content": {"text_property": text}}


def _without_deductions(text: str) -> tuple[str, list[str], str]:
    match = _DEDUCT.search(text)
    if match is None:
        return text, [], ""
    rest = text[match.end() :]
    end = _SENTENCE_END.search(rest)
    sentence, after = (rest[: end.end()], rest[end.end() :]) if end else (rest, "")
    deductions = list(_list_items(sentence))
    return (text[: match.start()], deductions, after) if deductions else (text, [], "")


def _list_items(sentence: str) -> Iterator[str]:
    separator = ";" if ";" in sentence else ","
    items, depth = [""], 0
    for character in sentence:
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        if character == separator and depth == 0:
            items.append("")
        else:
            items[-1] += character
    for item in items:
        if part := re.sub(r"^(?:or|and)\s+", "", item.strip(_EDGES), flags=re.IGNORECASE):
            yield part


def _numbered_items(text: str) -> list[str]:
    marks: list[re.Match[str]] = []
    for found in _NUMBER.finditer(text):
        if int(found[1] or found[2]) == len(marks) + 1:
            marks.append(found)
    if len(marks) < 2:
        return [text.strip()] if text.strip(_EDGES) else []
    lead = text[: marks[0].start()].strip().rstrip(":").strip()
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    parts = (_AND.sub("", text[mark.end() : end]).strip() for mark, end in zip(marks, ends, strict=True))
    return [f"{lead} {part}".strip() for part in parts if part]
