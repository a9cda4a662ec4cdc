"""What is going on, in a few lines at the bottom of a terminal."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from itertools import chain
from time import monotonic

from rich.console import Group
from rich.live import Live

from agentest.domain.events import Event, RunFinished, RunStarted
from agentest.report.console.text import STYLES, Chunk, Line, Printer, line
from agentest.report.progress import Progress, Standing, cost, phases, time_left, troubles
from agentest.support.text import count, duration

_SHOWN_RUNNING = 5
_LONGEST_BAR, _SHORTEST_BAR = 30, 8
_REFRESHES_PER_SECOND = 8


class LiveArea:
    """The lines that move, drawn anew with whatever is printed above them.

    Args:
        expected_s: how long the run may take, by an earlier one.
        clock: seconds of any clock.
    """

    def __init__(
        self,
        printer: Printer,
        *,
        expected_s: float | None = None,
        clock: Callable[[], float] = monotonic,
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
            # Live hides the cursor; a run that dies without its last event must give it back.
            atexit.register(self.stop)
            self._live.start()
        elif isinstance(event, RunFinished):
            self.stop()

    def show(self, text: str) -> bool:
        """Show a text below the other lines from now on; whether they are on the screen."""
        self._text = text
        return self._live.is_started

    def stop(self) -> None:
        self._live.stop()
        atexit.unregister(self.stop)

    def __rich__(self) -> Group:
        lines = live_lines(self._progress, self._printer, self._clock())
        # The last row is short: an echoed ^C beside it takes no row of its own, which nobody would erase.
        last = line(0, (self._text, "bold yellow"))
        return Group(*(row for each in chain(lines, [last]) for row in self._printer.rows(each)))


def live_lines(progress: Progress, printer: Printer, now: float) -> Iterator[Line]:
    """How far the run is, in rows that fit the terminal, then some scenarios that are under way."""
    standing = progress.standing(now)
    yield _bar_line(progress, standing, printer)
    yield _facts_line(standing)
    running = list(progress.running.items())  # another thread may change it meanwhile
    for (name, agent), unit in running[:_SHOWN_RUNNING]:
        of = f" [{agent}]" if progress.several_agents else ""
        lead = f"  {unit.done}/{unit.planned}  {unit.phase}{'  ' * bool(unit.phase)}"
        yield Line((lead,), (((f"{name}{of}", "dim"),),), cut=True)
    if len(running) > _SHOWN_RUNNING:
        yield line(2, (f"and {len(running) - _SHOWN_RUNNING} more", "dim"))


def _bar_line(progress: Progress, now: Standing, printer: Printer) -> Line:
    """The bar is as long as the numbers beside it leave room for; without any room, the numbers count."""
    ended = sum(progress.finished.values())
    numbers = f" {now.done:,}/{count(now.planned, 'conversation')}"
    numbers += f" · {ended:,}/{count(progress.scenarios, 'scenario')}"
    size = min(_LONGEST_BAR, printer.console.width - len(numbers))
    if size < _SHORTEST_BAR:
        return Line((), ((numbers.strip(),),), cut=True)
    full, empty = printer.glyphs.bar
    filled = min(size, size * now.done // now.planned) if now.planned else 0
    return Line((), (((full * filled, "green"), (empty * (size - filled), "dim"), numbers),), cut=True)


def _facts_line(now: Standing) -> Line:
    elapsed: Chunk = ((duration(now.elapsed_s * 1000), "bold"),)
    told: list[Chunk] = [(text,) for text in (*phases(now), *time_left(now))]
    bad: list[Chunk] = [((text, STYLES[status]),) for text, status in troubles(now)]
    return Line((), (elapsed, *told, *bad, *((text,) for text in cost(now))), gap=" · ")
