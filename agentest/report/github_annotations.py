"""Annotations for GitHub Actions: one workflow command for each scenario, error and warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from agentest.report import github_selection as select
from agentest.report.github_criteria import criterion_annotations, grouped
from agentest.report.github_markdown import cut
from agentest.results import RunResult, ScenarioResult, Severity
from agentest.support.terminal import in_command

_LEVELS = {
    Severity.CRITICAL: "error",
    Severity.HIGH: "error",
    Severity.MEDIUM: "warning",
    Severity.LOW: "notice",
}
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


def _property(text: str) -> str:
    return in_command(text).translate(_IN_PROPERTY)


def annotation_lines(result: RunResult, locate: Callable[[str], str]) -> Iterator[str]:
    """All annotations of a run; those of scenarios first, as GitHub shows only so many."""
    named = partial(select.label, several=len(result.agents) > 1)
    undone = [s for s in result.scenarios if s.verdict.status in select.UNDONE]
    for scenario in sorted(undone, key=select.badness):
        title = f"{named(scenario)} {scenario.verdict.status}"
        yield annotation("error", locate(scenario.file), scenario.line, title, _reasons(scenario))
    for stray in result.unclaimed:
        title = "tool calls belonged to no conversation"
        yield annotation("error", locate(stray.file), stray.line, title, stray.message)
    for scenario, group in select.errors(result):
        title = f"{group.severity.label} error: {group.label}"
        message = f"{named(scenario)}: {group.explanation} ({', '.join(group.occurrences)})"
        yield annotation(_LEVELS[group.severity], locate(scenario.file), scenario.line, title, message)
    for scenario in result.scenarios:
        for level, message in criterion_annotations(scenario):
            title = f"{named(scenario)}: criterion"
            yield annotation(level, locate(scenario.file), scenario.line, title, message)
    for scenario, reason in select.violations(result):
        title = f"{named(scenario)}: threshold"
        yield annotation("warning", locate(scenario.file), scenario.line, title, reason.message)
    for scenario, warning in select.warnings(result):
        title = f"{named(scenario)}: warning"
        yield annotation("warning", locate(scenario.file), scenario.line, title, warning)
    for silent in result.silent:
        yield annotation("warning", locate(silent.file), silent.line, "no tool call was seen", silent.message)
    for null in result.unanswered:
        title = "tool calls were answered with null"
        yield annotation("warning", locate(null.file), null.line, title, null.message)


def _reasons(scenario: ScenarioResult) -> str:
    """The reasons that made the scenario what it is, one after the other; each criterion once."""
    status = scenario.verdict.status
    reasons = [reason for reason in scenario.verdict.reasons if reason.status is status]
    texts = [
        (f"{r.conversation_id}: {r.message}" if r.conversation_id else r.message) + more
        for r, more in grouped(reasons)
    ]
    return "\n".join(texts) or str(status)
