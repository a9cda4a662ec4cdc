"""The server's routes, and its life."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from agentest.errors import UsageError
from agentest.viewer.page import Coat, page, whole
from agentest.web import cases, labels, runs, talk
from agentest.web.guard import Guard, Handler
from agentest.web.project import UI, Project

_HOST = "127.0.0.1"
_MAX_BODY_BYTES = 60_000_000
"""A case may hold files, and a set is saved as a whole where it is edited as a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that answers."""

    address: str
    """The first address, with its token."""


def make_app(project: Project, guard: Guard) -> web.Application:
    """The server's application."""
    app = web.Application(middlewares=[guard.middleware(), errors_as_json], client_max_size=_MAX_BODY_BYTES)
    app[UI] = project
    app.router.add_get("/", _page_of(guard))
    app.add_routes(runs.routes())
    app.add_routes(labels.routes())
    talk.add_talks(app)
    app.add_routes(cases.routes())
    return app


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What is wrong with a request, as the page shows it."""
    try:
        return await handler(request)
    except UsageError as error:
        return web.json_response({"error": str(error)}, status=400)
    except web.HTTPException as error:
        return web.json_response({"error": error.reason}, status=error.status)


def _page_of(guard: Guard) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        del request
        shown = page(Coat.SERVED, "agentest")
        response = web.Response(text=whole(shown), content_type="text/html")
        response.headers["Content-Security-Policy"] = f"{shown.policy}; frame-ancestors 'none'"
        name, value = guard.cookie
        response.set_cookie(name, value, httponly=True, samesite="Strict")
        return response

    return answer


@asynccontextmanager
async def serving(project: Project, port: int) -> AsyncIterator[Served]:
    """The server, until the block ends. `port` 0: any that is free. Raises UsageError."""
    sock = _bound(port)
    guard = Guard(port=sock.getsockname()[1])
    runner = web.AppRunner(make_app(project, guard), access_log=None)
    await runner.setup()
    try:
        await web.SockSite(runner, sock).start()
        yield Served(address=guard.address)
    finally:
        await runner.cleanup()


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((_HOST, port))
    except OSError as error:
        sock.close()
        raise UsageError(
            f"--port {port}: cannot listen there ({error.strerror}); choose another, or 0 for any free one"
        ) from None
    return sock
