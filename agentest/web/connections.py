"""Connections: how many there may be, and for how long one may say nothing.

Anybody on the machine can connect, also without a token. Who sends no whole request head in time, or comes
when there are too many, is hung up on, so that there are always descriptors left for the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import socket

from aiohttp import web
from aiohttp.typedefs import Middleware

from agentest.web.guard import Handler

_MOST = 200
_HEAD_S = 20.0


class _Refused(asyncio.Protocol):
    """For who comes when there are too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The connections of a server. `head_s`: how long the head of the first request may take to come."""

    most: int = _MOST
    head_s: float = _HEAD_S
    _silent: dict[asyncio.BaseProtocol, asyncio.TimerHandle] = field(default_factory=dict)
    """Who has not sent a request yet, and what will end that."""

    def middleware(self) -> Middleware:
        """Takes note of who has sent a request."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            if timer := self._silent.pop(request.protocol, None):
                timer.cancel()
            return await handler(request)

        return noted

    @asynccontextmanager
    async def accepted(self, runner: web.AppRunner, sockets: Sequence[socket]) -> AsyncIterator[None]:
        """Serve on these sockets until the block ends."""
        loop = asyncio.get_running_loop()
        server = runner.server
        assert server is not None

        def protocol() -> asyncio.Protocol:
            if len(server.connections) >= self.most:
                return _Refused()
            made = server()
            self._silent[made] = loop.call_later(self.head_s, self._end, made)
            return made

        listening = [await loop.create_server(protocol, sock=each) for each in sockets]
        try:
            yield
        finally:
            for each in listening:
                each.close()

    def _end(self, protocol: web.RequestHandler) -> None:
        self._silent.pop(protocol, None)
        protocol.force_close()
