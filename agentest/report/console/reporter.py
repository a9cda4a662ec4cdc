"""The console reporter: live progress on a terminal, plain lines otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from agentest.domain.events import Event, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.forecast import Forecast
from agentest.domain.results import ScenarioResult
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.summary import closing_lines, comparison_table, header_lines
from agentest.report.console.text import BLANK, BlankFilter, ConsoleLine, DisplayOptions, glyphs_for, line
from agentest.report.progress import ProgressLogReporter
from agentest.support.files import open_text
from agentest.support.terminal import Output, clean, encodable

if TYPE_CHECKING:
    from rich.console import Console

    from agentest.report.console.printer import LiveArea, Printer

_PLAIN = {"NO_COLOR": "1", "TERM": "dumb"}
"""The environment of a console that is a file."""


class PlainPrinter:
    """Writes lines to a file or a pipe, without styles and unwrapped."""

    def __init__(self, environ: Mapping[str, str], stream: TextIO) -> None:
        self._environ, self._stream = environ, stream
        self._output = Output(stream, environ)
        self._encoding = self._output.encoding or "utf-8"
        self._once_blank = BlankFilter()
        self.glyphs = glyphs_for(self._encoding)

    def write(self, lines: Iterable[ConsoleLine]) -> None:
        """Write the lines; of several blank lines in a row, write only the first."""
        rows = [encodable(clean(each.plain), self._encoding).rstrip() for each in self._once_blank(lines)]
        if rows:
            self._output.write("\n".join(rows) + "\n")
            self._output.flush()

    @cached_property
    def for_tables(self) -> Printer:
        """The printer of tables, which need the library for terminals even in a file."""
        from agentest.report.console.printer import Printer, open_console

        return Printer(open_console({**self._environ, **_PLAIN}, self._stream), self._once_blank)


def open_printer(environ: Mapping[str, str], stream: TextIO) -> Printer | PlainPrinter:
    """Return the printer for a stream: plain for a file or a pipe, unless `FORCE_COLOR` requests colors."""
    if not stream.isatty() and not environ.get("FORCE_COLOR"):
        return PlainPrinter(environ, stream)
    from agentest.report.console.printer import Printer, open_console

    return Printer(open_console(environ, stream))


def _printer_for(
    console: Console | Printer | PlainPrinter | None, live: bool | None
) -> Printer | PlainPrinter:
    if console is None and not live:
        return open_printer(os.environ, sys.stdout)
    if isinstance(console, PlainPrinter):
        return console
    from agentest.report.console.printer import Printer, open_console

    if isinstance(console, Printer):
        return console
    return Printer(console or open_console(os.environ, sys.stdout))


class ConsoleReporter:
    """Shows a run on a console.

    Args:
        console: a console of rich, or a printer; by default standard output, see `open_printer`.
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
        console: Console | Printer | PlainPrinter | None = None,
        *,
        verbose: bool = False,
        live: bool | None = None,
        detailed: bool = False,
        next_step: str = "",
        forecast: Forecast | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._detailed = detailed
        self._printer = _printer_for(console, live)
        self._look = DisplayOptions(self._printer.glyphs, verbose, next_step=next_step)
        self._unfinished: list[ScenarioResult] = []
        """The scenarios that the end of the run shows as one count, if it ended early."""
        self._forecast = forecast
        seconds = forecast.seconds if forecast else None
        self._live = self._live_area(live, seconds, clock)
        self._progress = self._live or ProgressLogReporter(self._print_text, expected_s=seconds, clock=clock)

    def _live_area(
        self, live: bool | None, expected_s: float | None, clock: Callable[[], float]
    ) -> LiveArea | None:
        printer = self._printer
        if isinstance(printer, PlainPrinter):
            return None
        if not (printer.console.is_interactive if live is None else live):
            return None
        from agentest.report.console.printer import LiveArea

        return LiveArea(printer, expected_s=expected_s, clock=clock)

    def show(self, text: str) -> bool:
        """Show a text in the live area, if there is one. Returns True if it is visible."""
        return self._live is not None and self._live.show(text)

    def on_event(self, event: Event) -> None:
        """Show an event. If that fails, the terminal is restored."""
        try:
            self._show(event)
        except BaseException:
            if self._live:
                self._live.stop()
            raise

    def _show(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            several = len(event.agents) > 1
            self._look = replace(self._look, several_agents=several, calibrations=event.calibrations)
            self._printer.write(header_lines(event, self._forecast))
        self._progress.on_event(event)
        match event:
            case ScenarioFinished(result):
                if result.unfinished and not (self._look.verbose and result.conversations):
                    self._unfinished.append(result)
                else:
                    self._show_result(result)
            case ScenarioAmended(result, was) if was is not result.verdict.status:
                self._show_result(replace(result, conversations=()))
            case RunFinished(result):
                for scenario in [] if result.unfinished else self._unfinished:
                    self._show_result(scenario)
                self._printer.write([BLANK])
                if result.comparison and result.scenarios:
                    printer = self._printer.for_tables
                    printer.write_table(comparison_table(result, self._look, printer))
                    self._printer.write([BLANK])
                self._printer.write(closing_lines(result, self._look))

    def _print_text(self, text: str) -> None:
        self._printer.write([line(0, (text, "dim"))])

    def _show_result(self, result: ScenarioResult) -> None:
        self._printer.write(scenario_lines(result, self._look))
        if self._detailed:
            from agentest.report.console.case import detail_tables

            printer = self._printer.for_tables
            for part in detail_tables(result, self._look, printer):
                if isinstance(part, ConsoleLine):
                    printer.write([part])
                else:
                    printer.write_table(part)


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
            printer = open_printer(_PLAIN, self._file)
            self._reporter = ConsoleReporter(printer, verbose=self._verbose, detailed=self._detailed)
        self._reporter.on_event(event)
        if isinstance(event, RunFinished) and self._file:
            self._file.close()
