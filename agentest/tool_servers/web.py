"""One way to listen: on loopback, at the port that is asked for or at a free one."""

from __future__ import annotations

import errno
import logging
from contextlib import AsyncExitStack

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from agentest.errors import ConfigError

HOST = "127.0.0.1"
MAX_BODY_BYTES = 10_000_000
_GRACE_S = 1.0
_MOST_LINE_BYTES = 65_536
"""Of a URL or a header: a call with a longer one is refused before anybody can record it."""
_MOST_DRAINED_BYTES = 10 * MAX_BODY_BYTES


def _is_ours(record: logging.LogRecord) -> bool:
    """Whether a fault is ours. Who sends what is no HTTP, or packed wrongly, is told so, with status 400."""
    theirs = HttpProcessingError, web.RequestPayloadError
    return not (record.exc_info and isinstance(record.exc_info[1], theirs))


_LOGGER = logging.getLogger(__name__)
_LOGGER.addFilter(_is_ours)


def headers_of(request: web.Request) -> dict[str, str]:
    """The headers by lower-case name, the lines of one that comes in several as HTTP joins them."""
    return {name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers}


async def drain(request: web.Request) -> None:
    """Read what is left of a body that is too large, and forget it.

    Clients look for an answer when they have written all: one that comes earlier, they see as a broken
    connection. Those that write on and on are left alone.
    """
    left = _MOST_DRAINED_BYTES
    async for piece in request.content.iter_any():
        left -= len(piece)
        if left < 0:
            return


async def listen(app: web.Application, port: int | None, key: str, stack: AsyncExitStack) -> str:
    """Serve an application until the stack closes it. Returns its origin, like `http://127.0.0.1:8080`.

    Args:
        key: the key of the configuration, like `mcp_mock of agent 'shop'`, for errors.

    Raises ConfigError where the port cannot be had.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_LOGGER,
        shutdown_timeout=_GRACE_S,
        handler_cancellation=True,
        max_line_size=_MOST_LINE_BYTES,
        max_field_size=_MOST_LINE_BYTES,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, HOST, port or 0)
    try:
        await site.start()
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        problem = "is taken by another program" if taken else f"cannot be listened at ({error.strerror})"
        raise ConfigError(f"{key}: port {port} {problem}; stop that, or write another port") from None
    host, found = runner.addresses[0][:2]
    return f"http://{host}:{found}"
