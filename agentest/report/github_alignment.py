"""Expected and made calls in the report for GitHub: tables of the summary, a list in an annotation."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.report import github_selection as select
from agentest.report.alignments import ShownRow, plain_rows
from agentest.report.github_markdown import inline, table_row
from agentest.report.stories import Story, StoryTable
from agentest.results import RowStatus, ScenarioResult

_ICONS = {RowStatus.MATCHED: "✅", RowStatus.FREE: "➖", RowStatus.UNKNOWN: "⚠️"}
_NONE = "–"


def table_text(scenario: ScenarioResult, shown: StoryTable, several: bool) -> str:
    """A table under the name of its scenario and what is wrong."""
    heads = ["", *(head[0].upper() + head[1:] for head in shown.table.heads), "Why"]
    rows = [table_row(map(inline, heads)), table_row(["---"] * len(heads))]
    rows += [table_row(_cells(row)) for row in shown.table.rows]
    more = f"\n{inline(shown.table.more)}\n" if shown.table.more else ""
    title = f"**{inline(select.label(scenario, several))}** {inline(shown.title)}"
    return f"{title}\n\n{''.join(rows)}{more}\n"


def first_table(stories: Sequence[Story]) -> str:
    """The rows of a scenario's first table as a list below what else is told of it; "": it has none."""
    tables = (each for story in stories for each in story.tables)
    first = next(tables, None)
    if first is None:
        return ""
    return "\n".join(["", "expected | made:", *plain_rows(first.table)])


def _cells(row: ShownRow) -> list[str]:
    return [_ICONS.get(row.status, "❌"), _code(row.expected), _code(row.made), inline(row.words) or _NONE]


def _code(text: str) -> str:
    return f"<code>{inline(text)}</code>"
