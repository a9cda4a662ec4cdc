"""Limit the number and idle time of a server's connections.

Any program on the machine can connect. A connection without an accepted request belongs to a stranger. It is
closed after a while, and immediately if another connection needs its place, so strangers cannot lock out
accepted callers.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Middleware

from agentest.support.http.caller_guard import Handler

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
    """The protocol for connections above the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimit:
    """The connections of a server. `head_s` is the time limit for strangers."""

    most: int = _MAX_CONNECTIONS
    head_s: float = _HEAD_S
    _strangers: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = field(default_factory=dict)
    """Connections without an accepted request, oldest first, with the timers that close them."""

    def middleware(self) -> Middleware:
        """Record whose request was accepted. It runs after the guard."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            if timer := self._strangers.pop(request.protocol, None):
                timer.cancel()
            return await handler(request)

        return noted

    @asynccontextmanager
    async def accepted(self, runner: web.AppRunner, sockets: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Serve on these sockets until the block ends."""
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None

        def protocol() -> asyncio.Protocol:
            if len(server.connections) >= self.most and not self._make_room():
                return _RefusedConnection()
            made = server()
            self._strangers[made] = loop.call_later(self.head_s, self._end, made)
            return made

        servers = [await loop.create_server(protocol, sock=each) for each in sockets]
        try:
            yield
        finally:
            for each in servers:
                each.close()

    def _make_room(self) -> bool:
        """Close a stranger's connection. Return False if there was none."""
        for each in list(self._strangers):
            connected = getattr(each, "transport", None) is not None
            self._strangers[each].cancel()
            self._end(each)
            if connected:
                return True
        return False

    def _end(self, protocol: asyncio.BaseProtocol) -> None:
        self._strangers.pop(protocol, None)
        assert isinstance(protocol, web.RequestHandler)
        protocol.force_close()
