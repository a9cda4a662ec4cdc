"""The junit reporter: `junit.xml` in the format that GitHub, GitLab and Jenkins read.

A suite is a file; a case is a scenario with an agent. Problems of the whole run are a case of their own, so
that no report is green if the exit status is not 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentest.domain.events import Event, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.figures import scenario_pass_hat_k
from agentest.domain.results import Figure, ModelUsage, RunResult, ScenarioResult, Status
from agentest.domain.root_causes import root_causes_of
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.text import DisplayOptions
from agentest.report.content import NOT_PASSED, RunReport, ScenarioReport, and_more, cause_badness
from agentest.report.markdown_text import cut
from agentest.report.transcripts import Transcripts, byte_size
from agentest.support.files import report_writer
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean, clean_rows, without_colours
from agentest.support.text import count

if TYPE_CHECKING:
    from agentest.report.registry import ReporterContext

_ELEMENTS = {Status.FAILED: "failure", Status.ERRORED: "error", Status.SKIPPED: "skipped"}
_COUNTED = {"failures": Status.FAILED, "errors": Status.ERRORED, "skipped": Status.SKIPPED}
_ENDINGS = (".sim.py", ".sim.yaml", ".sim.yml", ".evalset.json", ".test.json", ".py", ".json")
_NAME_CHARS = 1_000
_THE_RUN = "agentest"


def make_reporter(context: ReporterContext, path: Path) -> JUnitReporter:
    """Create the reporter of a run."""
    from agentest.report.github import repository_path

    return JUnitReporter(
        path, partial(repository_path, root=context.root, workspace=context.github_workspace)
    )


class JUnitReporter:
    """Writes the run as JUnit XML when it has ended.

    Args:
        path: the file, whose folder is created if it does not exist.
        locate: returns the path of a scenario file from the root of its repository; by default unchanged.
    """

    name = "junit"
    events = (RunStarted, ScenarioFinished, ScenarioAmended, RunFinished)

    def __init__(self, path: Path, locate: Callable[[str], str] = str) -> None:
        self._path = path
        self._locate = locate
        self._texts = CaseTexts()

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._texts.several_agents = len(event.agents) > 1
        elif isinstance(event, ScenarioFinished | ScenarioAmended):
            self._texts.add(event.result)
        elif isinstance(event, RunFinished):
            with report_writer(self._path) as file:
                pieces = document(event.result, self._texts, self._locate)
                file.writelines(piece.encode() for piece in pieces)


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    line: int
    status: Status
    seconds: float
    content: Callable[[], Iterable[str]]


def document(result: RunResult, texts: CaseTexts, locate: Callable[[str], str]) -> Iterator[str]:
    """Yield the report in pieces."""
    report = RunReport(result)
    files: dict[str, list[ScenarioReport]] = {}
    for scenario in report.scenarios:
        files.setdefault(scenario.result.file, []).append(scenario)
    suites = [(file, in_file, [_case(each, texts) for each in in_file]) for file, in_file in files.items()]
    if found := _finding_cases(result):
        suites.append(("", [], found))
    if cases_of_run := _run_cases(report):
        suites.insert(0, ("", [], cases_of_run))
    cases = [case for *_, cases in suites for case in cases]
    totals = {"name": _THE_RUN, **_counts(cases), "time": _time(result.duration_ms / 1000)}
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    timestamp = result.started_at[:19] or None
    yield open_tag("testsuites", {**totals, "timestamp": timestamp}) + "\n"
    names: Counter[tuple[str, str]] = Counter()
    for file, scenarios, cases in suites:
        path = locate(file) if file else None
        totals = {"name": file or _THE_RUN, **_counts(cases), "time": _time(sum(c.seconds for c in cases))}
        yield open_tag("testsuite", {**totals, "timestamp": timestamp, "file": path}) + "\n"
        yield _properties(suite_properties(result, [each.result for each in scenarios])) + "\n"
        for case in cases:
            classname = _classname(path) if path else _THE_RUN
            name = cut(case.name, _NAME_CHARS)
            while names[classname, name]:
                names[classname, name] += 1
                name = f"{name} ({names[classname, name]})"
            names[classname, name] += 1
            where = {"classname": classname, "name": name, "file": path, "line": case.line or None}
            yield element("testcase", {**where, "time": _time(case.seconds)}, case.content()) + "\n"
        yield "</testsuite>\n"
    yield "</testsuites>\n"


def _case(scenario: ScenarioReport, texts: CaseTexts) -> _Case:
    result = scenario.result
    name = f"{result.name} [{result.agent}]" if scenario.several_agents and result.agent else result.name
    # An unfinished scenario is skipped, because the run has one error for all of them.
    status = Status.SKIPPED if result.unfinished else scenario.status
    seconds = result.duration_ms / 1000
    return _Case(name or result.file, result.line, status, seconds, lambda: _content(scenario, status, texts))


def _content(scenario: ScenarioReport, status: Status, texts: CaseTexts) -> Iterator[str]:
    result = scenario.result
    yield _properties(case_properties(result))
    if status in _ELEMENTS:
        kind, why = message(scenario)
        kind = f"agentest.{status}" if status is Status.SKIPPED else kind
        yield element(_ELEMENTS[status], {"type": kind, "message": why}, [texts.failure(scenario)])
    output = texts.output(scenario)
    warnings = [*result.warnings, *(each.text for each in result.verdict_warnings if not each.note)]
    if warnings and status not in NOT_PASSED:  # otherwise they are in the text of the failure
        output = in_rows("\n".join(f"warning: {warning}" for warning in warnings))
    if output:
        yield element("system-out", {}, [output])


def _finding_cases(result: RunResult) -> list[_Case]:
    if not result.explored:
        return []
    from agentest.report.console.exploration import FindingCase, finding_cases

    def content(found: FindingCase) -> list[str]:
        if found.status not in _ELEMENTS:
            return []
        about = {"type": found.kind, "message": cut(found.message, _MESSAGE_CHARS)}
        return [element(_ELEMENTS[found.status], about, [in_rows(_shortened(found.text))])]

    cases = finding_cases(result.explored)
    return [_Case(each.name, 0, each.status, 0.0, partial(content, each)) for each in cases]


def _run_cases(report: RunReport) -> list[_Case]:
    result = report.result
    early = result.interrupted or any(s.verdict.status is Status.ERRORED for s in result.unfinished)
    problems = [report.early_end] if early else []
    problems += [stray.message for stray in result.unclaimed]
    not_passed = any(each.status in NOT_PASSED for each in report.scenarios)
    if not problems and not not_passed and report.status is not Status.PASSED:
        problems = [f"nothing ran{f': {result.stopped}' if result.stopped else ''}"]
    facts = [{"type": "agentest.run", "message": text.split("\n", 1)[0]} for text in problems]
    errors = [element("error", about, [in_rows(text)]) for about, text in zip(facts, problems, strict=True)]
    return [_Case("the run as a whole", 0, Status.ERRORED, 0.0, partial(list, [error])) for error in errors]


def _properties(properties: Iterable[Property]) -> str:
    inner = [element("property", {"name": name, "value": value}) for name, value in properties]
    return element("properties", {}, inner) if inner else ""


def _counts(cases: Sequence[_Case]) -> Mapping[str, int]:
    counts = Counter(case.status for case in cases)
    return {"tests": len(cases), **{name: counts[status] for name, status in _COUNTED.items()}}


def _classname(path: str) -> str:
    ending = next((ending for ending in _ENDINGS if path.lower().endswith(ending)), "")
    return ".".join(part for part in path.removesuffix(ending).split("/") if part not in ("", ".."))


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


MIB: Final = 1024 * 1024
TEXT_ROOM: Final = 6 * MIB
STORY_ROOM: Final = 4 * MIB  # with everything else, a report stays below the 30 MB that GitLab accepts
_CASE_ROOM: Final = 50_000
"""With its last transcript, a case stays below 100,000 characters, from which Jenkins drops the middle."""
_TEXT_CHARS: Final = 20_000
_MESSAGE_CHARS: Final = 1_000


class CaseTexts:
    """The texts of scenarios, stored when each one finishes because its conversations are dropped afterwards.

    Args:
        text_room: the maximum bytes of XML for console texts.
        story_room: the maximum bytes for transcripts of failed scenarios, and again for errored ones.
    """

    def __init__(self, text_room: int = TEXT_ROOM, story_room: int = STORY_ROOM) -> None:
        self.several_agents = False
        self._texts: dict[tuple[str, str, str], str] = {}
        self._room = text_room
        self._transcripts = Transcripts(story_room, _CASE_ROOM, size=lambda text: byte_size(in_rows(text)))

    def add(self, scenario: ScenarioResult) -> None:
        """Format and store the texts of a scenario that has just finished."""
        if scenario.verdict.status not in NOT_PASSED:
            return
        lines = scenario_lines(scenario, DisplayOptions(several_agents=self.several_agents))
        text = in_rows(_shortened("\n".join(line.plain for line in lines)))
        if byte_size(text) <= self._room:
            self._room -= byte_size(text)
            self._texts[ScenarioReport(scenario).key] = text
        self._transcripts.add(scenario)

    def failure(self, scenario: ScenarioReport) -> str:
        """Return the console's text about the scenario as XML; only its headline if there was no room."""
        return self._texts.get(scenario.key) or in_rows(scenario.headline)

    def output(self, scenario: ScenarioReport) -> str:
        """Return the transcripts of conversations that did not pass, and the omitted number, as XML."""
        parts = [f"{each.conversation_id}\n{each.text}\n" for each in self._transcripts.of(scenario)]
        if missing := self._transcripts.missing(scenario):
            parts.append(f"… {count(missing, 'more transcript')} left out: results.json has them")
        return in_rows("\n".join(parts))


