"""The console reporter: live progress on a terminal, plain lines otherwise."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import IO, Literal, TextIO, cast

from rich.console import Console, Group
from rich.live import Live

from agentest.domain.events import Event, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.forecast import Forecast
from agentest.domain.results import RunResult, ScenarioResult
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.summary import closing_lines, comparison_table, header_lines
from agentest.report.console.text import BLANK, STYLES, Chunk, ConsoleLine, DisplayOptions, Printer, line
from agentest.report.progress import (
    Progress,
    ProgressLogReporter,
    ProgressSnapshot,
    cost,
    phases,
    time_left,
    troubles,
)
from agentest.support.files import open_text
from agentest.support.terminal import Output
from agentest.support.text import count, duration

_PLAIN = {"NO_COLOR": "1", "TERM": "dumb"}
"""The environment of a console that is a file."""


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


class ConsoleReporter:
    """Shows a run on a console.

    Args:
        console: by default standard output, as the environment allows: see `open_console`.
        verbose: show transcripts.
        live: show live progress; by default on an interactive terminal.
        detailed: show the expected and the actual form of every invocation of an evaluation set.
        next_step: the command that continues an interrupted run; "" if there is none.
        forecast: the expected resources of the run.
        clock: returns seconds, for durations during the run.
    """

    name = "console"

    def __init__(
        self,
        console: Console | None = None,
        *,
        verbose: bool = False,
        live: bool | None = None,
        detailed: bool = False,
        next_step: str = "",
        forecast: Forecast | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        console = console or open_console(os.environ, sys.stdout)
        self._detailed = detailed
        self._printer = Printer(console)
        self._look = DisplayOptions(self._printer.glyphs, verbose, next_step=next_step)
        self._unfinished: list[ScenarioResult] = []
        """The scenarios that the end of the run shows as one count, if it ended early."""
        self._forecast = forecast
        seconds = forecast.seconds if forecast else None
        self._progress: LiveArea | ProgressLogReporter
        if console.is_interactive if live is None else live:
            self._progress = LiveArea(self._printer, expected_s=seconds, clock=clock)
        else:
            self._progress = ProgressLogReporter(self._print_text, expected_s=seconds, clock=clock)

    def show(self, text: str) -> bool:
        """Show a text in the live area, if there is one. Returns True if it is visible."""
        return isinstance(self._progress, LiveArea) and self._progress.show(text)

    def on_event(self, event: Event) -> None:
        """Show an event. If that fails, the terminal is restored."""
        try:
            self._show(event)
        except BaseException:
            if isinstance(self._progress, LiveArea):
                self._progress.stop()
            raise

    def _show(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            several = len(event.agents) > 1
            self._look = replace(self._look, several_agents=several, calibrations=event.calibrations)
            self._printer.write(header_lines(event, self._forecast))
        self._progress.on_event(event)
        if isinstance(event, ScenarioFinished):
            result = event.result
            if result.unfinished and not (self._look.verbose and result.conversations):
                self._unfinished.append(result)
            else:
                self._show_result(result)
        elif isinstance(event, ScenarioAmended) and event.was is not event.result.verdict.status:
            self._show_result(replace(event.result, conversations=()))
        elif isinstance(event, RunFinished):
            self._finish(event.result)

    def _print_text(self, text: str) -> None:
        self._printer.write([line(0, (text, "dim"))])

    def _show_result(self, result: ScenarioResult) -> None:
        self._printer.write(scenario_lines(result, self._look))
        if self._detailed:
            self._show_details(result)

    def _show_details(self, result: ScenarioResult) -> None:
        from agentest.report.console.case import detail_tables

        for part in detail_tables(result, self._look, self._printer):
            if isinstance(part, ConsoleLine):
                self._printer.write([part])
            else:
                self._printer.write_table(part)

    def _finish(self, result: RunResult) -> None:
        for scenario in [] if result.unfinished else self._unfinished:
            self._show_result(scenario)
        self._printer.write([BLANK])
        if result.comparison and result.scenarios:
            self._printer.write_table(comparison_table(result, self._look, self._printer))
            self._printer.write([BLANK])
        self._printer.write(closing_lines(result, self._look))


class FileConsole:
    """Writes the console output to a file as plain text while the run goes on."""

    name = "console"

    def __init__(self, path: Path, *, verbose: bool = False, detailed: bool = False) -> None:
        self._path = path
        self._verbose = verbose
        self._detailed = detailed
        self._file: TextIO | None = None
        self._reporter: ConsoleReporter | None = None

    def on_event(self, event: Event) -> None:
        """Raises OutputError."""
        if self._reporter is None:
            self._file = open_text(self._path)
            console = open_console(_PLAIN, self._file)
            self._reporter = ConsoleReporter(console, verbose=self._verbose, detailed=self._detailed)
        self._reporter.on_event(event)
        if isinstance(event, RunFinished) and self._file:
            self._file.close()


_SHOWN_RUNNING = 5
_LONGEST_BAR, _SHORTEST_BAR = 30, 8
_REFRESHES_PER_SECOND = 8


class LiveArea:
    """The lines of live progress, which are redrawn below all other output.

    Args:
        expected_s: the expected duration of the run in seconds.
        clock: returns seconds.
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
    yield _facts_line(snapshot)
    running = list(progress.running.items())  # another thread may change it meanwhile
    for (name, agent), unit in running[:_SHOWN_RUNNING]:
        suffix = f" [{agent}]" if progress.several_agents else ""
        lead = f"  {unit.done}/{unit.planned}  {unit.phase}{'  ' * bool(unit.phase)}"
        yield ConsoleLine((lead,), (((f"{name}{suffix}", "dim"),),), cut=True)
    if len(running) > _SHOWN_RUNNING:
        yield line(2, (f"and {len(running) - _SHOWN_RUNNING} more", "dim"))


def _bar_line(progress: Progress, now: ProgressSnapshot, printer: Printer) -> ConsoleLine:
    """Fill the room that the numbers leave with a bar; without room, show only the numbers."""
    ended = sum(progress.finished.values())
    numbers = f" {now.done:,}/{count(now.planned, 'conversation')}"
    numbers += f" · {ended:,}/{count(progress.scenarios, 'scenario')}"
    size = min(_LONGEST_BAR, printer.console.width - len(numbers))
    if size < _SHORTEST_BAR:
        return ConsoleLine((), ((numbers.strip(),),), cut=True)
    full, empty = printer.glyphs.bar
    filled = min(size, size * now.done // now.planned) if now.planned else 0
    return ConsoleLine((), (((full * filled, "green"), (empty * (size - filled), "dim"), numbers),), cut=True)


def _facts_line(now: ProgressSnapshot) -> ConsoleLine:
    elapsed: Chunk = ((duration(now.elapsed_s * 1000), "bold"),)
    facts: list[Chunk] = [(text,) for text in (*phases(now), *time_left(now))]
    failures: list[Chunk] = [((text, STYLES[status]),) for text, status in troubles(now)]
    return ConsoleLine((), (elapsed, *facts, *failures, *((text,) for text in cost(now))), gap=" · ")
