"""The only HTTP client, for agents and models.

It has httpx's interface over aiohttp's connections, because httpx's own pool searches all its connections for
every request, which costs more than the request if there are many conversations. Callers set timeouts
(`anyio.fail_after`, from connecting to the last byte), so the client has none.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from io import BytesIO
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.abc import AbstractResolver, ResolveResult

from agentest.support.http.address_guard import AddressGuard, literal
from agentest.support.http.bodies import RawResponse, ResponseBody, headers_of
from agentest.support.http.websockets import WebSocket, connected, websocket_session

_LARGE_BYTES = 2**20


_KEEPALIVE_S = 15.0


_REMEMBERED_URLS = 10_000


_NEXT_ADDRESS_S = 0.25
"""Seconds without a connection after which a host's next address is tried in parallel."""


_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)


Headers = Sequence[tuple[str, str]]


class _GuardedResolver(AbstractResolver):
    """Resolves names and checks the results, so that the checked addresses are those connected to."""

    def __init__(self, guard: AddressGuard, resolver: AbstractResolver) -> None:
        self._guard = guard
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = await self._resolver.resolve(host, port, family)
        self._guard.check(host, [result["host"] for result in results])
        return results

    async def close(self) -> None:
        await self._resolver.close()


class _Sender:
    """Sends requests over aiohttp's connections. Errors are aiohttp's."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        resolver: AbstractResolver,
        guard: AddressGuard | None,
        proxy: str | None,
    ) -> None:
        self.session = session
        self._resolver = resolver
        self._guard = guard
        self._proxy = proxy
        self._normal: dict[str, tuple[str, Headers]] = {}
        self._sockets: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response's head. Raises RefusedAddress or httpx.InvalidURL."""
        if url not in self._normal:
            if len(self._normal) >= _REMEMBERED_URLS:
                self._normal.clear()  # addresses may contain user data
            self._normal[url] = self._checked(httpx.URL(url))
        normal, credentials = self._normal[url]
        return await self.session.request(
            method,
            normal,
            headers=_with_credentials(credentials, headers),
            data=_as_file(content),
            allow_redirects=False,
            proxy=self._proxy,
        )

    def _checked(self, url: httpx.URL) -> tuple[str, Headers]:
        """Return the URL without credentials, and a header with them.

        aiohttp refuses a user in a URL if there is an Authorization header.
        """
        if self._guard:  # names are checked when they are resolved
            self._guard.check_literal(url.host)
        if not url.userinfo:
            return str(url), ()
        said = f"{url.username}:{url.password}".encode()
        bare = str(url.copy_with(userinfo=b""))
        return bare, [("Authorization", f"Basic {base64.b64encode(said).decode()}")]

    async def websocket(self, url: str, headers: Headers, protocols: Sequence[str]) -> WebSocket:
        normal, credentials = self._checked(httpx.URL(url))
        if self._sockets is None:
            self._sockets = websocket_session(self.session.connector)
        return await connected(
            self._sockets, normal, list(_with_credentials(credentials, headers)), tuple(protocols)
        )

    async def close(self) -> None:
        if self._sockets is not None:
            await self._sockets.close()
        await self.session.close()

    async def connect(self, host: str, port: int) -> None:
        """Connect and disconnect. The name is resolved once, so the checked address is connected to."""
        addresses = await self._addresses(host, port)
        (await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1)).close()

    async def _addresses(self, host: str, port: int) -> list[AddrInfoType]:
        if literal(host) is None:
            results = await self._resolver.resolve(host, port, socket.AF_UNSPEC)
            return [_info(result) for result in results]
        if self._guard:
            self._guard.check_literal(host)
        loop = asyncio.get_running_loop()
        return list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))


def _with_credentials(credentials: Headers, headers: Headers) -> Headers:
    """Add the URL's credentials to the headers, unless they contain an Authorization header."""
    if not credentials or any(name.lower() == "authorization" for name, _ in headers):
        return headers
    return (*headers, *credentials)


def _as_file(content: bytes | None) -> bytes | BytesIO | None:
    """Wrap a large body in a file, because aiohttp would copy it into the connection's buffer and warn."""
    return BytesIO(content) if content and len(content) > _LARGE_BYTES else content


