"""Texts of others in GitHub's Markdown: on one line, shortened, and shown as they are."""

from __future__ import annotations

from collections.abc import Iterable

from agentest.support.terminal import clean

_IN_MARKDOWN = str.maketrans({c: f"&#{ord(c)};" for c in "&<>|`*[]\\~$"})
_MAX_CELL_CHARS = 500


def cut(text: str, limit: int) -> str:
    """The text in at most so many characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def inline(text: str) -> str:
    """Text on one line that Markdown shows as it is, in a table or outside; at most 500 characters of it."""
    return clean(" ".join(cut(text, _MAX_CELL_CHARS).split())).translate(_IN_MARKDOWN)


def table_row(cells: Iterable[str]) -> str:
    """A row of a table; the cells are Markdown."""
    return f"| {' | '.join(cells)} |\n"
