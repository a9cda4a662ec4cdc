"""The end of a server in this process."""

from __future__ import annotations

import asyncio

from aiohttp import web


async def stop(runner: web.AppRunner) -> None:
    """Stop a server. A connection that it has just accepted gets its handler first.

    asyncio never closes a connection that it accepts in the moment when its server closes.
    """
    for _ in range(3):
        await asyncio.sleep(0)
    await runner.cleanup()
