"""The listening sockets, and access control: only this server's page may send requests, for one user.

All users on the machine can connect to a loopback port, and any web page can make a browser do so. Each
request for data must therefore carry the token of the first address in a header, which other sites
cannot set, and name this server in `Host` and `Origin`. A cookie is not enough, because browsers send it
to all ports of the machine. The cookie set here opens only the empty page.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import secrets
import socket
from contextlib import ExitStack
from dataclasses import field
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Middleware

from agentest.plugins.page.server.json_routes import HEADERS, WebProject
from agentest.plugins.page.server.run_index import WebRuns
from agentest.support.errors import UsageError
from agentest.support.http.caller_guard import CallerGuard, Handler, json_refusal, listening
from agentest.support.lazy_dataclasses import dataclass

_BODY_S = 30.0  # seconds within which a request's body must arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGuard:
    """Checks requests to a port."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def address(self) -> str:
        """The URL to open first, for the user only."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> tuple[str, str]:
        """Name and value of the cookie that opens the empty page. The token cannot be derived from it."""
        value = hmac.new(self.token.encode(), b"page", hashlib.sha256).hexdigest()
        return f"agentest-page-{self.port}", value

    def middleware(self) -> Middleware:
        """Return the middleware that checks every request before its handler."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.method not in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
                return with_headers(web.json_response({"error": "no such method"}, status=405))
            if refusal := self._refusal(request):
                refused = with_headers(json_refusal(refusal))
                refused.force_close()
                return refused
            problem = await self._read_body(request)
            # Do not test for truth: older versions of aiohttp have empty responses that are false.
            return with_headers(problem if problem is not None else await handler(request))

        return guarded

    def _refusal(self, request: web.Request) -> str:
        callers = CallerGuard(port=self.port)
        if callers.host_problem(request):
            return "this server answers to http://127.0.0.1 and http://localhost alone"
        # A user may follow the printed link, for example from a terminal in a web page.
        opened_by_link = (
            request.method == "GET"
            and request.headers.get("Sec-Fetch-Mode") == "navigate"
            and request.headers.get("Sec-Fetch-Dest") == "document"
            and self._has_token(request)
        )
        if callers.origin_problem(request) or (callers.site_problem(request) and not opened_by_link):
            return "this server answers to its own page alone"
        if not self._is_known(request):
            return "open the address that `agentest ui` has printed: its token is missing here, or an old one"
        return ""

    def _has_token(self, request: web.Request) -> bool:
        return request.path == "/" and _equal(request.query.get("token", ""), self.token)

    def _is_known(self, request: web.Request) -> bool:
        if request.path.startswith("/api/"):
            return _equal(request.headers.get("Authorization", ""), f"Bearer {self.token}")
        name, value = self.cookie
        return self._has_token(request) or _equal(request.cookies.get(name, ""), value)

    async def _read_body(self, request: web.Request) -> web.Response | None:
        if not request.can_read_body:
            return None
        if request.content_type != "application/json":
            return web.json_response({"error": "the body must be application/json"}, status=415)
        try:
            await asyncio.wait_for(request.read(), _BODY_S)
        except TimeoutError:
            return web.json_response({"error": "the body has not come in time"}, status=408)
        except web.HTTPRequestEntityTooLarge as error:
            return web.json_response({"error": error.text}, status=error.status)
        return None


def with_headers(response: web.StreamResponse) -> web.StreamResponse:
    """Add the security headers to a response."""
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


def _equal(actual: str, wanted: str) -> bool:
    return hmac.compare_digest(actual.encode(errors="replace"), wanted.encode())


_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSockets:
    """Listening loopback sockets and the guard that checks requests.

    They exist before the slow imports of the server. Clients that connect in the meantime wait.
    """

    sockets: tuple[socket.socket, ...]
    guard: RequestGuard

    @classmethod
    def at(cls, port: int) -> Self:
        """Listen at a port of all loopback addresses, because `localhost` can mean IPv4 or IPv6.

        0 means any free port. Raises UsageError.
        """
        with ExitStack() as stack:
            sockets: list[socket.socket] = []
            for family, host in _LOOPBACK:
                try:
                    sock = listening(family, host, sockets[0].getsockname()[1] if sockets else port)
                except OSError as error:
                    if sockets and error.errno != errno.EADDRINUSE:
                        continue  # the machine has no IPv6
                    why = error.strerror or str(error)
                    raise UsageError(
                        f"--port {port}: cannot listen there ({why}); choose another, or 0 for any free one"
                    ) from None
                sockets.append(sock)
                stack.callback(sock.close)
            stack.pop_all()
        return cls(sockets=tuple(sockets), guard=RequestGuard(port=sockets[0].getsockname()[1]))

    def address(self, project: WebProject) -> str:
        """Return the URL to open first, with the token and the selected run."""
        chosen = WebRuns(project).chosen
        return self.guard.address + (f"#/run?of={chosen}" if chosen else "")
