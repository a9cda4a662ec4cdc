"""Annotations for GitHub Actions: workflow commands for scenarios, errors and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentest.domain.results import RunResult, RunWarning, ScenarioResult, Severity
from agentest.report import github_selection as select
from agentest.report.compared import Regression
from agentest.report.github_alignment import reasons_with_rows
from agentest.report.github_criteria import criterion_annotations
from agentest.report.github_markdown import cut
from agentest.report.questions import questions
from agentest.report.stories import Transcripts
from agentest.report.unfinished import ended_early_text
from agentest.support.terminal import in_command
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
    """The file's path from the root of its repository, with forward slashes; absolute if it is in none."""
    path = (root / file).resolve()
    for base in _bases(path, root, workspace):
        if path.is_relative_to(base):
            return path.relative_to(base).as_posix()
    return path.as_posix()


def _bases(path: Path, root: Path, workspace: Path | None) -> Iterator[Path]:
    """Where the repository may begin. In a worktree or submodule, `.git` is a file."""
    yield from (parent for parent in path.parents if (parent / ".git").exists())
    if workspace:
        yield workspace.resolve()
    yield root.resolve()


def annotation(level: str, file: str, line: int, title: str, message: str) -> str:
    """One workflow command, on one line whatever the texts hold; they hold no command of their own."""
    where = f"file={_property(file)},line={max(line, 1)},title={_property(cut(title, _TITLE_CHARS))}"
    return f"::{level} {where}::{in_command(cut(message, _MESSAGE_CHARS)).translate(_IN_MESSAGE)}"


def run_annotation(level: str, title: str, message: str) -> str:
    """One workflow command about the whole run, which has no file."""
    return f"::{level} title={_property(title)}::{in_command(message).translate(_IN_MESSAGE)}"


def _property(text: str) -> str:
    return in_command(text).translate(_IN_PROPERTY)


@dataclass(frozen=True, slots=True)
class _Annotation:
    level: str
    where: ScenarioResult | RunWarning | Regression | None
    """None: it is about the whole run."""
    title: str
    message: str


def annotation_lines(
    result: RunResult,
    locate: Callable[[str], str],
    regressions: Sequence[Regression] = (),
    transcripts: Transcripts | None = None,
) -> Iterator[str]:
    """The annotations of a run: of each level the most severe ones, and how many more there are.

    GitHub shows ten of a level in a step, whichever come first.
    """
    stories = transcripts or Transcripts(0)
    found = [*_undone(result, regressions, stories), *_annotations(result)]
    for level in ("error", "warning", "notice"):
        of_level = [each for each in found if each.level == level]
        shown = of_level if len(of_level) <= _SHOWN else of_level[: _SHOWN - 1]
        yield from (_written(each, locate) for each in shown)
        if more := len(of_level) - len(shown):
            counted = count(more, f"more {level}")
            yield run_annotation(level, counted, f"and {counted}: see the summary of the job, or the log")


def _written(each: _Annotation, locate: Callable[[str], str]) -> str:
    if each.where is None:
        return run_annotation(each.level, each.title, each.message)
    return annotation(each.level, locate(each.where.file), each.where.line, each.title, each.message)


def _undone(
    result: RunResult, regressions: Sequence[Regression], stories: Transcripts
) -> Iterator[_Annotation]:
    """Scenarios that did not pass, and those that regressed: of two as bad, the one that regressed first."""
    left = {each.place: each for each in regressions}
    several = len(result.agents) > 1
    undone = [s for s in result.finished if s.verdict.status in select.UNDONE]
    for scenario in sorted(undone, key=lambda s: (select.badness(s), _place(s) not in left)):
        title = f"{select.label(scenario, several)} {scenario.verdict.status}"
        worse = left.pop(_place(scenario), None)
        text = reasons_with_rows(scenario, stories.of(scenario))
        text += f"\nregressed: {worse.message}" if worse else ""
        yield _Annotation("error", scenario, f"{title} and regressed" if worse else title, text)
    for worse in left.values():
        name = f"{worse.name} ({worse.agent})" if several else worse.name
        yield _Annotation("error", worse, f"{name} regressed", worse.message)


def _place(scenario: ScenarioResult) -> tuple[str, str, str]:
    return scenario.name, scenario.agent, scenario.file


def _annotations(result: RunResult) -> Iterator[_Annotation]:
    """All other annotations, of each level the most severe first."""
    named = partial(select.label, several=len(result.agents) > 1)
    if result.unfinished:
        yield _Annotation("error", None, "Agentest did not finish", ended_early_text(result))
    for stray in result.unclaimed:
        yield _Annotation("error", stray, "tool calls belonged to no conversation", stray.message)
    for scenario, group in sorted(select.errors(result), key=lambda error: -error[1].severity):
        title = f"{group.severity.label} error: {group.label}"
        message = f"{named(scenario)}: {group.explanation} ({', '.join(group.occurrences)})"
        yield _Annotation(_LEVELS[group.severity], scenario, title, message)
    for scenario in result.scenarios:
        for level, message in criterion_annotations(scenario):
            yield _Annotation(level, scenario, f"{named(scenario)}: criterion", message)
    for scenario, reason in select.violations(result):
        yield _Annotation("warning", scenario, f"{named(scenario)}: threshold", reason.message)
    for scenario, warning in select.warnings(result):
        yield _Annotation("warning", scenario, f"{named(scenario)}: warning", warning)
    for found in questions(result):
        for question in found.each:
            where = RunWarning(question.text, question.first.agent, question.first.file, question.first.line)
            yield _Annotation("warning", where, str(found.code), question.text)
    for null in result.unanswered:
        yield _Annotation("warning", null, "tool calls were answered with null", null.message)
