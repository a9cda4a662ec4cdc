"""Whether the cluster's head node still answers. Without it no worker begins, and Ray would at last end this
process, with an exit status that means something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic

from agentest.scale.ray.address import host_and_port

_EVERY_S = 4.0
_LOST_AFTER_S = 40.0
"""A head node that is started again may take so long."""


@asynccontextmanager
async def watched_head(
    address: str,
    on_lost: Callable[[str], object],
    *,
    every_s: float = _EVERY_S,
    lost_after_s: float = _LOST_AFTER_S,
) -> AsyncIterator[None]:
    """Look meanwhile whether somebody answers there; `on_lost` is told once that nobody has for long."""
    task = asyncio.create_task(_watch(address, on_lost, every_s, lost_after_s))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _watch(address: str, on_lost: Callable[[str], object], every_s: float, lost_after_s: float) -> None:
    host, port = host_and_port(address)
    answered = monotonic()
    while monotonic() - answered < lost_after_s:
        await asyncio.sleep(every_s)
        if await _answers(host, port, every_s):
            answered = monotonic()
    on_lost(
        f"the head node of the Ray cluster ({host}, port {port}) has not answered for {lost_after_s:.0f} s"
    )


async def _answers(host: str, port: int, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host, port)
    except OSError:  # of which TimeoutError is one
        return False
    writer.close()
    return True
