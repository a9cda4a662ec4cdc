"""Annotations for GitHub Actions: workflow commands for scenarios, errors and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from agentest.domain.results import RunResult, RunWarning, ScenarioResult, Severity
from agentest.report.alignments import AlignmentTable, plain_rows, without_sides
from agentest.report.content import (
    Regression,
    RunReport,
    ScenarioReport,
    criterion_counts,
    criterion_example,
    criterion_name,
)
from agentest.report.markdown import cut
from agentest.report.transcripts import Transcripts, reason_title
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean_for_command
from agentest.support.text import count

_LEVELS = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "notice",
}
_SHOWN = 10
_TITLE_CHARS, _MESSAGE_CHARS = 250, 10_000
"""GitHub shows little more, and a judge may write pages."""
_MESSAGE_ESCAPES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_MESSAGE = str.maketrans(_MESSAGE_ESCAPES)
_IN_PROPERTY = str.maketrans({**_MESSAGE_ESCAPES, ":": "%3A", ",": "%2C"})


def repository_path(file: str, root: Path, workspace: Path | None) -> str:
    """Return the file's path from the root of its repository, with forward slashes, or absolute."""
    path = (root / file).resolve()
    for base in _bases(path, root, workspace):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.as_posix()


def _bases(path: Path, root: Path, workspace: Path | None) -> Iterator[Path]:
    """Yield possible roots of the repository. In a worktree or submodule, `.git` is a file."""
    yield from (parent for parent in path.parents if (parent / ".git").exists())
    if workspace:
        yield workspace.resolve()
    yield root.resolve()


def annotation(level: str, file: str, line: int, title: str, message: str) -> str:
    """Format one workflow command on one line. Line breaks and commands inside the texts are escaped."""
    where = f"file={_property(file)},line={max(line, 1)},title={_property(cut(title, _TITLE_CHARS))}"
    return f"::{level} {where}::{_message(cut(message, _MESSAGE_CHARS))}"


def run_annotation(level: str, title: str, message: str) -> str:
    """Format one workflow command about the whole run, without a file."""
    return f"::{level} title={_property(title)}::{_message(message)}"


def _property(text: str) -> str:
    return clean_for_command(text).translate(_IN_PROPERTY)


def _message(text: str) -> str:
    return clean_for_command(text).translate(_IN_MESSAGE)


@dataclass(frozen=True, slots=True)
class _Annotation:
    level: str
    where: ScenarioResult | RunWarning | Regression | None
    """None if it is about the whole run."""
    title: str
    message: str


def annotation_lines(
    result: RunResult | RunReport,
    locate: Callable[[str], str],
    regressions: Sequence[Regression] = (),
    transcripts: Transcripts | None = None,
) -> Iterator[str]:
    """Return the annotations of a run: the most severe ones of each level, and the number of omitted ones.

    GitHub shows only the first ten of each level in a step.
    """
    report = result if isinstance(result, RunReport) else RunReport(result)
    annotations = [*_not_passed(report, regressions, transcripts or Transcripts(0)), *_annotations(report)]
    for level in ("error", "warning", "notice"):
        of_level = [each for each in annotations if each.level == level]
        listed = of_level if len(of_level) <= _SHOWN else of_level[: _SHOWN - 1]
        for each in listed:
            if each.where is None:
                yield run_annotation(level, each.title, each.message)
            else:
                yield annotation(level, locate(each.where.file), each.where.line, each.title, each.message)
        if more := len(of_level) - len(listed):
            counted = count(more, f"more {level}")
            yield run_annotation(level, counted, f"and {counted}: see the summary of the job, or the log")


