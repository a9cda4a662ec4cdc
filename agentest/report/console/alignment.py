"""Expected calls beside those that were made as lines for the console, in two columns."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.domain.results import RowStatus, Status
from agentest.report.alignments import SideBySide
from agentest.report.console.text import STYLES, Chunk, Line, Look, Part, columns, line

_STATUS = {
    RowStatus.MATCHED: Status.PASSED,
    RowStatus.FREE: Status.SKIPPED,
    RowStatus.UNKNOWN: Status.ERRORED,
}


def alignment_lines(table: SideBySide, look: Look, indent: int) -> Iterator[Line]:
    """The rows under their heads; below a row what is wrong with its call, or why it is free."""
    width = max(map(len, look.glyphs.marks.values()))
    blank = " " * (width + 1)
    heads, *shown = columns((" " * indent,), [((blank,), *_heads(table)), *_rows(table, look, width)])
    yield heads
    for row, each in zip(table.rows, shown, strict=True):
        yield each
        if row.words:
            yield line(indent + width + 3, (row.words, STYLES[_status(row.status)]))
    if table.more:
        yield line(indent + width + 1, (table.more, "dim"))


def _heads(table: SideBySide) -> tuple[Part, Part]:
    expected, made = table.heads
    return ((expected, "dim"), (made, "dim")) if table.expects else ((made, "dim"), "")


def _rows(table: SideBySide, look: Look, width: int) -> Iterator[tuple[Chunk, Part, Part]]:
    for row in table.rows:
        cells = (row.expected, row.made) if table.expects else (row.made, "")
        yield (_mark(row.status, look, width), " "), *cells


def _mark(status: RowStatus, look: Look, width: int) -> Part:
    return look.glyphs.marks[_status(status)].ljust(width), STYLES[_status(status)]


def _status(status: RowStatus) -> Status:
    return _STATUS.get(status, Status.FAILED)
