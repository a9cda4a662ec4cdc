"""Whether this process still belongs to the cluster: the head node answers, and takes our node for alive.

Otherwise no worker begins, and Ray would at last end this process, with a status that means something else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import anyio

from agentest.workers.ray.address import host_and_port

TAKEN_FOR_DEAD = (
    "the Ray cluster takes this process for dead, as the node died that it was connected to (its raylet was "
    "killed, or did not answer)"
)
_EVERY_S = 4.0
_LOST_AFTER_S = 40.0
"""A head node that is started again may take so long."""


@asynccontextmanager
async def watched_membership(
    head: str,
    is_node_dead: Callable[[], bool],
    on_lost: Callable[[str], object],
    *,
    every_s: float = _EVERY_S,
    lost_after_s: float = _LOST_AFTER_S,
) -> AsyncIterator[None]:
    """Watch meanwhile that this process belongs to the cluster; report to `on_lost` that it no longer does.

    Args:
        head: the address of the head node.
        is_node_dead: whether the cluster has declared the node dead that we are connected to. It may block.
    """
    watches = (_watch_head(head, on_lost, every_s, lost_after_s), _watch_node(is_node_dead, on_lost, every_s))
    tasks = [asyncio.create_task(watch) for watch in watches]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _watch_node(
    is_node_dead: Callable[[], bool], on_lost: Callable[[str], object], every_s: float
) -> None:
    is_dead = False
    while not is_dead:
        await anyio.sleep(every_s)
        is_dead = await anyio.to_thread.run_sync(is_node_dead, abandon_on_cancel=True)
    on_lost(TAKEN_FOR_DEAD)


async def _watch_head(
    address: str, on_lost: Callable[[str], object], every_s: float, lost_after_s: float
) -> None:
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
