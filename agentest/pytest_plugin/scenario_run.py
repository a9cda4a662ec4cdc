"""Run the selected items as one run, and return each item's result."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from queue import SimpleQueue

import anyio
from _pytest.skipping import evaluate_skip_marks, evaluate_xfail_marks

from agentest.cli.rerun_selection import with_fingerprints
from agentest.cli.run import forecast_of
from agentest.cli.run_output import LIVE, RunOutput, open_reporters, open_run_output
from agentest.config.fields import check_can_be_written
from agentest.domain.events import Event, Noted, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.pytest_plugin.project import Entry, PytestProject, ScenarioItem
from agentest.report.registry import Broadcast, ReporterContext
from agentest.runner.agents import speaks_of_calls
from agentest.runner.environment import limited_to_connections
from agentest.runner.plan import Unit, unrun_result
from agentest.runner.prepare import Prepared
from agentest.runner.run import RunMode
from agentest.runner.session import RunSession, Stop, settings_of
from agentest.store.runs.folder import RunKind, report_file
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.testing.run import RunNeverStarted, run_session

Key = tuple[str, str]


class PytestRuns:
    """The run of the selected items, and another run for each item that a plugin repeats."""

    def __init__(self, project: PytestProject, say: Callable[[str], object]) -> None:
        self._project = project
        self._say = say
        self._run: BackgroundRun | None = None
        self._arriving: Iterator[ScenarioResult] = iter(())
        self._results: dict[Key, ScenarioResult] = {}
        self._unread: deque[Key] = deque()  # keys of results that have arrived and were not yet returned
        self._missing: dict[Key, Unit] = {}  # units of the current run without a result
        self._begun: set[Key] = set()
        self.ended: list[BackgroundRun] = []

    def begin_all(self, items: Sequence[ScenarioItem]) -> dict[Key, ScenarioItem]:
        """Run the selected items that have not run yet, and return them by key."""
        running = {item.key: item for item in items if not self.has_begun(item) and may_run(item)}
        if running:
            settled = (item for item in items if isinstance(item.entry, ScenarioResult))
            order = {item: number for number, item in enumerate(items)}
            self.begin(sorted((*running.values(), *settled), key=order.__getitem__))
        return running

    def begin(self, items: Iterable[ScenarioItem]) -> None:
        """Run these items concurrently. Results of items that will not run are stored with them."""
        entries = [item.entry for item in items]
        units = [entry for entry in entries if isinstance(entry, Unit)]
        self._begun |= {(unit.scenario.name, unit.agent) for unit in units}
        self._arriving = chain(self._arriving, self._results_of(units, entries))

    def has_begun(self, item: ScenarioItem) -> bool:
        """Return True if the item is part of a run or does not need one."""
        return item.key in self._begun or not isinstance(item.entry, Unit)

    def next(self) -> Key | None:
        """Wait for the next result and return its key; None if there are no more."""
        if self._unread or self._receive_next():
            return self._unread.popleft()
        return None

    def result_of(self, item: ScenarioItem) -> ScenarioResult:
        """Wait for an item's result. An item whose result was already returned runs again."""
        if isinstance(item.entry, ScenarioResult):
            return item.entry
        if not self.has_begun(item):
            selected = [each for each in item.session.items if isinstance(each, ScenarioItem)]
            if item.key not in self.begin_all(selected):
                self.begin([item])
        while item.key not in self._results:
            if not self._receive_next():  # its result was already returned
                self.begin([item])
        if item.key in self._unread:
            self._unread.remove(item.key)
        return self._results.pop(item.key)

    def stop(self, *, interrupted: bool = False) -> None:
        """Stop the current run and wait until it has ended."""
        if self._run:
            if self._missing:
                self._run.stop(interrupted=interrupted)
            else:
                self._run.wait()
            self._close(self._run)

    def _receive_next(self) -> bool:
        result = next(self._arriving, None)
        if result is None:
            return False
        key = result.name, result.agent
        self._results[key] = result
        self._unread.append(key)
        return True

    def _results_of(self, units: Sequence[Unit], entries: Sequence[Entry]) -> Iterator[ScenarioResult]:

        missing = self._missing = {(unit.scenario.name, unit.agent): unit for unit in units}
        try:
            self._run = run = BackgroundRun(self._project.prepare(entries), self._say)
        except UsageError as error:
            yield from _errored(missing.values(), self._project.loaded.redact(str(error)))
            return
        run.start()
        for result in run.results():
            del missing[result.name, result.agent]
            yield result
        self._close(run)
        yield from _errored(missing.values(), _problem_message(run))

    def _close(self, run: BackgroundRun) -> None:
        self._run = None
        self.ended.append(run)


