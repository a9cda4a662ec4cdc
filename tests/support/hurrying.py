"""An event loop whose clock can be advanced: a timeout comes when the test is ready for it.

Until then time is real, and a timeout of a minute never expires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

_STEP_S = 0.01
"""Less than what time limits take for a delay of this program (`agentest.support.deadlines`)."""


class _Hurrying(asyncio.SelectorEventLoop):
    ahead_s = 0.0
    hurried = False

    def time(self) -> float:
        return super().time() + self.ahead_s

    def step(self) -> None:
        self.ahead_s += _STEP_S
        self.call_soon(self.step)


def run(use: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run with `anyio.run` in such a loop."""
    return anyio.run(use, *args, backend_options={"loop_factory": _Hurrying})


def _running() -> _Hurrying:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Hurrying)
    return loop


def hurry() -> None:
    """Advance time from now on, running everything that is ready: for limits that leave out delays."""
    loop = _running()
    if not loop.hurried:
        loop.hurried = True
        loop.step()


def leap(seconds: float) -> None:
    """Advance time at once, for time limits that count everything."""
    _running().ahead_s += seconds


async def hurry_when(condition: Callable[[], bool]) -> None:
    """Hurry once a condition without an event is true."""
    while not condition():  # noqa: ASYNC110 - files tell nobody
        await anyio.sleep(_STEP_S)
    hurry()


def has_text(path: Path) -> bool:
    """Return whether a program has written to its file."""
    return path.exists() and bool(path.read_text())