def _info(result: ResolveResult) -> AddrInfoType:
    host, port = result["host"], result["port"]
    if ":" in host:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port)


class _Transport(httpx.AsyncBaseTransport):
    """aiohttp's connections behind httpx's interface."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        headers = [(name.decode(), value.decode()) for name, value in request.headers.raw]
        raw = await self._sender.send(request.method, str(request.url), headers, request.content)
        return httpx.Response(raw.status, headers=headers_of(raw), stream=ResponseBody(raw), request=request)

    async def aclose(self) -> None:
        await self._sender.close()


class DirectResponse(httpx.Response):
    """The response to a request that was sent without an httpx.Request."""

    first_token_ms: float | None = None
    """Milliseconds until the first piece of the reply's text; None if it was not measured."""

    def __init__(self, raw: RawResponse) -> None:
        self._body = ResponseBody(raw)
        super().__init__(raw.status, headers=headers_of(raw), stream=self._body)
        self._raw = raw
        self.waited: Callable[[], float] | None = None
        """Returns the seconds since the start of the request."""

    @property
    def beginning(self) -> bytes:
        """The first few kilobytes of the body that were read."""
        return self._body.beginning

    def note_first_token(self) -> None:
        """Record that a piece of the reply's text has arrived. Only the first call counts."""
        if self.first_token_ms is None and self.waited is not None:
            self.first_token_ms = self.waited() * 1000

    @property
    def url(self) -> httpx.URL:
        return httpx.URL(str(self._raw.url))

    @property
    def held_up(self) -> float:
        """Seconds for which the responder, an application in this process, has blocked our event loop."""
        return float(getattr(self._raw, "held_up", 0.0))

    def pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the decompressed body as it arrives. Raises BadBody or CONNECTION_ERRORS."""
        return aiter(self._body)  # httpx's processing would cost more than the piece itself


class Sender(Protocol):
    """Sends requests: over connections, or to an application in this process."""

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request. The caller reads the body and closes the response."""
        ...


class Client(httpx.AsyncClient):
    """httpx's client with a shortcut for callers that need none of its features."""

    def __init__(self, sender: _Sender) -> None:
        # `verify=False` avoids creating a TLS context, because the session has its own.
        super().__init__(transport=_Transport(sender), timeout=None, verify=False)
        self._sender = sender

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send without redirects, cookies, authentication and logging, which cost more than the rest.

        The caller reads the body and closes the response. Raises CONNECTION_ERRORS or RefusedAddress.
        """
        return DirectResponse(await self._sender.send(method, url, headers, content))

    async def open_websocket(self, url: str, headers: Headers, protocols: Sequence[str] = ()) -> WebSocket:
        """Connect to ws:// or wss://, without redirects. Raises CONNECTION_ERRORS or RefusedAddress."""
        return await self._sender.websocket(url, headers, protocols)

    async def check_listening(self, host: str, port: int) -> None:
        """Connect and disconnect. Raises RefusedAddress, or CONNECTION_ERRORS if nothing listens."""
        await self._sender.connect(host, port)


def open_client(
    guard: AddressGuard | None = None,
    resolver: AbstractResolver | None = None,
    proxy: str | None = None,
) -> Client:
    """Open a client without connection limit, timeouts and redirects, in the running event loop.

    With a guard it never connects to an address that the guard refuses, and uses no proxy, because the proxy
    would resolve names. `resolver` (default: the system's) resolves the names. `proxy` (see `proxy_for`)
    applies only without a guard.
    """
    names = resolver or aiohttp.ThreadedResolver()
    names = _GuardedResolver(guard, names) if guard else names
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, resolver=names)
    # With `trust_env`, aiohttp would read ~/.netrc in a thread for every request.
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=_NO_TIMEOUT,
        auto_decompress=False,
        skip_auto_headers=("accept", "accept-encoding", "user-agent"),
    )
    return Client(_Sender(session, names, guard, None if guard else proxy))


def proxy_for(url: str) -> str | None:
    """Return the environment's proxy for a URL (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY)."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
