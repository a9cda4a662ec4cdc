"""While something takes long, something is said: how far the run is, or what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentest.events import Emit, TimePassed
from agentest.support.text import duration

EVERY_S = 30.0
"""Seconds between two signs of life."""
_FIRST_S = 5.0
"""Seconds after which it is said what is waited for."""


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
        began, pause = anyio.current_time(), _FIRST_S
        while True:
            await anyio.sleep(pause)
            so_far = duration(round(anyio.current_time() - began) * 1000)
            say(f"waiting {what}: {so_far} so far")
            pause = EVERY_S

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
