"""Lines for the console: cleaned of terminal control characters and laid out for the console's width.

Formatting code creates `ConsoleLine` values and is independent of the terminal; printers know width and
encoding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from agentest.domain.results import JudgeCalibration, Severity, Status
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean, encodable

Part = str | tuple[str, str]
"""Text, or text and its rich style. It is never parsed: markup, emoji codes and escapes stay unchanged."""
Chunk = tuple[Part, ...]
_SHOWN_IDS = 6
_WHOLE_CHARS = 10_000
_WIDEST_COLUMN = 60
"""The maximum cells of the first column if lines are unlimited; a longer text moves the second one."""


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
SEVERITY_STYLES = {
    Severity.LOW: "dim",
    Severity.MEDIUM: "yellow",
    Severity.HIGH: "red",
    Severity.CRITICAL: "bold red",
}
STYLES = {Status.PASSED: "green", Status.FAILED: "red", Status.ERRORED: "yellow", Status.SKIPPED: "dim"}


@dataclass(frozen=True, slots=True)
class DisplayOptions:
    """Display options, and the facts that formatting needs in addition to results."""

    glyphs: Glyphs = UNICODE
    verbosity: int = 0  # as in `ReportOptions`
    width: int | None = None  # the cells of a line; None for a file or a pipe, whose lines are never cut
    several_agents: bool = False
    calibrations: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → the measured agreement of its judge with people's labels, if there is one."""
    next_step: str = ""  # the command that continues an interrupted run; "" if there is none
    rerun: str = ""  # the command that runs what failed again; "" if there is none

    @property
    def verbose(self) -> bool:
        """True if transcripts are shown."""
        return self.verbosity > 1

    @property
    def detailed(self) -> bool:
        """True if passed scenarios and conversations are shown, and all figures of the run."""
        return self.verbosity > 0

    def mark(self, status: Status) -> tuple[str, str]:
        return self.glyphs.marks[status], STYLES[status]


@dataclass(frozen=True, slots=True)
class ConsoleLine:
    """One line of output.

    If it is too long, it is broken between chunks and indented to the end of `lead`.
    """

    lead: Chunk
    chunks: tuple[Chunk, ...] = ()
    cut: bool = False  # cut the line at the terminal's width instead of wrapping it
    gap: str = "  "  # the separator of chunks in one row

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

    widths: tuple[int, int] = (0, 0)  # the cells of the widest chunk in each column

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
    from rich.cells import cell_len

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


def conversation_number(id: str) -> str:
    """Return a conversation's number within its scenario, like `#2`."""
    return f"#{id.rpartition('-')[2]}"


def numbers_of(ids: Sequence[str]) -> Part:
    """Return the numbers of conversations in a row, of many only the first ones."""
    more = f", … {len(ids) - _SHOWN_IDS} more" if len(ids) > _SHOWN_IDS else ""
    return ", ".join(map(conversation_number, ids[:_SHOWN_IDS])) + more, "dim"


def glyphs_for(encoding: str) -> Glyphs:
    """Return the symbols that the encoding supports."""
    return UNICODE if encodable("✓✗━─", encoding) == "✓✗━─" else ASCII


class BlankFilter:
    """Leaves out blank lines that follow another one, also one of an earlier output."""

    def __init__(self) -> None:
        self.after_blank = False

    def __call__(self, lines: Iterable[ConsoleLine]) -> Iterator[ConsoleLine]:
        for each in lines:
            if not (self.after_blank and each is BLANK):
                yield each
            self.after_blank = each is BLANK
