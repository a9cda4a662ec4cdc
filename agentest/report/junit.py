"""The junit reporter: `junit.xml` when the run is over, as GitHub, GitLab and Jenkins read it.

A suite is a file, a case is a scenario and agent. What the run as a whole lacks is a case of its own, so that
no report is green where the exit status is not 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentest.domain.events import Event, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.verdict import run_status
from agentest.report import github_selection as select
from agentest.report.github_markdown import cut
from agentest.report.junit_case import CaseTexts, message
from agentest.report.junit_properties import Property, case_properties, suite_properties
from agentest.report.unfinished import ended_early_text
from agentest.report.xml_text import element, in_rows, open_tag
from agentest.support.files import report_writer

_ELEMENTS = {Status.FAILED: "failure", Status.ERRORED: "error", Status.SKIPPED: "skipped"}
_COUNTED = {"failures": Status.FAILED, "errors": Status.ERRORED, "skipped": Status.SKIPPED}
_ENDINGS = (".sim.py", ".evalset.json", ".test.json", ".py", ".json")
_NAME_CHARS = 1_000
_THE_RUN = "agentest"


class JUnitReporter:
    """Writes the run as JUnit XML when it is over.

    Args:
        locate: the path of a file from the root of its repository.
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
    """One `testcase`, written when it is asked for."""

    name: str
    line: int
    status: Status
    seconds: float
    content: Callable[[], Iterable[str]]


@dataclass(slots=True)
class _Names:
    """The names of cases, each once in its class: GitLab leaves out whichever comes second."""

    taken: Counter[tuple[str, str]] = field(default_factory=Counter)

    def of(self, classname: str, name: str) -> str:
        self.taken[classname, name] += 1
        number = self.taken[classname, name]
        return name if number == 1 else self.of(classname, f"{name} ({number})")


def document(result: RunResult, texts: CaseTexts, locate: Callable[[str], str]) -> Iterator[str]:
    """The report, piece by piece."""
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
    """All cases of a file; those about the run as a whole are in no file."""
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
    if texts_of_warnings and status not in select.UNDONE:  # else they are in the text of the failure
        output = in_rows("\n".join(f"warning: {warning}" for warning in texts_of_warnings))
    if output:
        yield element("system-out", {}, [output])


def _status(scenario: ScenarioResult) -> Status:
    """What did not run as the run ended early is skipped here: one error of the run tells of all of it."""
    return Status.SKIPPED if scenario.unfinished else scenario.verdict.status


def _run_cases(result: RunResult) -> list[_Case]:
    """Why the run as a whole is not what its scenarios are; none where they tell all of it."""
    early = result.interrupted or any(s.verdict.status is Status.ERRORED for s in result.unfinished)
    problems = [ended_early_text(result)] if early else []
    problems += [stray.message for stray in result.unclaimed]
    undone = any(result.with_status(status) for status in select.UNDONE)
    if not problems and not undone and run_status(result) is not Status.PASSED:
        problems = [f"nothing ran{f': {result.stopped}' if result.stopped else ''}"]
    return [_run_case(text) for text in problems]


def _run_case(text: str) -> _Case:
    first = text.split("\n", 1)[0]
    error = element("error", {"type": "agentest.runner", "message": first}, [in_rows(text)])
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
    """The path with dots, as test runners for Python write it: Jenkins takes the last part for the class."""
    ending = next((ending for ending in _ENDINGS if path.lower().endswith(ending)), "")
    return ".".join(part for part in path.removesuffix(ending).split("/") if part not in ("", ".."))


def _time(seconds: float) -> str:
    return f"{seconds:.3f}"


def _timestamp(result: RunResult) -> str | None:
    """In UTC without saying so: the usual schema has no place for it."""
    return result.started_at[:19] or None
