"""Annotations and tables for GitHub Actions: workflow commands for scenarios, errors and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from agentest.domain.results import Reason, RowStatus, RunResult, RunWarning, ScenarioResult, Severity
from agentest.report import github_selection as select
from agentest.report.alignments import AlignmentTable, ShownRow, plain_rows, without_sides
from agentest.report.comparison import Regression
from agentest.report.content import ended_early_text, questioned_verdicts
from agentest.report.markdown import criterion_annotations, cut, inline, reason_lines, table_row
from agentest.report.transcripts import Story, StoryTable, Transcripts, reason_title
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
    return f"::{level} {where}::{clean_for_command(cut(message, _MESSAGE_CHARS)).translate(_IN_MESSAGE)}"


def run_annotation(level: str, title: str, message: str) -> str:
    """Format one workflow command about the whole run, without a file."""
    return f"::{level} title={_property(title)}::{clean_for_command(message).translate(_IN_MESSAGE)}"


def _property(text: str) -> str:
    return clean_for_command(text).translate(_IN_PROPERTY)


@dataclass(frozen=True, slots=True)
class _Annotation:
    level: str
    where: ScenarioResult | RunWarning | Regression | None
    """None if it is about the whole run."""
    title: str
    message: str


def annotation_lines(
    result: RunResult,
    locate: Callable[[str], str],
    regressions: Sequence[Regression] = (),
    transcripts: Transcripts | None = None,
) -> Iterator[str]:
    """Return the annotations of a run: the most severe ones of each level, and the number of omitted ones.

    GitHub shows only the first ten of each level in a step.
    """
    stories = transcripts or Transcripts(0)
    found = [*_not_passed(result, regressions, stories), *_annotations(result)]
    for level in ("error", "warning", "notice"):
        of_level = [each for each in found if each.level == level]
        shown = of_level if len(of_level) <= _SHOWN else of_level[: _SHOWN - 1]
        yield from (_format(each, locate) for each in shown)
        if more := len(of_level) - len(shown):
            counted = count(more, f"more {level}")
            yield run_annotation(level, counted, f"and {counted}: see the summary of the job, or the log")


def _format(each: _Annotation, locate: Callable[[str], str]) -> str:
    if each.where is None:
        return run_annotation(each.level, each.title, each.message)
    return annotation(each.level, locate(each.where.file), each.where.line, each.title, each.message)


def _not_passed(
    result: RunResult, regressions: Sequence[Regression], stories: Transcripts
) -> Iterator[_Annotation]:
    """Yield scenarios that did not pass or regressed, from worst to mildest; regressed ones first."""
    left = {each.place: each for each in regressions}
    several = len(result.agents) > 1
    undone = [s for s in result.finished if s.verdict.status in select.UNDONE]
    for scenario in sorted(undone, key=lambda s: (select.scenario_badness(s), _place(s) not in left)):
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
    """Yield all other annotations; in each level the most severe first."""
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
    for found in questioned_verdicts(result):
        for question in found.each:
            where = RunWarning(question.text, question.first.agent, question.first.file, question.first.line)
            yield _Annotation("warning", where, str(found.code), question.text)
    for null in result.unanswered:
        yield _Annotation("warning", null, "tool calls were answered with null", null.message)


_ICONS = {RowStatus.MATCHED: "✅", RowStatus.FREE: "➖", RowStatus.UNKNOWN: "⚠️"}
_NONE = "–"


def distinct_tables(stories: Sequence[Story]) -> Iterator[StoryTable]:
    """Yield the tables of a scenario's conversations; identical ones once, with their count."""
    alike: dict[object, list[StoryTable]] = {}
    for story in stories:
        for each in story.tables:
            about = each.title.removeprefix(story.conversation_id)
            alike.setdefault((about, each.table), []).append(each)
    for first, *others in alike.values():
        more = f" (and {count(len(others), 'more conversation')})" if others else ""
        yield replace(first, title=first.title + more)


def table_text(scenario: ScenarioResult, shown: StoryTable, several: bool) -> str:
    """Format a table below its scenario's name and its fault. An empty column is omitted."""
    table = shown.table
    why = ["Why"] if any(row.words for row in table.rows) else []
    heads = ["", *(head[0].upper() + head[1:] for head in table.heads[not table.expects :]), *why]
    rows = [table_row(map(inline, heads)), table_row(["---"] * len(heads))]
    rows += [table_row(_cells(row, expects=table.expects)[: len(heads)]) for row in table.rows]
    more = f"\n{inline(table.more)}\n" if table.more else ""
    title = f"**{inline(select.label(scenario, several))}** {inline(shown.title)}"
    return f"{title}\n\n{''.join(rows)}{more}\n"


def _cells(row: ShownRow, *, expects: bool) -> list[str]:
    expected = [_code(row.expected)] if expects else []
    return [_ICONS.get(row.status, "❌"), *expected, _code(row.made), inline(row.words) or _NONE]


def _code(text: str) -> str:
    return f"<code>{inline(text)}</code>"


def short_reason_lines(scenario: ScenarioResult, stories: Sequence[Story]) -> list[str]:
    """Return the reasons of a scenario without the sides of trajectories that have a table."""
    titles = {each.title for story in stories for each in story.tables}

    def told(reason: Reason, more: str) -> str:
        return (without_sides(reason) if reason_title(reason) in titles else reason.message) + more

    return reason_lines(scenario, told)


def reasons_with_rows(scenario: ScenarioResult, stories: Sequence[Story]) -> str:
    """Return the reasons of a scenario; those of its first conversation with the rows of their tables."""
    tables = {each.title: each.table for story in stories[:1] for each in story.tables if each.table.expects}

    def told(reason: Reason, more: str) -> str:
        table = tables.get(reason_title(reason))
        if table is None:
            return reason.message + more
        return "\n".join([without_sides(reason) + more, *_rows(table)])

    lines = reason_lines(scenario, told)
    told_of = set(map(reason_title, scenario.verdict.reasons))
    counted = [table for title, table in tables.items() if title not in told_of]
    return "\n".join([*lines, *(row for table in counted for row in _rows(table))])


def _rows(table: AlignmentTable) -> list[str]:
    return [f"{' | '.join(table.heads)}:", *plain_rows(table)]
