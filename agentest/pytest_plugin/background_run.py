"""A run that goes on beside pytest: in a thread of its own, while the main thread waits for its results."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

import anyio

from agentest.cli.forecast import forecast_of
from agentest.cli.run_output import LATEST, Keeping, kept
from agentest.domain.events import (
    Event,
    Noted,
    RunFinished,
    RunStarted,
    ScenarioAmended,
    ScenarioFinished,
    WantedReport,
)
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.report.registry import Broadcast, Setting, make_reporters
from agentest.runner.environment import check_can_be_written, fitted, output_dir
from agentest.runner.fingerprints import with_fingerprints
from agentest.runner.prepare import Prepared
from agentest.runner.run import Mode
from agentest.runner.session import Session, Stop, settings_of
from agentest.runner.sources import LiveAgents
from agentest.store.runs.folder import FILES
from agentest.store.runs.record import RunKind
from agentest.testing.run import NeverBegan, run_session


class BackgroundRun:
    """A run in a thread. `results` gives each scenario's result when it has finished.

    The thread alone has the event loop: hooks of pytest's plugins are called where none runs.

    Args:
        say: receives each line for whoever waits.
    """

    def __init__(self, prepared: Prepared, say: Callable[[str], object]) -> None:
        prepared = fitted(prepared)
        self.notes: list[str] = list(prepared.notes)
        """What the user should know."""
        self.result: RunResult | None = None
        """The whole run, once it has ended."""
        self.problem: BaseException | None = None
        """Why the run could not begin, or broke off."""
        self._prepared = prepared
        # Another scenario may have the name of one that never runs.
        self._settled = {id(each) for each in prepared.plan.entries if isinstance(each, ScenarioResult)}
        self._strict = settings_of(prepared.loaded.config, prepared.request.options).strict
        self._in_question: dict[tuple[str, str], ScenarioResult] = {}
        """Scenarios that passed, and that the end of the run may yet make errored."""
        self._say = say
        self._records: Records | None = None
        self._waiting = True
        """Whether scenarios wait for the agents: whatever is said then tells why nothing happens."""
        self._finished: SimpleQueue[ScenarioResult | None] = SimpleQueue()
        self._ending: tuple[asyncio.AbstractEventLoop, Stop, anyio.CancelScope] | None = None
        """What ends the run, once there is an event loop."""
        self._looping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentest", daemon=True)

    @property
    def incomplete(self) -> bool:
        """Whether a report that was asked for could not be written."""
        return self._records is not None and self._records.incomplete

    @property
    def commands(self) -> list[str]:
        """Workflow commands of GitHub, to be printed when pytest has reported."""
        return self._records.commands if self._records else []

    def start(self) -> None:
        """Start the run."""
        self._thread.start()
        self._looping.wait()

    def results(self) -> Iterator[ScenarioResult]:
        """The results, each when it is there. Ends when the agents' servers have ended, too."""
        while (result := self._finished.get()) is not None:
            yield result

    def wait(self) -> None:
        """Wait until all that it had started is gone."""
        self._thread.join()

    def stop(self, *, interrupted: bool = False) -> None:
        """Stop the run and wait until all that it had started is gone."""
        if self._ending:
            loop, stop, starting = self._ending

            def end() -> None:
                starting.cancel()
                stop("stopped by pytest", Status.SKIPPED, interrupted=interrupted)

            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(end)
        self.wait()

    def _run(self) -> None:
        try:
            with records(self._prepared, Say(at_once=self._say, later=self._note)) as kept:
                self._records = kept
                try:
                    anyio.run(self._converse, kept)
                finally:
                    for text in kept.end(self.result):
                        self._note(text)
        except NeverBegan:
            pass
        except BaseException as error:  # noqa: BLE001 - the thread that waits is told
            self.problem = error
        finally:
            self._looping.set()
            self._finished.put(None)

    async def _converse(self, kept: Records) -> None:
        stop, starting = Stop(), anyio.CancelScope()
        self._ending = asyncio.get_running_loop(), stop, starting
        self._looping.set()
        prepared = kept.prepared
        options, keep = prepared.request.options, prepared.request.verbose
        session = Session(
            prepared=prepared,
            settings=settings_of(prepared.loaded.config, options, keep_conversations=keep),
            emit=self._on_event,
            stop=stop,
            on_note=self._note,
        )
        source = LiveAgents(keep_span=kept.keeping.keep_span if kept.keeping else None)
        self.result = await run_session(session, starting, Mode(source=source, keep_conversations=keep))

    def _on_event(self, event: Event) -> None:
        if self._records:
            self._records.broadcast(event)
        match event:
            case RunStarted():
                self._waiting = False
            case ScenarioFinished() if self._may_be_amended(event.result):
                self._in_question[event.result.name, event.result.agent] = event.result
            case ScenarioFinished() if id(event.result) not in self._settled:
                self._finished.put(event.result)
            case ScenarioAmended() if (event.result.name, event.result.agent) in self._in_question:
                self._in_question[event.result.name, event.result.agent] = event.result
            case RunFinished():
                for result in self._in_question.values():
                    self._finished.put(result)
                self.result = event.result
                self._waiting = True
            case Noted() if self._waiting:
                self._say(f"agentest: {event.text}")
            case Noted():
                self._note(event.text)

    def _may_be_amended(self, result: ScenarioResult) -> bool:
        """Whether the end of the run may yet turn a pass into an error."""
        units = self._prepared.plan.units if self._strict and result.verdict.passed else ()
        mine = (unit for unit in units if (unit.scenario.name, unit.agent) == (result.name, result.agent))
        unknown = self._prepared.plan.unknown_tools
        return any(unit.scope in unknown or not result.totals.called for unit in mine)

    def _note(self, text: str) -> None:
        self.notes.append(self._prepared.loaded.redact(text))


