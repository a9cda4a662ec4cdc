"""The lifespan of an ASGI application: its startup before the first request, its shutdown at the end."""

from __future__ import annotations

import asyncio
from typing import Any

from agentest.agents.asgi.exchange import App, Message, raised
from agentest.support.calling import end_tasks, ends_the_run
from agentest.support.deadlines import TimeLimit

STARTUP_S = 60.0
SHUTDOWN_S = 10.0


class CannotStart(Exception):
    """The application's startup failed, in one sentence."""


class Lifespan:
    """One application from its startup to its shutdown.

    An application that raises at once, without asking for the startup, has none: that is no error.
    """

    def __init__(self, app: App) -> None:
        self.state: dict[str, Any] = {}
        """What the startup has left for requests."""
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._asked = 0
        self._up, self._stopping, self._down = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._problem: str | None = None

    async def start(self) -> None:
        """Wait for the end of the startup. Raises CannotStart."""
        self._task = asyncio.create_task(self._run())
        try:
            with TimeLimit(STARTUP_S):
                await self._up.wait()
        except TimeoutError:
            await end_tasks([self._task])
            raise CannotStart(f"its startup did not end within {STARTUP_S:g} s") from None
        except BaseException:
            self._task.cancel()
            raise
        if self._problem is not None:
            await end_tasks([self._task])
            raise CannotStart(self._problem)

    async def stop(self) -> str | None:
        """Wait for the end of the shutdown. Returns what went wrong."""
        if self._task is None or self._task.done():
            return self._problem
        self._stopping.set()
        try:
            with TimeLimit(SHUTDOWN_S):
                await self._down.wait()
        except TimeoutError:
            self._problem = f"its shutdown did not end within {SHUTDOWN_S:g} s"
        await end_tasks([self._task])
        return self._problem

    async def _run(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        try:
            await self._app(scope, self._receive, self._send)
        except BaseException as error:  # what it raises may be anything
            if ends_the_run(error):
                raise
            if self._asked and self._problem is None:
                self._problem = raised(error)
        finally:
            self._up.set()
            self._down.set()

    async def _receive(self) -> Message:
        self._asked += 1
        if self._asked == 1:
            return {"type": "lifespan.startup"}
        await self._stopping.wait()
        if self._asked == 2:
            return {"type": "lifespan.shutdown"}
        await asyncio.Event().wait()  # there is nothing more to come
        raise AssertionError("unreachable")

    async def _send(self, message: Message) -> None:
        kind, _, how = str(message["type"]).removeprefix("lifespan.").partition(".")
        if how == "failed":
            # Frameworks send a whole traceback; its last line is the exception.
            lines = str(message.get("message") or "").strip().splitlines()
            self._problem = f"its {kind} failed: {lines[-1] if lines else 'it does not say why'}"
        (self._up if kind == "startup" else self._down).set()
