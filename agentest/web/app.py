"""The server's routes, and its life."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from agentest.errors import UsageError
from agentest.evalset.editing.content import ChangedOnDisk
from agentest.run.by_hand import NotNow
from agentest.support.redact import Redactor, environment_secrets
from agentest.support.terminal import tell
from agentest.viewer.page import Coat, page, whole
from agentest.web.cases import add_cases
from agentest.web.compare import add_comparisons
from agentest.web.connections import Connections
from agentest.web.exchange import answered
from agentest.web.guard import Guard, Handler
from agentest.web.importing import IMPORTS
from agentest.web.jobs import ON_WAIT, add_jobs
from agentest.web.labels import add_labels
from agentest.web.live import add_live
from agentest.web.project import UI, Missing, Project
from agentest.web.runs import RUNS, add_runs
from agentest.web.saved import add_saved
from agentest.web.talk import add_talks

_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_END_S = 1.0
"""How long the server's end waits for requests that are being answered."""
_MAX_BODY_BYTES = 60_000_000
"""A case may hold files, and a set is saved as a whole where it is edited as a text."""

PARTS: tuple[Callable[[web.Application], None], ...] = (
    add_runs,
    add_saved,
    add_jobs,
    add_live,
    add_talks,
    add_cases,
    add_labels,
    add_comparisons,
)
"""What adds its routes to the application, and what ends with it."""


_STATUS: Mapping[type[Exception], int] = {Missing: 404, NotNow: 409, ChangedOnDisk: 409, UsageError: 400}
"""What is wrong with a request → what is answered; the first that fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server that answers."""

    address: str
    """The first address, with its token."""


def make_app(project: Project, guard: Guard, connections: Connections | None = None) -> web.Application:
    """The server's application."""
    noted = (connections or Connections()).middleware()
    app = web.Application(
        middlewares=[noted, guard.middleware(), errors_as_json], client_max_size=_MAX_BODY_BYTES
    )
    app[UI] = project
    app[IMPORTS] = asyncio.Lock()
    app.router.add_get("/", _page_of(guard))
    for add in PARTS:
        add(app)
    return app


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What is wrong with a request, as the page shows it."""
    try:
        return await handler(request)
    except tuple(_STATUS) as error:
        status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
        return answered({"error": str(error)}, status)
    except web.HTTPException as error:
        return answered({"error": error.reason}, error.status)
    except ConnectionError:
        raise  # the page has gone
    except Exception as error:  # noqa: BLE001 - one request may fail; the page says so, and others go on
        what = Redactor(environment_secrets(os.environ)).error(f"{type(error).__name__}: {error}")
        tell(f"agentest ui: {request.method} {request.path}: an unexpected error: {what}")
        return answered({"error": f"an unexpected error: {what}"}, 500)


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
async def serving(
    project: Project, port: int, on_wait: Callable[[int], None] = lambda _: None
) -> AsyncIterator[Served]:
    """The server, until the block ends. Raises UsageError.

    Args:
        port: 0: any that is free.
        on_wait: is told how many runs the end waits for.
    """
    sockets = _bound(port)
    guard = Guard(port=sockets[0].getsockname()[1])
    connections = Connections()
    app = make_app(project, guard, connections)
    app[ON_WAIT] = on_wait
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=_END_S)
    await runner.setup()
    try:
        async with connections.accepted(runner, sockets):
            chosen = app[RUNS].chosen
            yield Served(address=guard.address + (f"#/run?of={chosen}" if chosen else ""))
    finally:
        await runner.cleanup()


def _bound(port: int) -> list[socket.socket]:
    """Sockets of loopback and nothing else: `localhost` may mean either of the two addresses.

    Were only one of them ours, somebody else on this machine could listen at the other.
    """
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, host in _LOOPBACK:
            try:
                sock = _listening(family, host, sockets[0].getsockname()[1] if sockets else port)
            except OSError as error:
                if sockets and error.errno != errno.EADDRINUSE:
                    continue  # a machine without IPv6
                why = error.strerror or str(error)
                raise UsageError(
                    f"--port {port}: cannot listen there ({why}); choose another, or 0 for any free one"
                ) from None
            sockets.append(sock)
            stack.callback(sock.close)
        stack.pop_all()
        return sockets


def _listening(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = socket.socket(family)
    try:
        if os.name == "posix":  # elsewhere it would let others listen at the same port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
