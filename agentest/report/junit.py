"""The junit reporter: `junit.xml` in the format that GitHub, GitLab and Jenkins read.

A suite is a file; a case is a scenario with an agent. Problems of the whole run are a case of their own, so
that no report is green if the exit status is not 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from agentest.domain.events import Event, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.results import Figure, ModelUsage, Reason, RunResult, ScenarioResult, Status
from agentest.domain.root_causes import root_causes_of
from agentest.domain.verdict import run_status
from agentest.report import github_selection as select
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.text import DisplayOptions
from agentest.report.content import cause_badness, ended_early_text
from agentest.report.markdown import cut
from agentest.report.transcripts import Transcripts, byte_size, scenario_key
from agentest.support.files import report_writer
from agentest.support.terminal import clean, clean_rows, without_colours
from agentest.support.text import count

_ELEMENTS = {Status.FAILED: "failure", Status.ERRORED: "error", Status.SKIPPED: "skipped"}
_COUNTED = {"failures": Status.FAILED, "errors": Status.ERRORED, "skipped": Status.SKIPPED}
_ENDINGS = (".sim.py", ".evalset.json", ".test.json", ".py", ".json")
_NAME_CHARS = 1_000
_THE_RUN = "agentest"


class JUnitReporter:
    """Writes the run as JUnit XML when it has ended.

    Args:
        locate: returns the path of a file from the root of its repository.
    """

    name = "junit"
    repeats = True

    def __init__(self, path: Path, locate: Callable[[str], str]) -> None:
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
    """One `testcase`, formatted on demand."""

    name: str
    line: int
    status: Status
    seconds: float
    content: Callable[[], Iterable[str]]


@dataclass(slots=True)
class _Names:
    """Makes the names of cases unique in their class, because GitLab drops the second of two equal names."""

    taken: Counter[tuple[str, str]] = field(default_factory=Counter)

    def of(self, classname: str, name: str) -> str:
        self.taken[classname, name] += 1
        number = self.taken[classname, name]
        return name if number == 1 else self.of(classname, f"{name} ({number})")


def document(result: RunResult, texts: CaseTexts, locate: Callable[[str], str]) -> Iterator[str]:
    """Yield the report in pieces."""
    several, names = len(result.agents) > 1, _Names()
    files = _by_file(result.scenarios)
    suites = {file: [_case(s, texts, several) for s in scenarios] for file, scenarios in files.items()}
    about_run = _run_cases(result)
    cases = [*about_run, *(case for suite in suites.values() for case in suite)]
    totals = {"name": _THE_RUN, **_counts(cases), "time": _time(result.duration_ms / 1000)}
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    yield open_tag("testsuites", {**totals, "timestamp": _timestamp(result)}) + "\n"
    if about_run:
        yield from _suite(result, "", about_run, (), names, locate)
    for file, held in suites.items():
        yield from _suite(result, file, held, files[file], names, locate)
    yield "</testsuites>\n"


def _suite(
    result: RunResult,
    file: str,
    cases: Sequence[_Case],
    scenarios: Sequence[ScenarioResult],
    names: _Names,
    locate: Callable[[str], str],
) -> Iterator[str]:
    """Format all cases of a file; those about the whole run have no file."""
    path = locate(file) if file else None
    classname = _classname(path) if path else _THE_RUN
    attributes = {"name": file or _THE_RUN, **_counts(cases), "time": _time(sum(c.seconds for c in cases))}
    yield open_tag("testsuite", {**attributes, "timestamp": _timestamp(result), "file": path}) + "\n"
    yield _properties(suite_properties(result, scenarios)) + "\n"
    for case in cases:
        where = {
            "classname": classname,
            "name": names.of(classname, cut(case.name, _NAME_CHARS)),
            "file": path,
            "line": case.line or None,
            "time": _time(case.seconds),
        }
        yield element("testcase", where, case.content()) + "\n"
    yield "</testsuite>\n"


def _case(scenario: ScenarioResult, texts: CaseTexts, several: bool) -> _Case:
    name = f"{scenario.name} [{scenario.agent}]" if several and scenario.agent else scenario.name
    seconds, status = scenario.duration_ms / 1000, _status(scenario)
    return _Case(name or scenario.file, scenario.line, status, seconds, lambda: _content(scenario, texts))


def _content(scenario: ScenarioResult, texts: CaseTexts) -> Iterator[str]:
    status = _status(scenario)
    yield _properties(case_properties(scenario))
    if status in _ELEMENTS:
        kind, why = message(scenario)
        kind = f"agentest.{status}" if status is Status.SKIPPED else kind
        yield element(_ELEMENTS[status], {"type": kind, "message": why}, [texts.failure(scenario)])
    output = texts.output(scenario)
    texts_of_warnings = [*scenario.warnings, *(warning.text for warning in scenario.verdict_warnings)]
    if texts_of_warnings and status not in select.UNDONE:  # otherwise they are in the text of the failure
        output = in_rows("\n".join(f"warning: {warning}" for warning in texts_of_warnings))
    if output:
        yield element("system-out", {}, [output])


def _status(scenario: ScenarioResult) -> Status:
    """Return the status of a case; unfinished scenarios are skipped, as the run has one error for all."""
    return Status.SKIPPED if scenario.unfinished else scenario.verdict.status


def _run_cases(result: RunResult) -> list[_Case]:
    """Return the problems of the whole run that no scenario shows."""
    early = result.interrupted or any(s.verdict.status is Status.ERRORED for s in result.unfinished)
    problems = [ended_early_text(result)] if early else []
    problems += [stray.message for stray in result.unclaimed]
    undone = any(result.with_status(status) for status in select.UNDONE)
    if not problems and not undone and run_status(result) is not Status.PASSED:
        problems = [f"nothing ran{f': {result.stopped}' if result.stopped else ''}"]
    return [_run_case(text) for text in problems]


def _run_case(text: str) -> _Case:
    first = text.split("\n", 1)[0]
    error = element("error", {"type": "agentest.run", "message": first}, [in_rows(text)])
    return _Case("the run as a whole", 0, Status.ERRORED, 0.0, lambda: [error])


def _properties(properties: Iterable[Property]) -> str:
    inner = [element("property", {"name": name, "value": value}) for name, value in properties]
    return element("properties", {}, inner) if inner else ""


def _counts(cases: Sequence[_Case]) -> Mapping[str, int]:
    counts = Counter(case.status for case in cases)
    return {"tests": len(cases), **{name: counts[status] for name, status in _COUNTED.items()}}


def _by_file(scenarios: Iterable[ScenarioResult]) -> dict[str, list[ScenarioResult]]:
    files: dict[str, list[ScenarioResult]] = {}
    for scenario in scenarios:
        files.setdefault(scenario.file, []).append(scenario)
    return files


def _classname(path: str) -> str:
    """Return the path with dots, like Python test runners: Jenkins takes the last part for the class."""
    ending = next((ending for ending in _ENDINGS if path.lower().endswith(ending)), "")
    return ".".join(part for part in path.removesuffix(ending).split("/") if part not in ("", ".."))


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def _timestamp(result: RunResult) -> str | None:
    """Return UTC without a suffix, because the common schema does not allow one."""
    return result.started_at[:19] or None


MIB: Final = 1024 * 1024
TEXT_ROOM: Final = 6 * MIB
STORY_ROOM: Final = 4 * MIB
"""With everything else, a report stays below the 30 MB that GitLab accepts."""
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
        self._transcripts = Transcripts(story_room, _CASE_ROOM, size=_xml_size)

    def add(self, scenario: ScenarioResult) -> None:
        """Format and store the texts of a scenario that has just finished."""
        if scenario.verdict.status not in select.UNDONE:
            return
        text = in_rows(_shortened(self._console(scenario)))
        if byte_size(text) <= self._room:
            self._room -= byte_size(text)
            self._texts[scenario_key(scenario)] = text
        self._transcripts.add(scenario)

    def failure(self, scenario: ScenarioResult) -> str:
        """Return the console's text about the scenario as XML; only the reasons if there was no room."""
        told = self._texts.get(scenario_key(scenario))
        return in_rows(_shortened(_messages(scenario))) if told is None else told

    def output(self, scenario: ScenarioResult) -> str:
        """Return the transcripts of conversations that did not pass, and the omitted number, as XML."""
        parts = [f"{story.conversation_id}\n{story.text}\n" for story in self._transcripts.of(scenario)]
        if missing := self._transcripts.missing(scenario):
            parts.append(f"… {count(missing, 'more transcript')} left out: results.json has them")
        return in_rows("\n".join(parts))

    def _console(self, scenario: ScenarioResult) -> str:
        lines = scenario_lines(scenario, DisplayOptions(several_agents=self.several_agents))
        return "\n".join(line.plain for line in lines)