def message(scenario: ScenarioReport) -> tuple[str, str]:
    """Return type and message: the scenario's headline, and the number of its other causes.

    The type is never a bare word, because GitLab's parser interprets `file` and `array` as kinds of content.
    """
    kind = scenario.reasons[0].kind if scenario.reasons else scenario.status
    text = cut(scenario.headline, _MESSAGE_CHARS) + and_more(scenario.causes[1:], "cause")
    return f"agentest.{kind}", text


def _shortened(text: str) -> str:
    left_out = len(text) - _TEXT_CHARS
    return text if left_out <= 0 else f"{text[:_TEXT_CHARS]}\n… {left_out:,} more characters left out"


Property = tuple[str, str]

_SHOWN_K = 10
_MOST_CAUSES = 20


def suite_properties(result: RunResult, scenarios: Sequence[ScenarioResult]) -> Iterator[Property]:
    """Yield the models of the run, and the cost and the failures of one file's scenarios."""
    yield "agentest.version", result.version
    if result.hidden:
        yield "hidden", result.hidden
    for role, model in result.models.items():
        yield f"model.{role}", model or "none"
    yield from _used(sum((used for s in scenarios for used in s.usage.values()), ModelUsage()))
    for number, cause in enumerate(root_causes_of(scenarios, result.joins)[:_MOST_CAUSES], start=1):
        yield f"root_cause.{number}", f"{cause.scenarios:,} × {cause.title} ({cause_badness(cause)})"


