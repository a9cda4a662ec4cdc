"""Print lines on a terminal: with styles, wrapped at its width, and live progress below all other output."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from time import monotonic
from typing import IO, Literal, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from agentest.domain.events import Event, RunFinished, RunStarted
from agentest.report.console.text import (
    STYLES,
    BlankFilter,
    Chunk,
    ConsoleLine,
    Part,
    TwoColumns,
    glyphs_for,
    line,
)
from agentest.report.progress import Progress, ProgressSnapshot, phases, troubles
from agentest.support.terminal import Output, clean, encodable
from agentest.support.text import count, duration

_NARROW = 30


def open_console(environ: Mapping[str, str], stream: TextIO) -> Console:
    """Create a console that respects the environment.

    `NO_COLOR` disables colors, `FORCE_COLOR` enables them for a pipe, and `CI` disables live progress. Output
    that is not a terminal is neither wrapped nor cut.
    """
    terminal, dumb = stream.isatty(), environ.get("TERM") == "dumb"
    forced = environ.get("FORCE_COLOR")
    colorless = bool(environ.get("NO_COLOR")) or forced in ("0", "false") or dumb
    colors: Literal["auto"] | None = None if colorless else "auto"
    return Console(
        file=cast("IO[str]", Output(stream, environ)),
        color_system=colors,
        force_terminal=terminal or (bool(forced) and not colorless),
        force_interactive=terminal and not dumb and environ.get("CI", "") in ("", "0", "false"),
        force_jupyter=False,
        soft_wrap=not terminal,
    )


class Printer:
    """Writes lines to a console, wrapped at the width of a terminal and unwrapped otherwise."""

    def __init__(self, console: Console, once_blank: BlankFilter | None = None) -> None:
        self.console = console
        self._once_blank = once_blank or BlankFilter()
        self._wraps = console.is_terminal and not console.soft_wrap
        self.glyphs = glyphs_for(console.encoding)

    @property
    def width(self) -> int | None:
        """The cells of a row; None for unlimited rows."""
        return self.console.width if self._wraps else None

    @property
    def for_tables(self) -> Printer:
        """This printer, because a `PlainPrinter` needs another one."""
        return self

    def write(self, lines: Iterable[ConsoleLine]) -> None:
        """Write the lines; of several blank lines in a row, write only the first."""
        rows = [row for each in self._once_blank(lines) for row in self.rows(each)]
        for row in rows:
            row.rstrip()
        if rows:
            self.console.print(Text("\n").join(rows), soft_wrap=True)

    def write_part(self, part: Part) -> None:
        self.console.print(self.text([part]), end="")

    def write_table(self, table: Table) -> None:
        if not self._wraps:
            unlimited = self.console.options.update(width=100_000)
            table.width = Measurement.get(self.console, unlimited, table).maximum
        self.console.print(table, crop=False)
        self._once_blank.after_blank = False

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
            return self._wrapped(ConsoleLine(("  ",), (each.lead, *each.chunks), gap=each.gap))
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
            (hang if i else lead) + _padded(one, widths[0] + len(each.gap)) + other
            for i, (one, other) in enumerate(rows)
        ]

    def _packed(self, each: ConsoleLine, width: int) -> Iterator[Text]:
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
    left, right = widths
    half = room // 2
    if left + right <= room or left <= half:
        return left, max(1, room - left)
    left = max(half, room - right)
    return left, room - left


def _padded(text: Text, width: int) -> Text:
    text.rstrip()
    return text + Text(" " * max(0, width - text.cell_len))


_SHOWN_RUNNING = 5
_LONGEST_BAR, _SHORTEST_BAR = 30, 8
_REFRESHES_PER_SECOND = 8


class LiveArea:
    """The lines of live progress, which are redrawn below all other output."""

    def __init__(
        self, printer: Printer, *, expected_s: float | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self._printer = printer
        self._clock = clock
        self._progress = Progress(expected_s)
        self._text = ""
        self._live = Live(
            self, console=printer.console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True
        )

    def on_event(self, event: Event) -> None:
        self._progress.on_event(event, self._clock())
        if isinstance(event, RunStarted):
            # Live hides the cursor; a run that dies without its last event must restore it.
            atexit.register(self.stop)
            self._live.start()
        elif isinstance(event, RunFinished):
            self.stop()

    def show(self, text: str) -> bool:
        """Show a text below the other live lines from now on. Returns True if the lines are on the screen."""
        self._text = text
        return self._live.is_started

    def stop(self) -> None:
        self._live.stop()
        atexit.unregister(self.stop)

    def __rich__(self) -> Group:
        lines = live_lines(self._progress, self._printer, self._clock())
        # The last row is short, so that an echoed ^C fits into it and leaves no further row to erase.
        last = line(0, (self._text, "bold yellow"))
        return Group(*(row for each in chain(lines, [last]) for row in self._printer.rows(each)))


def live_lines(progress: Progress, printer: Printer, now: float) -> Iterator[ConsoleLine]:
    """Yield the progress in rows that fit the terminal, followed by some running scenarios."""
    snapshot = progress.snapshot(now)
    yield _bar_line(progress, snapshot, printer)
    elapsed: Chunk = ((duration(snapshot.elapsed_s * 1000), "bold"),)
    texts = snapshot.exploring or (*phases(snapshot), *snapshot.time_left)
    facts: list[Chunk] = [(text,) for text in texts]
    failures: list[Chunk] = [((text, STYLES[status]),) for text, status in troubles(snapshot)]
    costs: list[Chunk] = [(text,) for text in snapshot.cost]
    yield ConsoleLine((), (elapsed, *facts, *failures, *costs), gap=" · ")
    running = list(progress.running.items())  # another thread may change it meanwhile
    for (name, agent), unit in running[:_SHOWN_RUNNING]:
        suffix = f" [{agent}]" if progress.several_agents else ""
        lead = f"  {unit.done}/{unit.planned}  {unit.phase}{'  ' * bool(unit.phase)}"
        yield ConsoleLine((lead,), (((f"{name}{suffix}", "dim"),),), cut=True)
    if len(running) > _SHOWN_RUNNING:
        yield line(2, (f"and {len(running) - _SHOWN_RUNNING} more", "dim"))


def _bar_line(progress: Progress, now: ProgressSnapshot, printer: Printer) -> ConsoleLine:
    ended = sum(progress.finished.values())
    numbers = f" {now.done:,}/{count(now.planned, 'conversation')}"
    numbers += f" · {ended:,}/{count(progress.scenarios, 'scenario')}"
    size = min(_LONGEST_BAR, printer.console.width - len(numbers))
    if size < _SHORTEST_BAR:
        return ConsoleLine((), ((numbers.strip(),),), cut=True)
    full, empty = printer.glyphs.bar
    filled = min(size, size * now.done // now.planned) if now.planned else 0
    return ConsoleLine((), (((full * filled, "green"), (empty * (size - filled), "dim"), numbers),), cut=True)
