"""The console reporter: live progress on a terminal, plain lines otherwise."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, TextIO

from agentest.domain.events import Event, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.figures import Forecast
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.report.console.scenario import headline, scenario_lines
from agentest.report.console.summary import Example, closing_lines, comparison_table, header_lines
from agentest.report.console.text import (
    BLANK,
    STYLES,
    BlankFilter,
    ConsoleLine,
    DisplayOptions,
    Part,
    glyphs_for,
    line,
)
from agentest.report.content import NOT_PASSED, ScenarioReport
from agentest.report.progress import ProgressLogReporter
from agentest.support.files import open_text
from agentest.support.terminal import Output, clean, encodable

if TYPE_CHECKING:
    from rich.console import Console

    from agentest.report.console.printer import LiveArea, Printer
    from agentest.report.registry import ReporterContext

_PLAIN = {"NO_COLOR": "1", "TERM": "dumb"}


class PlainPrinter:
    """Writes lines to a file or a pipe, without styles and unwrapped."""

    width = None

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

    def write_part(self, part: Part) -> None:
        self._output.write(part if isinstance(part, str) else part[0])
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


def make_reporter(context: ReporterContext, path: Path | None) -> ConsoleReporter | FileConsole:
    """Create the reporter of a run."""
    display = DisplayOptions(verbosity=context.verbosity, next_step=context.next_step, rerun=context.rerun)
    if path:
        return FileConsole(path, display, case_tables=context.detailed)
    return ConsoleReporter(
        open_printer(context.environ, sys.stdout),
        display,
        case_tables=context.detailed,
        forecast=context.forecast,
    )


class ConsoleReporter:
    """Shows a run on a console.

    By default it shows failures by cause and the end of the run. In a run of few scenarios, each has a
    line.

    Args:
        console: a console of rich, or a printer; by default standard output, see `open_printer`.
        display: how much to show, and the commands that the end of the run names.
        live: show live progress; by default on an interactive terminal.
        case_tables: show the expected and the actual form of every invocation of an evaluation set.
        forecast: the expected resources of the run.
        clock: returns seconds, for durations during the run.
    """

    name = "console"
    prints_outcome = replaces_progress_log = shows_comparison = counts_conversations = True

    def __init__(
        self,
        console: Console | Printer | PlainPrinter | None = None,
        display: DisplayOptions | None = None,
        *,
        live: bool | None = None,
        case_tables: bool = False,
        forecast: Forecast | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._case_tables = case_tables
        self._printer = _printer_for(console, live)
        glyphs, width = self._printer.glyphs, self._printer.width
        self._display = replace(display or DisplayOptions(), glyphs=glyphs, width=width)
        self._quiet = self._display.verbosity < 0
        self._ranks: dict[tuple[str, str], int] = {}  # scenario and agent → the place in the plan
        self._examples: dict[tuple[str, ...], Example] = {}  # ids of causes → the first scenario with them
        self._names: dict[str, str] = {}  # each name that was cut → the whole name
        self._folded: Counter[str] = Counter()
        """The numbers of findings in scenarios that passed and that have no lines."""
        self._has_rows = True  # True if each scenario has a line of its own
        self._dots = 0
        self._forecast = forecast
        seconds = forecast.seconds if forecast else None
        self._live = self._live_area(live, seconds, clock)
        self._progress = self._live or ProgressLogReporter(self._print_text, expected_s=seconds, clock=clock)

    def _live_area(
        self, live: bool | None, expected_s: float | None, clock: Callable[[], float]
    ) -> LiveArea | None:
        printer = self._printer
        if self._quiet or isinstance(printer, PlainPrinter):
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
            self._display = replace(self._display, several_agents=several, calibrations=event.calibrations)
            self._ranks = {each[:2]: rank for rank, each in enumerate(event.planned)}
            self._has_rows = self._display.detailed or event.scenarios <= _MOST_SCENARIO_LINES
            if not self._quiet:
                self._printer.write(header_lines(event, self._display, self._forecast))
        self._progress.on_event(event)
        match event:
            case ScenarioFinished(result):
                self._show_finished(result)
            case ScenarioAmended(result, was) if was is not result.verdict.status:
                # Its own warnings were shown or counted when it finished.
                self._show_result(replace(result, conversations=(), warnings=()), amended=True)
            case RunFinished(result):
                self._show_end(result)

    def _show_finished(self, result: ScenarioResult) -> None:
        if result.unfinished and not (self._display.verbose and result.conversations):
            self._keep_example(ScenarioReport(result))
            return
        if self._quiet:
            status = result.verdict.status
            if self._dots and self._dots % _DOTS_PER_LINE == 0:
                self._printer.write([_LINE_END])
            self._printer.write_part((_DOTS[status], STYLES[status]))
            self._dots += 1
        self._show_result(result)

    def _show_end(self, result: RunResult) -> None:
        if self._dots:
            self._printer.write([_LINE_END])
        self._printer.write([BLANK])
        if result.comparison and result.scenarios:
            printer = self._printer.for_tables
            printer.write_table(comparison_table(result, self._display, printer))
            self._printer.write([BLANK])
        self._printer.write(closing_lines(result, self._display, self._examples.values(), self._folded))
        if result.explored:
            from agentest.report.console.exploration import exploration_lines

            self._printer.write([BLANK, *exploration_lines(result, self._display)])

    def _print_text(self, text: str) -> None:
        if not self._quiet:
            self._printer.write([line(0, (text, "dim"))])

    def _show_result(self, result: ScenarioResult, *, amended: bool = False) -> None:
        report = ScenarioReport(result)
        if self._display.detailed:
            self._printer.write(scenario_lines(result, self._display))
        elif report.status in NOT_PASSED:
            self._keep_example(report)
            if self._has_rows and not self._quiet:
                self._printer.write([headline(result, self._display, self._names, amended=amended)])
            self._folded["other warning"] += len(result.warnings)
        elif not self._quiet and (self._has_rows or result.attack):
            _, *findings = scenario_lines(result, self._display)
            self._printer.write([headline(result, self._display, self._names, amended=amended), *findings])
        else:
            self._folded["other warning"] += len(result.warnings)
        if self._case_tables:
            from agentest.report.console.case import detail_tables

            printer = self._printer.for_tables
            for part in detail_tables(result, self._display, printer):
                if isinstance(part, ConsoleLine):
                    printer.write([part])
                else:
                    printer.write_table(part)

    def _keep_example(self, report: ScenarioReport) -> None:
        """Store what a scenario shows, unless one before it in the plan has the same causes."""
        rank = self._ranks.setdefault(report.key[:2], len(self._ranks))
        causes = tuple(id for id, _ in report.causes) or (report.headline,)
        if causes not in self._examples or self._examples[causes].rank > rank:
            from agentest.report.console.transcript import cause_lines

            lines = {id: [*cause_lines(report, self._display, only=at)] for at, id in enumerate(causes)}
            if report.result.case:
                from agentest.report.console.case import shortfall_lines

                for each in lines.values():
                    each += shortfall_lines(report.result, self._display, most=_SHOWN_SHORTFALLS)
            self._examples[causes] = Example(report.key, rank, lines)


_DOTS = {Status.PASSED: ".", Status.FAILED: "F", Status.ERRORED: "E", Status.SKIPPED: "s"}
_DOTS_PER_LINE = 80
_LINE_END = line(0, "")
_MOST_SCENARIO_LINES = 12
_SHOWN_SHORTFALLS = 2


class FileConsole:
    """Writes the console output to a file as plain text while the run goes on."""

    name = "console"
    shows_comparison = counts_conversations = True

    def __init__(
        self, path: Path, display: DisplayOptions | None = None, *, case_tables: bool = False
    ) -> None:
        self._path = path
        self._display = display
        self._case_tables = case_tables
        self._file: TextIO | None = None
        self._reporter: ConsoleReporter | None = None

    def on_event(self, event: Event) -> None:
        """Raises OutputError."""
        if self._reporter is None:
            self._file = open_text(self._path)
            printer = open_printer(_PLAIN, self._file)
            self._reporter = ConsoleReporter(printer, self._display, case_tables=self._case_tables)
        self._reporter.on_event(event)
        if isinstance(event, RunFinished) and self._file:
            self._file.close()
