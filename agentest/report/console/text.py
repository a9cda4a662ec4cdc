"""Lines for the console: cleaned of terminal control characters and laid out for the console's width.

Formatting code creates `ConsoleLine` values and is independent of the terminal; `Printer` knows width and
encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentest.domain.results import JudgeCalibration, Status
from agentest.support.dataclasses import dataclass
from agentest.support.terminal import clean, encodable

Part = str | tuple[str, str]
"""Text, or text and its rich style. It is never parsed: markup, emoji codes and escapes stay unchanged."""


Chunk = tuple[Part, ...]


_GAP = "  "


_WHOLE_CHARS = 10_000


_WIDEST_COLUMN = 60
"""The maximum cells of the first column if lines are unlimited; a longer text moves the second one."""
_NARROW = 30
"""The minimum cells for two columns."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Symbols that the output encoding supports."""

    badges: dict[Status, str]
    marks: dict[Status, str]
    bar: tuple[str, str]

    def badge(self, status: Status) -> str:
        """Return the symbol and the word of a status, padded to a common width."""
        return self.badges[status].ljust(max(map(len, self.badges.values())))


_SYMBOLS = {Status.PASSED: "✓", Status.FAILED: "✗", Status.ERRORED: "!", Status.SKIPPED: "-"}


_WORDS = {Status.PASSED: "ok", Status.FAILED: "FAIL", Status.ERRORED: "ERROR", Status.SKIPPED: "skip"}


UNICODE = Glyphs({s: f"{symbol} {s}" for s, symbol in _SYMBOLS.items()}, _SYMBOLS, ("━", "─"))


ASCII = Glyphs(_WORDS, _WORDS, ("#", "-"))


STYLES = {Status.PASSED: "green", Status.FAILED: "red", Status.ERRORED: "yellow", Status.SKIPPED: "dim"}


@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """Display options, and the facts that formatting needs in addition to results."""

    glyphs: Glyphs = UNICODE
    verbose: bool = False
    several_agents: bool = False
    calibrations: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → the measured agreement of its judge with people's labels, if there is one."""
    next_step: str = ""
    """The command that continues an interrupted run; "" if there is none."""

    def mark(self, status: Status) -> Part:
        return self.glyphs.marks[status], STYLES[status]


@dataclass(frozen=True, slots=True)
class ConsoleLine:
    """One line of output.

    If it is too long, it is broken between chunks and indented to the end of `lead`.
    """

    lead: Chunk
    chunks: tuple[Chunk, ...] = ()
    cut: bool = False
    """Cut the line at the terminal's width instead of wrapping it."""
    gap: str = _GAP
    """The separator of chunks in one row."""

    @property
    def plain(self) -> str:
        """The whole line without styles."""
        return "".join(part if isinstance(part, str) else part[0] for part in self.parts).rstrip()

    @property
    def parts(self) -> Chunk:
        """All parts in one row."""
        gaps = ((self.gap,) if i else () for i in range(len(self.chunks)))
        return (
            *self.lead,
            *(p for gap, chunk in zip(gaps, self.chunks, strict=True) for p in (*gap, *chunk)),
        )


BLANK = ConsoleLine(())


@dataclass(frozen=True, slots=True)
class TwoColumns(ConsoleLine):
    """A line with two chunks in columns. Long chunks wrap within their column, or one below the other."""

    widths: tuple[int, int] = (0, 0)
    """The cells of the widest chunk in each column."""

    @property
    def parts(self) -> Chunk:
        left, right = self.chunks
        gap = " " * max(0, min(self.widths[0], _WIDEST_COLUMN) - _cells(left))
        return (*self.lead, *left, gap, self.gap, *right)


def columns(lead: Chunk, rows: Sequence[tuple[Chunk, Part, Part]]) -> Iterator[TwoColumns]:
    """Yield rows whose parts are aligned in columns, each with its own lead after the common one."""
    widths = _widest(left for _, left, _ in rows), _widest(right for _, _, right in rows)
    for row_lead, left, right in rows:
        yield TwoColumns((*lead, *row_lead), ((left,), (right,)), widths=widths)


def _widest(parts: Iterable[Part]) -> int:
    return max((_cells((part,)) for part in parts), default=0)


def _cells(chunk: Chunk) -> int:
    return sum(cell_len(clean(part if isinstance(part, str) else part[0])) for part in chunk)


def line(indent: int, *parts: Part, lead: Chunk = ()) -> ConsoleLine:
    """Return a line with one chunk."""
    return ConsoleLine((" " * indent, *lead), (parts,))


def rows_of(text: str) -> list[str]:
    """Split a text into rows; a very long text is cut, with a note."""
    left_out = len(text) - _WHOLE_CHARS
    visible = text if left_out <= 0 else f"{text[:_WHOLE_CHARS]}… ({left_out} more characters)"
    return visible.replace("\r\n", "\n").rstrip("\n").split("\n")


