"""Stopping a run before its end."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from agentest.domain.results import Status


class Stop:
    """Stops a run before its end; the first reason counts. Finished conversations are kept.

    Args:
        on_stop: is called once, with the first reason.
    """

    def __init__(self, on_stop: Callable[[Stop], None] = lambda _: None) -> None:
        self.scope = anyio.CancelScope()
        self.called = anyio.Event()
        self._on_stop = on_stop
        self.reason: str | None = None
        self.status = Status.ERRORED
        self.interrupted = False
        self.real_tool_ran = False
        self.over = False
        """Whether all conversations are over: only a signal can still stop the run."""

    def __call__(self, reason: str, status: Status = Status.ERRORED, *, interrupted: bool = False) -> None:
        """Stop, for this reason; scenarios that had not finished get `status`."""
        if self.over and not interrupted:
            return
        first = self.reason is None
        if first:
            self.reason, self.status, self.interrupted = reason, status, interrupted
        self.scope.cancel()
        self.called.set()
        if first:
            self._on_stop(self)

    def because_of_real_tool(self, reason: str) -> None:
        """Stop because a real tool ran in place of a mock."""
        self.real_tool_ran = True
        self(reason)

    def interrupt(self) -> None:
        """Stop because the user wants it."""
        self("interrupted", interrupted=True)
