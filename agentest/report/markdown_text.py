"""Markdown for GitHub: text that is shown literally, and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentest.domain.results import Status
from agentest.support.terminal import clean

ICONS = {Status.PASSED: "✅", Status.FAILED: "❌", Status.ERRORED: "⚠️", Status.SKIPPED: "⏭️"}
_IN_MARKDOWN = str.maketrans({c: f"&#{ord(c)};" for c in "&<>|`*[]\\~$\n\r"})
_MAX_CELL_CHARS = 500


def cut(text: str, limit: int) -> str:
    """Cut the text to a number of characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def literal(text: str) -> str:
    """Escape the text so that Markdown shows it literally, even in a table."""
    return text.translate(_IN_MARKDOWN)


def inline(text: str) -> str:
    """Return text on one line that Markdown shows literally, even in a table; at most 500 characters."""
    return literal(clean(" ".join(cut(text, _MAX_CELL_CHARS).split())))


def code(text: str) -> str:
    return f"<code>{inline(text)}</code>"


def table_row(cells: Iterable[str]) -> str:
    """Return a row of a table; the cells are Markdown."""
    return f"| {' | '.join(cells)} |\n"


def table_head(columns: Sequence[str]) -> str:
    """Return the first two rows of a table; the names of columns are Markdown."""
    return table_row(columns) + table_row(["---"] * len(columns))
