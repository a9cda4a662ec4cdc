"""The web server of `agentest ui`: its routes, error responses and lifetime."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from aiohttp import web

from agentest.adk.set_files import ChangedOnDisk
from agentest.authoring.talk import ActionNotPossible
from agentest.report.viewer.page import PageVariant, page, page_text
from agentest.support.errors import UsageError
from agentest.support.http.caller_guard import ConnectionLimit, Handler
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor, environment_secrets
from agentest.support.terminal import tell
from agentest.web.cases import add_cases
from agentest.web.compare import add_comparisons
from agentest.web.guard import RequestGuard
from agentest.web.jobs import ON_WAIT, add_jobs, add_live
from agentest.web.json_routes import Refusal, reply_with_json
from agentest.web.labels import add_labels
from agentest.web.listener import ListeningSockets
from agentest.web.project import IMPORTS, UI, ItemNotFound, WebProject
from agentest.web.runs import add_runs
from agentest.web.talk import add_talks

_THREADS = 32
"""Number of threads for file reads.

Python's default is a few more than the number of CPUs, so a few
searches in large runs would block everything.
"""
_END_S = 1.0
"""Seconds that a shutdown waits for requests in progress."""
_MAX_BODY_BYTES = 60_000_000
"""A case can contain files, and editing a set as text sends the whole set."""

PARTS: tuple[Callable[[web.Application], None], ...] = (
    add_runs,
    add_jobs,
    add_live,
    add_talks,
    add_cases,
    add_labels,
    add_comparisons,
)
"""Functions that add routes to the application, and close their resources when it shuts down."""


_STATUS: Mapping[type[Exception], int] = {
    ItemNotFound: 404,
    ActionNotPossible: 409,
    ChangedOnDisk: 409,
    UsageError: 400,
}
"""Maps an error to its HTTP status; the first matching class counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A running server."""

    address: str
    """The URL to open first, with the token."""


def make_app(
    project: WebProject, guard: RequestGuard, connections: ConnectionLimit | None = None
) -> web.Application:
    """Create the application with all routes.

    Args:
        project: the project to show.
        guard: checks every request.
        connections: tracks open connections.
    """
    tracked = (connections or ConnectionLimit()).middleware()
    app = web.Application(
        middlewares=[guard.middleware(), tracked, errors_as_json], client_max_size=_MAX_BODY_BYTES
    )
    app[UI] = project
    app[IMPORTS] = asyncio.Lock()
    app.router.add_get("/", _page_of(PageVariant.SERVED, guard))
    app.router.add_get("/work", _page_of(PageVariant.WORKING, guard))
    for add in PARTS:
        add(app)
    return app


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors of handlers into JSON responses that the page can show."""
    try:
        return await handler(request)
    except Refusal as refusal:
        return reply_with_json(refusal.body, refusal.status)
    except tuple(_STATUS) as error:
        status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
        return reply_with_json({"error": str(error)}, status)
    except web.HTTPException as error:
        return reply_with_json({"error": error.reason}, error.status)
    except ConnectionError:
        raise  # the page closed the connection
    except Exception as error:  # noqa: BLE001 - one request can fail; the page shows the error, and the server continues
        what = Redactor(environment_secrets(os.environ)).error(f"{type(error).__name__}: {error}")
        tell(f"agentest ui: {request.method} {request.path}: an unexpected error: {what}")
        return reply_with_json({"error": f"an unexpected error: {what}"}, 500)


def _page_of(variant: PageVariant, guard: RequestGuard) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        html_page = page(variant, "agentest")
        response = web.Response(text=page_text(html_page), content_type="text/html")
        response.headers["Content-Security-Policy"] = f"{html_page.policy}; frame-ancestors 'none'"
        name, value = guard.cookie
        response.set_cookie(name, value, httponly=True, samesite="Strict")
        return response

    return answer


def _silent_logger() -> logging.Logger:
    """Return a logger that drops messages, because any local program can cause them with invalid HTTP."""
    logger = logging.getLogger(__name__)
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger


@asynccontextmanager
async def serve_at_port(
    project: WebProject, port: int, on_wait: Callable[[int], None] = lambda _: None
) -> AsyncIterator[RunningServer]:
    """Run the server at a port until the block ends. Raises UsageError."""
    async with serve_on_sockets(project, ListeningSockets.at(port), on_wait) as served:
        yield served


@asynccontextmanager
async def serve_on_sockets(
    project: WebProject, listener: ListeningSockets, on_wait: Callable[[int], None]
) -> AsyncIterator[RunningServer]:
    """Run the server on open sockets until the block ends.

    Args:
        project: the project to show.
        listener: the listening sockets and the guard.
        on_wait: receives the number of runs that the shutdown waits for.
    """
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="agentest ui"))
    connections = ConnectionLimit()
    app = make_app(project, listener.guard, connections)
    app[ON_WAIT] = on_wait
    runner = web.AppRunner(
        app, access_log=None, logger=_silent_logger(), shutdown_timeout=_END_S, auto_decompress=False
    )
    await runner.setup()
    try:
        async with connections.accepted(runner, listener.sockets):
            yield RunningServer(address=listener.address(project))
    finally:
        await runner.cleanup()