def may_run(item: ScenarioItem) -> bool:
    """Return True if pytest will run the item, so that a conversation is worth its cost."""
    try:
        if evaluate_skip_marks(item):
            return False
        expected = evaluate_xfail_marks(item)
    except Exception:  # noqa: BLE001 - pytest reports it in the item's setup and does not run the item
        return False
    return expected is None or expected.run or bool(item.config.getoption("runxfail", False))


def _problem_message(run: BackgroundRun) -> str:
    problem = run.problem
    if problem is None:
        return "the run was stopped before this scenario began"
    if isinstance(problem, UsageError):
        return str(problem)
    rows = "".join(traceback.format_exception(problem))
    return f"an unexpected error ended the run: {type(problem).__name__}: {problem}\n{rows}"


def _errored(units: Iterable[Unit], why: str) -> Iterator[ScenarioResult]:
    for number, unit in enumerate(units):
        message, each = why if number == 0 else why.partition("\n")[0], unit.scenario
        yield unrun_result(each.name, unit.agent, unit.file, each.line, message, tags=each.tags)


class BackgroundRun:
    """A run in its own thread; `results` yields each scenario's result as soon as it has finished.

    Only this thread has an event loop, because hooks of other pytest plugins must not run inside one.
    """

    def __init__(self, prepared: Prepared, say: Callable[[str], object]) -> None:
        prepared = limited_to_connections(prepared)
        self.notes: list[str] = list(prepared.notes)
        self.result: RunResult | None = None
        self.problem: BaseException | None = None  # the error that prevented or ended the run
        self.incomplete = False  # True if a requested report could not be written
        self.commands: list[str] = []  # GitHub workflow commands, to print after pytest's report
        self._prepared = prepared
        # Compare by identity, because two entries can have the same name if one of them never runs.
        self._fixed_results = {id(each) for each in prepared.plan.entries if isinstance(each, ScenarioResult)}
        self._strict = settings_of(prepared).strict
        self._amendable: dict[tuple[str, str], ScenarioResult] = {}
        """Passed scenarios that the end of the run may turn into errors."""
        self._say = say
        self._broadcast: Callable[[Event], object] = lambda _: None
        self._waiting = True
        """True while scenarios wait for the agents to start, so that notes explain the delay."""
        self._finished: SimpleQueue[ScenarioResult | None] = SimpleQueue()
        self._stop_handles: tuple[asyncio.AbstractEventLoop, Stop, anyio.CancelScope] | None = None
        self._loop_started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentest", daemon=True)

    def start(self) -> None:
        """Start the thread, and return when its event loop runs."""
        self._thread.start()
        self._loop_started.wait()

    def results(self) -> Iterator[ScenarioResult]:
        """Yield each result when it is available, until the run and the agents' servers have ended."""
        while (result := self._finished.get()) is not None:
            yield result

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def stop(self, *, interrupted: bool = False) -> None:
        """Stop the run and wait until the thread has ended."""
        if self._stop_handles:
            loop, stop, starting = self._stop_handles

            def end() -> None:
                starting.cancel()
                stop("stopped by pytest", Status.SKIPPED, interrupted=interrupted)

            with suppress(RuntimeError):  # the event loop has already ended
                loop.call_soon_threadsafe(end)
        self.wait()

    def _run(self) -> None:
        try:
            with open_output_files(self._prepared, self.commands, say=self._say, note=self._note) as files:
                self._broadcast = files.broadcast
                try:
                    anyio.run(self._converse, files)
                finally:
                    problems, self.incomplete = files.end(self.result)
                    for text in problems:
                        self._note(text)
        except RunNeverStarted:
            pass
        except BaseException as error:  # noqa: BLE001 - reported by the thread that waits
            self.problem = error
        finally:
            self._loop_started.set()
            self._finished.put(None)

    async def _converse(self, files: OutputFiles) -> None:
        stop, starting = Stop(), anyio.CancelScope()
        self._stop_handles = asyncio.get_running_loop(), stop, starting
        self._loop_started.set()
        prepared = files.prepared
        keep = prepared.request.reports.shows_conversations
        session = RunSession(
            prepared=prepared,
            settings=settings_of(prepared, keep_conversations=keep),
            emit=self._on_event,
            stop=stop,
            on_note=self._note,
        )
        source = LIVE.source(files.output)
        self.result = await run_session(session, starting, RunMode(source=source, keep_conversations=keep))

    def _on_event(self, event: Event) -> None:
        self._broadcast(event)
        match event:
            case RunStarted():
                self._waiting = False
            case ScenarioFinished() if self._may_be_amended(event.result):
                self._amendable[event.result.name, event.result.agent] = event.result
            case ScenarioFinished() if id(event.result) not in self._fixed_results:
                self._finished.put(event.result)
            case ScenarioAmended() if (event.result.name, event.result.agent) in self._amendable:
                self._amendable[event.result.name, event.result.agent] = event.result
            case RunFinished():
                for result in self._amendable.values():
                    self._finished.put(result)
                self.result = event.result
                self._waiting = True
            case Noted() if self._waiting:
                self._say(f"agentest: {event.text}")
            case Noted():
                self._note(event.text)

    def _may_be_amended(self, result: ScenarioResult) -> bool:
        units = self._prepared.plan.units if self._strict and result.verdict.passed else ()
        mine = (unit for unit in units if (unit.scenario.name, unit.agent) == (result.name, result.agent))
        unknown = self._prepared.plan.unknown_tools
        silent = not result.totals.called
        return any(unit.scope in unknown or (silent and speaks_of_calls(unit)) for unit in mine)

    def _note(self, text: str) -> None:
        self.notes.append(self._prepared.loaded.redact(text))