def case_properties(scenario: ScenarioResult) -> Iterator[Property]:
    """Yield a scenario's numbers."""
    totals = scenario.totals
    if scenario.agent:
        yield "agent", scenario.agent
    if scenario.tags:
        yield "tags", ", ".join(scenario.tags)
    if scenario.case:
        yield "eval_set", scenario.case.eval_set_id
        yield "eval_case", scenario.case.eval_id
    if totals.conversations:
        yield "conversations", str(totals.conversations)
        yield "conversations.passed", str(totals.passed)
        yield "turns", str(totals.turns)
        yield "tool_calls", str(totals.tool_calls)
    for each in scenario.verdict_warnings:
        yield f"{'note' if each.note else 'warning'}.{each.code}", each.message
    if scenario.pass_rate:
        yield from _figure("pass_rate", scenario.pass_rate)
    if attack := scenario.attack:
        yield "attack.strategy", attack.strategy
        rate = Figure(attack.successes / attack.attempts, attack.attempts, attack.low, attack.high)
        yield from _figure("attack.success_rate", rate)
    values = scenario_pass_hat_k(scenario.pass_rate, _SHOWN_K) if scenario.pass_rate else ()
    for k, value in enumerate(values, start=1):
        yield f"pass_hat_k.{k}", _number(value)
    if scenario.flaky:
        yield "flaky", "true"
    if scenario.decided_after is not None:
        yield "decided_after", str(scenario.decided_after)
    for name, average in scenario.averages.items():
        figure = scenario.intervals.get(name)
        yield from _figure(f"average.{name}", figure) if figure else [(f"average.{name}", _number(average))]
    yield from ((f"threshold.{name}", _number(least)) for name, least in scenario.thresholds.items())
    yield from _used(sum(scenario.usage.values(), ModelUsage()))
    if totals.agent_tokens.total_tokens:
        yield "agent_tokens", str(totals.agent_tokens.total_tokens)


def _figure(name: str, figure: Figure) -> Iterable[Property]:
    yield name, _number(figure.value)
    yield f"{name}.n", str(figure.n)
    if figure.low is not None and figure.high is not None:
        yield f"{name}.low", _number(figure.low)
        yield f"{name}.high", _number(figure.high)


def _used(used: ModelUsage) -> Iterable[Property]:
    if used.calls:
        yield "model_calls", str(used.calls)
        yield "model_tokens", str(used.tokens.total_tokens)
        yield "cost_usd", "unknown" if used.cost is None else f"{used.cost:.6f}"


def _number(value: float) -> str:
    return f"{round(value, 6):g}" if abs(value) < 1e5 else str(value)


_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# GitLab, and a plugin of Jenkins, interpret this in a case's output as the path of a file to publish.
_ATTACHMENT = re.compile(r"\[\[(?=ATTACHMENT\|)", re.IGNORECASE)
_IN_TEXT = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_IN_ATTRIBUTE = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})


def in_rows(text: str) -> str:
    """Return the text as the content of an element, without colors and with escaped control characters."""
    return _allowed(clean_rows(without_colours(text))).translate(_IN_TEXT)


def element(name: str, attributes: Mapping[str, object | None], content: Iterable[str] = ()) -> str:
    """Return an element. Attributes that are None are omitted; the content must be XML."""
    start = f"<{name}"
    for key, value in attributes.items():
        if value is not None:
            text = _allowed(clean(without_colours(str(value)))).translate(_IN_ATTRIBUTE)
            start += f' {key}="{text}"'
    inner = "".join(content)
    return f"{start}>{inner}</{name}>" if inner else f"{start}/>"


def open_tag(name: str, attributes: Mapping[str, object | None]) -> str:
    return element(name, attributes).removesuffix("/>") + ">"


def _allowed(text: str) -> str:
    escaped = _NO_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return _ATTACHMENT.sub(r"[\\[", escaped)
