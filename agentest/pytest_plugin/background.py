"""A run that goes on beside pytest: in a thread of its own, while the main thread waits for its results."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue

import anyio

from agentest.events import Event, Noted, RunFinished, ScenarioFinished
from agentest.results import RunResult, ScenarioResult, Status
from agentest.run.prepare import Prepared
from agentest.run.session import Session
from agentest.run.settings import settings_of
from agentest.run.stop import Stop
from agentest.testing.run import NeverBegan, run_session


class BackgroundRun:
    """A run in a thread. `results` gives each scenario's result when it has finished.

    The thread alone has the event loop: hooks of pytest's plugins are called where none runs.
    """

    def __init__(self, prepared: Prepared) -> None:
        self.notes: list[str] = list(prepared.notes)
        """What the user should know."""
        self.result: RunResult | None = None
        """The whole run, once it has ended."""
        self.problem: BaseException | None = None
        """Why the run could not begin, or broke off."""
        self._prepared = prepared
        self._finished: SimpleQueue[ScenarioResult | None] = SimpleQueue()
        self._ending: tuple[asyncio.AbstractEventLoop, Stop, anyio.CancelScope] | None = None
        """What ends the run, once there is an event loop."""
        self._looping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agentest", daemon=True)

    def start(self) -> None:
        """Start the run."""
        self._thread.start()
        self._looping.wait()

    def results(self) -> Iterator[ScenarioResult]:
        """The results, each when it is there. Ends when the agents' servers have ended, too."""
        while (result := self._finished.get()) is not None:
            yield result

    def stop(self, *, interrupted: bool = False) -> None:
        """Stop the run and wait until all that it had started is gone."""
        if self._ending:
            loop, stop, starting = self._ending

            def end() -> None:
                starting.cancel()
                stop("stopped by pytest", Status.SKIPPED, interrupted=interrupted)

            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(end)
        self._thread.join()

    def _run(self) -> None:
        try:
            anyio.run(self._converse)
        except NeverBegan:
            pass
        except BaseException as error:  # noqa: BLE001 - the thread that waits is told
            self.problem = error
        finally:
            self._looping.set()
            self._finished.put(None)

    async def _converse(self) -> None:
        stop, starting = Stop(), anyio.CancelScope()
        self._ending = asyncio.get_running_loop(), stop, starting
        self._looping.set()
        prepared = self._prepared
        options, keep = prepared.request.options, prepared.request.verbose
        session = Session(
            prepared=prepared,
            settings=settings_of(prepared.loaded.config, options, keep_conversations=keep),
            emit=self._on_event,
            stop=stop,
            on_note=self.notes.append,
        )
        self.result = await run_session(session, starting)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            self._finished.put(event.result)
        elif isinstance(event, RunFinished):
            self.result = event.result
        elif isinstance(event, Noted):
            self.notes.append(event.text)
