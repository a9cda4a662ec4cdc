"""Expected and made calls in the report for GitHub: tables of the summary, a list in an annotation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentest.domain.results import Reason, RowStatus, ScenarioResult
from agentest.report import github_selection as select
from agentest.report.alignments import ShownRow, SideBySide, plain_rows, without_sides
from agentest.report.github_criteria import reason_lines
from agentest.report.github_markdown import inline, table_row
from agentest.report.stories import Story, StoryTable, reason_title
from agentest.support.text import count

_ICONS = {RowStatus.MATCHED: "✅", RowStatus.FREE: "➖", RowStatus.UNKNOWN: "⚠️"}
_NONE = "–"


def distinct_tables(stories: Sequence[Story]) -> Iterator[StoryTable]:
    """The tables of a scenario's conversations, those that are the same once, with how many they are of."""
    alike: dict[object, list[StoryTable]] = {}
    for story in stories:
        for each in story.tables:
            about = each.title.removeprefix(story.conversation_id)
            alike.setdefault((about, each.table), []).append(each)
    for first, *others in alike.values():
        more = f" (and {count(len(others), 'more conversation')})" if others else ""
        yield replace(first, title=first.title + more)


def table_text(scenario: ScenarioResult, shown: StoryTable, several: bool) -> str:
    """A table under the name of its scenario and what is wrong. A column that would be empty is left out."""
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
    """The reasons of a scenario without the sides of trajectories that have a table."""
    titles = {each.title for story in stories for each in story.tables}

    def told(reason: Reason, more: str) -> str:
        return (without_sides(reason) if reason_title(reason) in titles else reason.message) + more

    return reason_lines(scenario, told)


def reasons_with_rows(scenario: ScenarioResult, stories: Sequence[Story]) -> str:
    """The reasons of a scenario, and below those of its first conversation the rows of their tables."""
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


def _rows(table: SideBySide) -> list[str]:
    return [f"{' | '.join(table.heads)}:", *plain_rows(table)]
