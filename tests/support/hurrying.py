"""An event loop whose clock can be put forward: a time-out comes when the test has what it needs, not before.

Until then its time is real, and a time-out of a minute is as good as none.
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
    """`anyio.run` in such a loop."""
    return anyio.run(use, *args, backend_options={"loop_factory": _Hurrying})


def _running() -> _Hurrying:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Hurrying)
    return loop


def hurry() -> None:
    """From now on time flies, and all that is ready is done meanwhile: for limits that leave delays out."""
    loop = _running()
    if not loop.hurried:
        loop.hurried = True
        loop.step()


def leap(seconds: float) -> None:
    """It is so much later at once: for time limits that count everything."""
    _running().ahead_s += seconds


async def hurry_when(condition: Callable[[], bool]) -> None:
    """Hurry once something has come to pass that tells nobody."""
    while not condition():  # noqa: ASYNC110 - files tell nobody
        await anyio.sleep(_STEP_S)
    hurry()


def has_text(path: Path) -> bool:
    """Whether a program has written into its file."""
    return path.exists() and bool(path.read_text())
