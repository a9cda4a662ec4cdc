"""An event loop whose clock moves only when every task waits."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import anyio


class _FakeTime(selectors.DefaultSelector):
    """Moves the clock instead of waiting. Waiting for something that never comes is an error."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            assert timeout is not None, "everybody waits and nobody will wake them"
            self.now += timeout
        return events


class _FakeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._fake = _FakeTime()
        super().__init__(self._fake)

    def time(self) -> float:
        return self._fake.now


def run(use: Callable[[], Awaitable[None]]) -> None:
    """Run with simulated time, which passes only in sleeps."""
    anyio.run(use, backend_options={"loop_factory": _FakeLoop})
