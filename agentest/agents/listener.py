"""Serve an application on loopback, at a configured or a free port, for the duration of a run."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from agentest.config.agents.companion_servers import CompanionServer
from agentest.support.errors import ConfigError, OwnFault
from agentest.support.http.caller_guard import CallerGuard, ConnectionLimit, Handler, json_refusal, listening

HOST = "127.0.0.1"
MAX_BODY_BYTES = 10_000_000
CONNECTION_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Headers about one connection, which are not passed on over another."""
OnFault = Callable[[web.Request, str], Awaitable[None]]
_GRACE_S = 1.0
_LINGER_S = 2.0  # how long a refused client may write on, because many read the answer only after that
_MOST_LINE_BYTES = 65_536
"""The maximum bytes of a URL or a header; a call with a longer one is refused and cannot be recorded."""
_MOST_CONNECTIONS = 1000
_MOST_NOTES = 3


def _is_ours(record: logging.LogRecord) -> bool:
    theirs = HttpProcessingError, web.RequestPayloadError
    return not (record.exc_info and isinstance(record.exc_info[1], theirs))


_LOGGER = logging.getLogger(__name__)
_LOGGER.addFilter(_is_ours)


def headers_of(request: web.Request) -> dict[str, str]:
    """Return the headers by lower-case name; repeated headers are joined as HTTP specifies."""
    return {name.lower(): ", ".join(request.headers.getall(name)) for name in request.headers}


def callers_of(settings: CompanionServer, key: str) -> CallerGuard:
    """Return the callers that a server accepts."""
    return CallerGuard(hosts=settings.allowed_hosts, setting=f"`allowed_hosts` of {key}")


async def listen(
    app: web.Application | Handler,
    settings: CompanionServer,
    key: str,
    stack: AsyncExitStack,
    on_note: Callable[[str], None],
    refused: Callable[[str], web.Response] = json_refusal,
    on_fault: OnFault | None = None,
) -> str:
    """Serve an application until the stack closes it. Returns its origin, like `http://127.0.0.1:8080`.

    Args:
        app: a handler takes every request, without the costs of routes.
        key: the key of the configuration, like `mcp_mock of agent 'shop'`, for errors.
        on_note: receives a note about the first requests that are refused because of their origin.
        refused: makes the response to them, given the reason.
        on_fault: receives requests whose handler raised, with the problem; it ends their conversations.

    Raises ConfigError if the port is not available.
    """
    noted: set[str] = set()

    def refuse(problem: str) -> web.Response:
        if problem not in noted and len(noted) < _MOST_NOTES:
            noted.add(problem)
            on_note(f"{key} refused a request, which no report counts as a call: {problem}")
        return refused(problem)

    connections = ConnectionLimit(most=_MOST_CONNECTIONS)
    guard = callers_of(settings, key).middleware(refuse)
    around = (guard, connections.middleware(), _faults(key, on_note, on_fault))
    options: dict[str, Any] = {
        "access_log": None,
        "logger": _LOGGER,
        "handler_cancellation": True,
        "auto_decompress": False,
        "lingering_time": _LINGER_S,
        "max_line_size": _MOST_LINE_BYTES,
        "max_field_size": _MOST_LINE_BYTES,
    }
    runner: web.BaseRunner
    if isinstance(app, web.Application):
        app.middlewares[:0] = around
        runner = web.AppRunner(app, shutdown_timeout=_GRACE_S, **options)
    else:
        handler: Any = app
        for each in reversed(around):
            handler = partial(each, handler=handler)
        runner = web.ServerRunner(web.Server(handler, **options), shutdown_timeout=_GRACE_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    try:
        sock = listening(socket.AF_INET, HOST, settings.port or 0)
    except OSError as error:
        is_taken = error.errno == errno.EADDRINUSE
        problem = "is taken by another program" if is_taken else f"cannot be listened at ({error.strerror})"
        raise ConfigError(
            f"{key}: port {settings.port} {problem}; stop that, or write another port"
        ) from None
    await stack.enter_async_context(connections.accepted(runner, [sock]))
    host, bound_port = sock.getsockname()
    return f"http://{host}:{bound_port}"


def _faults(key: str, on_note: Callable[[str], None], on_fault: OnFault | None) -> Middleware:
    @web.middleware
    async def reported(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except (web.HTTPException, HttpProcessingError, web.RequestPayloadError, ConnectionError):
            raise
        except Exception as error:  # noqa: BLE001 - ours, whatever it is: it must not become the agent's failure
            problem = str(OwnFault.of(error, key))
            on_note(problem)
            if on_fault:
                await on_fault(request, problem)
            response = web.json_response({"error": problem}, status=500)
        if response.status == 413 or not request.content.is_eof():
            response.force_close()  # a body was only read in part, and the rest is not needed
        return response

    return reported