def message(scenario: ScenarioResult) -> tuple[str, str]:
    """Return type and message: the first reason for the scenario's status, and the number of others.

    The type is never a bare word, because GitLab's parser interprets `file` and `array` as kinds of content.
    """
    status, reasons = scenario.verdict.status, _reasons(scenario)
    if not reasons:
        return f"agentest.{status}", str(status)
    first = _placed(reasons[0]).split("\n", 1)[0]
    more = f" (and {count(len(reasons) - 1, 'more reason')})" if reasons[1:] else ""
    return f"agentest.{reasons[0].kind}", cut(first, _MESSAGE_CHARS) + more


def _reasons(scenario: ScenarioResult) -> list[Reason]:
    return [reason for reason in scenario.verdict.reasons if reason.status is scenario.verdict.status]


def _messages(scenario: ScenarioResult) -> str:
    return "\n".join(map(_placed, _reasons(scenario))) or str(scenario.verdict.status)


def _placed(reason: Reason) -> str:
    return f"{reason.conversation_id}: {reason.message}" if reason.conversation_id else reason.message


def _shortened(text: str) -> str:
    left_out = len(text) - _TEXT_CHARS
    return text if left_out <= 0 else f"{text[:_TEXT_CHARS]}\n… {left_out:,} more characters left out"