def labelled(indent: int, label: str, rows: Iterable[str], style: str = "") -> Iterator[ConsoleLine]:
    """Yield rows next to a label, which only the first row shows."""
    for row in rows:
        yield line(indent, (row, style), lead=((label, "dim"),))
        label = " " * len(label)


class Printer:
    """Writes lines to a console, wrapped at the width of a terminal and unwrapped otherwise."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._after_blank = False
        self._wraps = console.is_terminal and not console.soft_wrap
        self.glyphs = UNICODE if encodable("✓✗━─", console.encoding) == "✓✗━─" else ASCII

    def write(self, lines: Iterable[ConsoleLine]) -> None:
        """Write the lines; of several blank lines in a row, write only the first."""
        rows = [row for each in self._without_repeated_blanks(lines) for row in self.rows(each)]
        for row in rows:
            row.rstrip()
        if rows:
            self.console.print(Text("\n").join(rows), soft_wrap=True)

    def write_table(self, table: Table) -> None:
        if not self._wraps:
            unlimited = self.console.options.update(width=100_000)
            table.width = Measurement.get(self.console, unlimited, table).maximum
        self.console.print(table, crop=False)
        self._after_blank = False

    def _without_repeated_blanks(self, lines: Iterable[ConsoleLine]) -> Iterator[ConsoleLine]:
        for each in lines:
            if not (self._after_blank and each is BLANK):
                yield each
            self._after_blank = each is BLANK

    def rows(self, each: ConsoleLine) -> list[Text]:
        """Return the rows that the console shows for a line."""
        if not self._wraps:
            return [self.text(each.parts)]
        if isinstance(each, TwoColumns):
            return self._in_columns(each)
        if each.cut:
            return [self._cut(self.text(each.parts))]
        return self._wrapped(each)

    def text(self, parts: Iterable[Part]) -> Text:
        """Return the parts as text that the console's encoding supports."""
        text = Text()
        for part in parts:
            words, style = (part, "") if isinstance(part, str) else part
            text.append(encodable(clean(words), self.console.encoding), style)
        return text

    def _cut(self, row: Text) -> Text:
        if row.cell_len > self.console.width:
            mark = encodable("…", self.console.encoding)
            row.truncate(self.console.width - len(mark), overflow="crop")
            row.append(mark)
        return row

    def _wrapped(self, each: ConsoleLine) -> list[Text]:
        lead = self.text(each.lead)
        if lead.cell_len > self.console.width // 2:
            return self._wrapped(ConsoleLine((_GAP,), (each.lead, *each.chunks), gap=each.gap))
        width = self.console.width - lead.cell_len
        rows = [row for packed in self._packed(each, width) for row in _folded(packed, self.console, width)]
        hang = Text(" " * lead.cell_len)
        return [(hang if i else lead) + row for i, row in enumerate(rows or [Text()])]

    def _in_columns(self, each: TwoColumns) -> list[Text]:
        lead = self.text(each.lead)
        room = self.console.width - lead.cell_len - len(each.gap)
        if room < _NARROW:
            stacked = ConsoleLine(each.lead, ((*each.chunks[0], " |"), each.chunks[1]), gap=" ")
            return self._wrapped(stacked)
        widths = _shared(room, each.widths)
        left, right = (
            [*_folded(self.text(chunk), self.console, width)]
            for chunk, width in zip(each.chunks, widths, strict=True)
        )
        hang = Text(" " * lead.cell_len)
        rows = zip_longest(left, right, fillvalue=Text())
        return [
            (hang if i else lead) + _padded(left_line, widths[0] + len(each.gap)) + right_line
            for i, (left_line, right_line) in enumerate(rows)
        ]

    def _packed(self, each: ConsoleLine, width: int) -> Iterator[Text]:
        """Fill each row with as many whole chunks as fit."""
        row: Text | None = None
        for text in map(self.text, each.chunks):
            if row is None:
                row = text
            elif row.cell_len + len(each.gap) + text.cell_len <= width:
                row = row + self.text([each.gap]) + text
            else:
                yield row
                row = text
        if row is not None:
            yield row


def _folded(text: Text, console: Console, width: int) -> Iterable[Text]:
    return text.wrap(console, width, overflow="fold") if text.cell_len > width else [text]


def _shared(room: int, widths: tuple[int, int]) -> tuple[int, int]:
    """Divide the room between two columns; one column gets what the other does not need."""
    left, right = widths
    half = room // 2
    if left + right <= room or left <= half:
        return left, max(1, room - left)
    left = max(half, room - right)
    return left, room - left


def _padded(text: Text, width: int) -> Text:
    text.rstrip()
    return text + Text(" " * max(0, width - text.cell_len))