@dataclass(slots=True, kw_only=True)
class OutputFiles:
    """Output files of a run in progress."""

    prepared: Prepared
    broadcast: Broadcast
    output: RunOutput | None

    def end(self, result: RunResult | None) -> tuple[list[str], bool]:
        """Write everything.

        Returns messages about what could not be published, and True if a requested report is missing.
        """
        requested, failed = self.prepared.reporters, self.broadcast.failed
        written = [report for report in self.prepared.reports if report.name not in failed]
        problems = self.output.end(result, written, self.broadcast.unwritten) if self.output else []
        return problems, bool(failed & requested or (problems and any(map(report_file, requested))))


@contextmanager
def open_output_files(
    prepared: Prepared, commands: list[str], *, say: Callable[[str], object], note: Callable[[str], None]
) -> Iterator[OutputFiles]:
    """Open the output files of a run. Raises ConfigError if a report cannot be written.

    The console reporter is left out, because pytest reports the outcome.

    Args:
        commands: receives workflow commands of GitHub.
        say: prints a line immediately.
        note: stores a note to print at the end.
    """
    reports = tuple(each for each in prepared.reports if each.name != "console" or each.path)
    prepared = with_fingerprints(replace(prepared, reports=reports))
    check_can_be_written(prepared.reports)
    with open_run_output(prepared, LIVE, note) as output:
        context = ReporterContext(
            root=prepared.request.root,
            folder=prepared.output_dir,
            environ=os.environ,
            next_step=LIVE.resumed_by,
            forecast=forecast_of(prepared, RunKind.RUN),
            command=commands.append,
            tell=say,
        )
        reporters = open_reporters(prepared.reports, context, output)
        yield OutputFiles(prepared=prepared, broadcast=Broadcast(reporters, note), output=output)