_RESULTS = WantedReport("json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Where words go while pytest has the terminal."""

    at_once: Callable[[str], object]
    """Receives a line for whoever waits."""
    later: Callable[[str], None]
    """Receives what the user should know at the end."""


@dataclass(slots=True, kw_only=True)
class Records:
    """What is written of a run while it lasts."""

    prepared: Prepared
    broadcast: Broadcast
    keeping: Keeping | None
    commands: list[str]
    """Workflow commands of GitHub, to be printed when pytest has reported."""
    incomplete: bool = False
    """Whether a report that was asked for is missing, or lies at one place only."""

    def end(self, result: RunResult | None) -> list[str]:
        """Have everything written. Returns what could not be published."""
        self.broadcast.finish()
        wanted = self.prepared.reports
        written = [report for report in wanted if report.name not in self.broadcast.failed]
        problems = list(self.keeping.end(result, written)) if self.keeping else []
        asked_for = self.prepared.reporters & set(FILES)
        self.incomplete = bool(self.broadcast.failed & self.prepared.reporters or (problems and asked_for))
        return problems


@contextmanager
def records(prepared: Prepared, say: Say) -> Iterator[Records]:
    """What keeps a run that begins, until the block ends. Raises ConfigError for a report without a place.

    The console's report is left out: pytest's stands in its place.
    """
    prepared = with_fingerprints(replace(prepared, reports=tuple(filter(_beside_pytest, prepared.reports))))
    check_can_be_written(prepared.reports)
    with kept(prepared, RunKind.RUN, LATEST, say.later, os.environ, spans=True) as keeping:
        commands: list[str] = []
        results = () if keeping is None or _RESULTS in prepared.reports else (_RESULTS,)
        setting = _setting(prepared, keeping, commands.append, say)
        reporters = make_reporters((*prepared.reports, *results), setting)
        yield Records(
            prepared=prepared,
            broadcast=Broadcast(reporters, say.later),
            keeping=keeping,
            commands=commands,
        )


def _beside_pytest(report: WantedReport) -> bool:
    return report.name != "console" or report.path is not None


def _setting(
    prepared: Prepared, keeping: Keeping | None, command: Callable[[str], None], say: Say
) -> Setting:
    folder = keeping.folder.path if keeping else output_dir(prepared)
    return Setting(
        root=prepared.request.root,
        folder=folder,
        run_id=keeping.folder.id if keeping else "",
        environ=os.environ,
        next_step="agentest run --resume",
        forecast=forecast_of(prepared, RunKind.RUN),
        journal=keeping.journal if keeping else None,
        record=keeping.record if keeping else None,
        command=command,
        tell=say.at_once,
    )
