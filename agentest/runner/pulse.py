"""While something takes long, something is said: how far the run is, or what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentest.domain.events import Emit, TimePassed
from agentest.support.reminders import EVERY_S, pauses


@asynccontextmanager
async def ticking(emit: Emit, every_s: float = EVERY_S) -> AsyncIterator[None]:
    """A block in which `TimePassed` is reported now and then, whatever happens or does not happen."""

    async def tick() -> None:
        while True:
            await anyio.sleep(every_s)
            emit(TimePassed())

    async with _beside(tick):
        yield


@asynccontextmanager
async def awaited(what: str, say: Callable[[str], object]) -> AsyncIterator[None]:
    """A block that may take long: after some seconds `say` receives what is waited for, and again later.

    Args:
        what: "for the agent's server to answer at http://…".
    """

    async def remind() -> None:
        for pause, passed in pauses():
            await anyio.sleep(pause)
            say(f"waiting {what}: {passed:.0f} s so far")

    async with _beside(remind):
        yield


@asynccontextmanager
async def _beside(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """A block beside which some work goes on. No task group: it would wrap what the block raises."""
    task = asyncio.create_task(work())
    try:
        yield
    finally:
        task.cancel()