def _xml_size(text: str) -> int:
    return byte_size(in_rows(text))


Property = tuple[str, str]

_SHOWN_K = 10
_MOST_CAUSES = 20


def suite_properties(result: RunResult, scenarios: Sequence[ScenarioResult]) -> Iterator[Property]:
    """Yield the models of the run, and the cost and the failures of one file's scenarios."""
    yield "agentest.version", result.version
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
    yield from ((f"warning.{each.code}", each.message) for each in scenario.verdict_warnings)
    yield from _reliability(scenario)
    yield from _averages(scenario)
    yield from ((f"threshold.{name}", _number(least)) for name, least in scenario.thresholds.items())
    yield from _used(sum(scenario.usage.values(), ModelUsage()))
    if totals.agent_tokens.total_tokens:
        yield "agent_tokens", str(totals.agent_tokens.total_tokens)


def _reliability(scenario: ScenarioResult) -> Iterator[Property]:
    """Yield how often the scenario passes, and the probability that it passes several times in a row."""
    if scenario.pass_rate:
        yield from _figure("pass_rate", scenario.pass_rate)
    for k, value in islice(scenario.pass_hat_k.items(), _SHOWN_K):
        yield f"pass_hat_k.{k}", _number(value)
    if scenario.flaky:
        yield "flaky", "true"
    if scenario.decided_after is not None:
        yield "decided_after", str(scenario.decided_after)


def _averages(scenario: ScenarioResult) -> Iterator[Property]:
    for name, value in scenario.averages.items():
        figure = scenario.intervals.get(name)
        yield from _figure(f"average.{name}", figure) if figure else ((f"average.{name}", _number(value)),)


def _figure(name: str, figure: Figure) -> Iterable[Property]:
    """Return a value with its n and 95 % interval."""
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
    given = "".join(
        f' {key}="{_in_one_row(str(value))}"' for key, value in attributes.items() if value is not None
    )
    inner = "".join(content)
    return f"<{name}{given}>{inner}</{name}>" if inner else f"<{name}{given}/>"


def open_tag(name: str, attributes: Mapping[str, object | None]) -> str:
    """Return the opening tag of an element."""
    return element(name, attributes).removesuffix("/>") + ">"


def _in_one_row(text: str) -> str:
    return _allowed(clean(without_colours(text))).translate(_IN_ATTRIBUTE)


def _allowed(text: str) -> str:
    seen = _NO_XML.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return _ATTACHMENT.sub(r"[\\[", seen)
