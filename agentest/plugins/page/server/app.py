"""The web server of `agentest ui`: its routes, error responses and lifetime."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial

from aiohttp import web

from agentest.plugins.adk.set_files import ChangedOnDisk
from agentest.plugins.page.server import json_routes as routes
from agentest.plugins.page.server.cases import add_cases
from agentest.plugins.page.server.guard import ListeningSockets, RequestGuard
from agentest.plugins.page.server.jobs import add_jobs
from agentest.plugins.page.server.labels import add_labels
from agentest.plugins.page.server.runs import add_runs
from agentest.plugins.page.server.talk import add_talks
from agentest.plugins.page.talk.talk import ActionNotPossible
from agentest.plugins.page.viewer.page import PageVariant, page, page_text
from agentest.support.errors import UsageError
from agentest.support.http.caller_guard import ConnectionLimit, Handler
from agentest.support.redaction import Redactor, environment_secrets
from agentest.support.terminal import tell

_THREADS = 32
"""Threads for file reads. With Python's default, a few searches in large runs would block everything."""
_END_S = 1.0
_MAX_BODY_BYTES = 60_000_000


_LOGGER = logging.getLogger(__name__)
_LOGGER.propagate = False  # any local program can cause messages with invalid HTTP
_LOGGER.addHandler(logging.NullHandler())
_STATUS: Mapping[type[Exception], int] = {
    routes.ItemNotFound: 404,
    ActionNotPossible: 409,
    ChangedOnDisk: 409,
    UsageError: 400,
}
"""Maps an error to its HTTP status; the first matching class counts."""


def make_app(
    project: routes.WebProject, guard: RequestGuard, connections: ConnectionLimit | None = None
) -> web.Application:
    """Create the application with all routes. `guard` checks every request."""
    tracked = (connections or ConnectionLimit()).middleware()
    app = web.Application(
        middlewares=[guard.middleware(), tracked, errors_as_json], client_max_size=_MAX_BODY_BYTES
    )
    app[routes.UI] = project
    app[routes.IMPORTS] = asyncio.Lock()
    for path, variant in (("/", PageVariant.SERVED), ("/work", PageVariant.WORKING)):
        app.router.add_get(path, partial(_page, variant, guard))
    for add in (add_runs, add_jobs, add_talks, add_cases, add_labels):
        add(app)
    return app


async def _page(variant: PageVariant, guard: RequestGuard, _: web.Request) -> web.Response:
    html_page = page(variant, "agentest")
    response = web.Response(text=page_text(html_page), content_type="text/html")
    response.headers["Content-Security-Policy"] = f"{html_page.policy}; frame-ancestors 'none'"
    name, value = guard.cookie
    response.set_cookie(name, value, httponly=True, samesite="Strict")
    return response


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors of handlers into JSON responses that the page can show."""
    try:
        return await handler(request)
    except routes.Refusal as refusal:
        return routes.reply_with_json(refusal.body, refusal.status)
    except tuple(_STATUS) as error:
        status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
        return routes.reply_with_json({"error": str(error)}, status)
    except web.HTTPException as error:
        return routes.reply_with_json({"error": error.reason}, error.status)
    except ConnectionError:  # the page closed the connection: nobody gets this
        return web.Response()
    except Exception as error:  # noqa: BLE001 - one request can fail; the page shows the error, and the server continues
        what = Redactor(environment_secrets(os.environ)).error(f"{type(error).__name__}: {error}")
        tell(f"agentest ui: {request.method} {request.path}: an unexpected error: {what}")
        return routes.reply_with_json({"error": f"an unexpected error: {what}"}, 500)


@asynccontextmanager
async def serve_on_sockets(project: routes.WebProject, listener: ListeningSockets) -> AsyncIterator[str]:
    """Run the server on open sockets until the block ends. Yields the URL to open first, with the token."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="agentest ui"))
    connections = ConnectionLimit()
    app = make_app(project, listener.guard, connections)
    runner = web.AppRunner(
        app, access_log=None, logger=_LOGGER, shutdown_timeout=_END_S, auto_decompress=False
    )
    await runner.setup()
    try:
        async with connections.accepted(runner, listener.sockets):
            yield listener.address(project)
    finally:
        await runner.cleanup()
