"""Telling a server to stop work whose answer nobody waits for any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import anyio

from agentest.support.errors import AgentestError

_LIMIT_S = 2.0


@asynccontextmanager
async def cancelled_on_server(cancel: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Call `cancel` if the block raises or is cancelled: by a time-out, or a stopped run."""
    try:
        yield
    except BaseException:
        # Where the work has ended meanwhile, or the server cannot cancel it, the first error counts.
        with anyio.move_on_after(_LIMIT_S, shield=True), suppress(AgentestError):
            await cancel()
        raise
