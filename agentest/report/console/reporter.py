"""The console reporter: live progress on a terminal, plain lines anywhere else."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import IO, Literal, TextIO, cast

from rich.console import Console, Group
from rich.live import Live

from agentest.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
    TurnFinished,
)
from agentest.report.console.case import detail_tables
from agentest.report.console.scenario import scenario_lines
from agentest.report.console.summary import closing_lines, comparison_table, header_lines
from agentest.report.console.text import BLANK, STYLES, Line, Look, Part, Printer, line
from agentest.results import RunResult, ScenarioResult, Status
from agentest.support.files import open_text
from agentest.support.terminal import Output
from agentest.support.text import count, duration

_SHOWN_RUNNING = 5
_BAR = 20
_REFRESHES_PER_SECOND = 8
_PLAIN = {"NO_COLOR": "1", "TERM": "dumb"}
"""The environment of a console that is a file."""


def make_console_reporter(
    environ: Mapping[str, str], verbose: bool = False, file: TextIO | None = None, *, detailed: bool = False
) -> ConsoleReporter:
    """A reporter on standard output as the environment wants it. `CI` stops what moves."""
    stream = file or sys.stdout
    live = stream.isatty() and environ.get("TERM") != "dumb" and environ.get("CI", "") in ("", "0", "false")
    console = open_console(environ, stream, live=live)
    return ConsoleReporter(console, verbose=verbose, live=live, detailed=detailed)


def open_console(environ: Mapping[str, str], stream: TextIO, *, live: bool = False) -> Console:
    """A console as the environment wants it.

    `NO_COLOR` takes colours away, `FORCE_COLOR` gives them to a pipe. Off a terminal lines are neither
    wrapped nor cut.
    """
    terminal = stream.isatty()
    forced = environ.get("FORCE_COLOR")
    colourless = bool(environ.get("NO_COLOR")) or forced in ("0", "false") or environ.get("TERM") == "dumb"
    colours: Literal["auto"] | None = None if colourless else "auto"
    return Console(
        file=cast("IO[str]", Output(stream, environ)),
        color_system=colours,
        force_terminal=terminal or (bool(forced) and not colourless),
        force_interactive=live,
        force_jupyter=False,
        soft_wrap=not terminal,
    )


class ConsoleReporter:
    """Shows a run on a console.

    Args:
        live: show progress that moves; by default on a terminal.
        detailed: show every invocation of an evaluation set beside what was expected.
    """

    name = "console"

    def __init__(
        self, console: Console, *, verbose: bool = False, live: bool | None = None, detailed: bool = False
    ) -> None:
        self._console = console
        self._detailed = detailed
        self._printer = Printer(console)
        self._look = Look(self._printer.glyphs, verbose)
        moving = console.is_terminal and not console.is_dumb_terminal if live is None else live
        self._live = _LiveArea(self._printer) if moving else None

    def on_event(self, event: Event) -> None:
        """Show an event. If that fails, the terminal is left in order."""
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
            self._printer.write(header_lines(event))
        if self._live:
            self._live.on_event(event)
        if isinstance(event, ScenarioFinished):
            self._tell(event.result)
        elif isinstance(event, RunFinished):
            self._finish(event.result)

    def _tell(self, result: ScenarioResult) -> None:
        self._printer.write(scenario_lines(result, self._look))
        for part in detail_tables(result, self._look, self._printer) if self._detailed else ():
            if isinstance(part, Line):
                self._printer.write([part])
            else:
                self._printer.write_table(part)

    def _finish(self, result: RunResult) -> None:
        self._printer.write([BLANK])
        if result.comparison and result.scenarios:
            self._printer.write_table(comparison_table(result, self._look, self._printer))
            self._printer.write([BLANK])
        self._printer.write(closing_lines(result, self._look))


class FileConsole:
    """Writes what the console would show to a file, as plain text, while the run goes on."""

    name = "console"

    def __init__(self, path: Path, *, verbose: bool = False, detailed: bool = False) -> None:
        self._path = path
        self._options = {"verbose": verbose, "detailed": detailed}
        self._file: TextIO | None = None
        self._reporter: ConsoleReporter | None = None

    def on_event(self, event: Event) -> None:
        """Raises OutputError."""
        if self._reporter is None:
            self._file = open_text(self._path)
            self._reporter = make_console_reporter(_PLAIN, file=self._file, **self._options)
        self._reporter.on_event(event)
        if isinstance(event, RunFinished) and self._file:
            self._file.close()


class _LiveArea:
    """What is going on, in a few lines at the bottom of the terminal."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._progress = Progress()
        self._began = monotonic()
        # Live draws this object anew with whatever is printed above it.
        self._live = Live(
            self, console=printer.console, refresh_per_second=_REFRESHES_PER_SECOND, transient=True
        )

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._began = monotonic()
            self._progress.on_event(event)
            # Live hides the cursor; a run that dies without its last event must give it back.
            atexit.register(self.stop)
            self._live.start()
        elif isinstance(event, RunFinished):
            self.stop()
        else:
            self._progress.on_event(event)

    def stop(self) -> None:
        self._live.stop()
        atexit.unregister(self.stop)

    def __rich__(self) -> Group:
        lines = self._progress.lines(self._printer, (monotonic() - self._began) * 1000)
        return Group(*(row for each in lines for row in self._printer.rows(each)))


