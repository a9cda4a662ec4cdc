"""Decide which requests our servers accept: those of programs, and those of permitted web pages.

Any web page can make a browser send requests to a port of this machine, and the owner of a domain can resolve
it to this machine (DNS rebinding). Browsers report the target and the origin in `Host`, `Origin` and
`Sec-Fetch-Site`; programs send only `Host`.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from functools import lru_cache, partial

from aiohttp import web
from aiohttp.typedefs import Middleware

from agentest.support.lazy_dataclasses import dataclass

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(?::(?P<port>[0-9]{1,5}))?", re.I)
_HTTP_PORT = 80
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerGuard:
    """The callers that a server accepts.

    Attributes:
        hosts: names by which the server may be called, in addition to those of loopback.
        port: the server's port, to accept only pages of the server itself. None accepts pages of this machine
            and of `hosts`, on any port.
        setting: the configuration key that permits more hosts; "" if there is none.
    """

    hosts: tuple[str, ...] = ()
    port: int | None = None
    setting: str = ""

    def middleware(self, refused: Callable[[str], web.Response]) -> Middleware:
        """Return the middleware that checks every request. `refused` creates the response with status 403."""

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            if problem := self.problem(request):
                response = refused(problem)
                response.force_close()
                return response
            return await handler(request)

        return checked

    def problem(self, request: web.Request) -> str:
        """Return why a request is refused; "" if it is not."""
        return self.host_problem(request) or self.origin_problem(request) or self.site_problem(request)

    def host_problem(self, request: web.Request) -> str:
        """Return the problem with the host that a request names; "" if there is none."""
        named = request.headers.getall("Host", [])
        if len(named) != 1:
            return f"the request must have one header Host, and has {len(named)}"
        # An absolute URL in the request line takes precedence over the header.
        for host in (named[0], request.host):
            if not _is_ours(host, self.hosts, self.port):
                known = ", ".join((*LOOPBACK, *self.hosts))
                excerpt = host[:_SHOWN_CHARS]
                return f"this server does not answer to the host {excerpt!r}, only to {known}{self._way()}"
        return ""

    def origin_problem(self, request: web.Request) -> str:
        """Return the problem with the page that sends a request; "" if there is none, or no page."""
        origins = request.headers.getall("Origin", [])
        if not origins or (len(origins) == 1 and self.allows(origins[0])):
            return ""
        excerpt = ", ".join(origins)[:_SHOWN_CHARS]
        return f"requests of pages from {excerpt!r} are refused{self._way()}"

    def site_problem(self, request: web.Request) -> str:
        """Return why a browser's request for a page of another site is refused; "" if it is not.

        Scripts of permitted pages may send requests with CORS preflight. Links, forms and images may not.
        """
        site = request.headers.get("Sec-Fetch-Site", "none")
        by_script = "Origin" in request.headers and request.headers.get("Sec-Fetch-Mode") == "cors"
        if site in ("same-origin", "none") or (by_script and self.port is None):
            return ""
        return f"requests of pages of another site are refused (Sec-Fetch-Site: {site[:_SHOWN_CHARS]})"

    def allows(self, origin: str) -> bool:
        """Return True if pages of an origin may call the server."""
        scheme, _, host = origin.lower().partition("://")
        schemes = ("http", "https") if self.port is None else ("http",)
        return scheme in schemes and _is_ours(host, self.hosts, self.port)

    def _way(self) -> str:
        return f"; {self.setting} allows more" if self.setting else ""


@lru_cache
def _is_ours(host: str, hosts: tuple[str, ...], port: int | None) -> bool:
    match = _HOST.fullmatch(host)
    if match is None or match["name"].lower() not in (*LOOPBACK, *hosts):
        return False
    return port is None or int(match["port"] or _HTTP_PORT) == port


def json_refusal(problem: str) -> web.Response:
    """Create a refusal in JSON."""
    return web.json_response({"error": problem}, status=403)


_MAX_CONNECTIONS = 200
_HEAD_S = 20.0
_IN_LINE = 100


def listening(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Open a listening socket. Port 0 chooses any free one. Raises OSError."""
    sock = socket.socket(family)
    try:
        if os.name == "posix":  # on Windows it would let others listen on the same port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(_IN_LINE)
    except OSError:
        sock.close()
        raise
    return sock


class _RefusedConnection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimit:
    """The connections of a server. `head_s` is the time limit for strangers."""

    most: int = _MAX_CONNECTIONS
    head_s: float = _HEAD_S
    _idle: dict[asyncio.BaseProtocol, asyncio.TimerHandle | None] = field(default_factory=dict)
    """Connections without a complete request, longest idle first. Timers close those that never had one."""

    def middleware(self) -> Middleware:
        """Record whose request was accepted. It runs after the guard."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            protocol = request.protocol
            if timer := self._idle.get(protocol):
                timer.cancel()  # the body has a limit of its own
                self._idle[protocol] = None
            request.content.on_eof(partial(self._is_busy, protocol))
            try:
                return await handler(request)
            finally:
                if protocol.transport is not None:
                    self._idle[protocol] = None

        return noted

    @asynccontextmanager
    async def accepted(self, runner: web.BaseRunner, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Serve on these sockets until the block ends."""
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None

        def protocol() -> asyncio.Protocol:
            if len(server.connections) >= self.most and not self._make_room():
                return _RefusedConnection()
            if len(self._idle) > 2 * self.most:  # clients have closed most of them
                for each in [p for p, timer in self._idle.items() if timer is None]:
                    if getattr(each, "transport", None) is None:
                        del self._idle[each]
            made = server()
            self._idle[made] = loop.call_later(self.head_s, self._end, made)
            return made

        servers = [await loop.create_server(protocol, sock=each) for each in sockets]
        try:
            yield
        finally:
            for each in servers:
                each.close()

    def _is_busy(self, protocol: asyncio.BaseProtocol) -> None:
        self._idle.pop(protocol, None)

    def _make_room(self) -> bool:
        for each in list(self._idle):
            connected = getattr(each, "transport", None) is not None
            self._end(each)
            if connected:
                return True
        return False

    def _end(self, protocol: asyncio.BaseProtocol) -> None:
        if timer := self._idle.pop(protocol, None):
            timer.cancel()
        assert isinstance(protocol, web.RequestHandler)
        protocol.force_close()