def _not_passed(
    report: RunReport, regressions: Sequence[Regression], transcripts: Transcripts
) -> Iterator[_Annotation]:
    """Yield scenarios that did not pass or regressed, from worst to mildest; regressed ones first."""
    left = {each.place: each for each in regressions}
    for scenario in sorted(report.not_passed, key=lambda s: (s.status != "failed", s.key not in left)):
        title, text = f"{scenario.label} {scenario.status}", _text(scenario, transcripts)
        if worse := left.pop(scenario.key, None):
            title, text = f"{title} and regressed", f"{text}\nregressed: {worse.message}"
        yield _Annotation("error", scenario.result, title, text)
    for worse in left.values():
        name = f"{worse.name} ({worse.agent})" if report.several_agents else worse.name
        yield _Annotation("error", worse, f"{name} regressed", worse.message)


def _text(scenario: ScenarioReport, transcripts: Transcripts) -> str:
    """Return the reasons of a scenario; those of its first conversation with the rows of their tables."""
    first = transcripts.of(scenario)[:1]
    expected = [each for transcript in first for each in transcript.tables if each.table.expects]
    tables = {each.title: each.table for each in expected}
    titles = set(map(reason_title, scenario.result.verdict.reasons))
    counted = [row for title, table in tables.items() if title not in titles for row in _rows(table)]
    return "\n".join([*reason_lines(scenario, tables, with_rows=True), *counted])


def reason_lines(
    scenario: ScenarioReport, tables: Mapping[str, AlignmentTable], *, with_rows: bool = False
) -> list[str]:
    """Return the reasons for the status of a scenario, similar ones once.

    Missed thresholds have a table of their own, so they are named here only if there is no other reason.

    Args:
        tables: by title; a reason with a table does not repeat the sides of its trajectory.
        with_rows: include the rows of the tables.
    """
    lines = []
    for reason, more in scenario.distinct_reasons:
        where = f"{reason.conversation_id}: " if reason.conversation_id else ""
        table = tables.get(reason_title(reason))
        lines.append(where + (without_sides(reason) if table else reason.message) + more)
        if table and with_rows:
            lines += _rows(table)
    return lines or [scenario.missed_thresholds]


def _rows(table: AlignmentTable) -> list[str]:
    return [f"{' | '.join(table.heads)}:", *plain_rows(table)]


def _annotations(report: RunReport) -> Iterator[_Annotation]:
    """Yield all other annotations; in each level the most severe first."""
    if report.result.unfinished:
        yield _Annotation("error", None, "Agentest did not finish", report.early_end)
    for stray in report.result.unclaimed:
        yield _Annotation("error", stray, "tool calls belonged to no conversation", stray.message)
    for scenario, group in report.errors:
        title = f"{group.severity.label} error: {group.label}"
        message = f"{scenario.label}: {group.explanation} ({', '.join(group.occurrences)})"
        yield _Annotation(_LEVELS[group.severity], scenario.result, title, message)
    for scenario in report.scenarios:
        for level, message in _violated_criteria(scenario.result):
            yield _Annotation(level, scenario.result, f"{scenario.label}: criterion", message)
    for scenario, reason in report.violations:
        yield _Annotation("warning", scenario.result, f"{scenario.label}: threshold", reason.message)
    for scenario, warning in report.warnings:
        yield _Annotation("warning", scenario.result, f"{scenario.label}: warning", warning)
    for questions in report.questions:
        for each in questions.each:
            where = RunWarning(each.text, each.first.agent, each.first.file, each.first.line)
            yield _Annotation("warning", where, str(questions.code), each.text)
    for null in report.result.unanswered:
        yield _Annotation("warning", null, "tool calls were answered with null", null.message)


def _violated_criteria(scenario: ScenarioResult) -> Iterator[tuple[str, str]]:
    failing = {reason.criterion.text for reason in scenario.verdict.reasons if reason.criterion}
    for each in scenario.totals.criteria:
        if each.violated:
            level = "error" if each.required and each.text in failing else "warning"
            counts = f"{criterion_counts(each)}; " if each.judged > 1 else ""
            yield level, f"{criterion_name(each)}: {counts}{criterion_example(each)}"