class Progress:
    """How far a run has come."""

    def __init__(self) -> None:
        self.scenarios = 0
        self.conversations = 0
        self.finished: dict[Status, int] = dict.fromkeys(Status, 0)
        self.held = 0
        self.turns = 0
        self.running: dict[tuple[str, str], tuple[int, int]] = {}
        self.several_agents = False

    def on_event(self, event: Event) -> None:
        """Count what has happened."""
        match event:
            case RunStarted():
                self.scenarios, self.conversations = event.scenarios, event.conversations
                self.several_agents = len(event.agents) > 1
            case ScenarioStarted():
                self.running[event.name, event.agent] = (0, event.conversations)
            case TurnFinished():
                self.turns += 1
            case ConversationFinished():
                self.held += 1
                done, total = self.running.get((event.name, event.agent), (0, 1))
                self.running[event.name, event.agent] = (done + 1, total)
            case ScenarioFinished():
                _, most = self.running.pop((event.result.name, event.result.agent), (0, 0))
                if event.result.repeat:  # of at most so many, the others are not held any more
                    self.conversations -= most - event.result.totals.conversations
                self.finished[event.result.verdict.status] += 1

    def lines(self, printer: Printer, elapsed_ms: float) -> Iterator[Line]:
        """The live area: totals, and the names of some scenarios that are under way."""
        done = sum(self.finished.values())
        full, empty = printer.glyphs.bar
        filled = _BAR * self.held // self.conversations if self.conversations else 0
        facts: list[Part] = [
            (full * filled, "green"),
            (empty * (_BAR - filled), "dim"),
            f" {done}/{self.scenarios} scenarios · {self.held}/{self.conversations} conversations",
            f" · {count(self.turns, 'turn')}",
        ]
        for status in (Status.FAILED, Status.ERRORED):
            if self.finished[status]:
                facts += [" · ", (f"{self.finished[status]} {status}", STYLES[status])]
        if printer.console.width < 100:
            facts = facts[2:]
        yield Line((), (((duration(elapsed_ms), "bold"),), tuple(facts)), cut=True)
        # The terminal is drawn by another thread: it looks at a copy.
        running = list(self.running.items())
        for (name, agent), (held, total) in running[:_SHOWN_RUNNING]:
            of = f" [{agent}]" if self.several_agents else ""
            yield Line((f"  {held}/{total}  ",), (((f"{name}{of}", "dim"),),), cut=True)
        if len(running) > _SHOWN_RUNNING:
            yield line(2, (f"and {len(running) - _SHOWN_RUNNING} more", "dim"))
