"""The only HTTP client, for agents and models.

It uses aiohttp's connections and parser, but not its sessions: their request, writer, payload and response
objects cost more than the request itself if there are many conversations. Callers set timeouts (`TimeLimit`,
from connecting to the last byte), so the client has none. It follows no redirects and stores no cookies.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from anyio.lowlevel import checkpoint
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.bodies import (
    MAX_BODY_BYTES,
    BadBody,
    BodyTooLarge,
    CutData,
    DecompressionError,
    RawResponse,
    UnusableBody,
    decompressor_for,
)
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.support.http.websockets import WebSocket

_KEEPALIVE_S = 15.0
_REMEMBERED_REQUESTS = 1000
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods whose requests need no Content-Length if they have no body."""
_IDEMPOTENT = _WITHOUT_BODY | {"PUT", "DELETE"}
_INFORMATIONAL = frozenset({*range(100, 200)} - {101})
"""Status codes of heads before the response's. 101 is a response: the protocol was switched."""
_SCHEMES = ("http", "https", "ws", "wss")
_UNPRINTABLE = re.compile("[\\0-\\x1f\\x7f\\ud800-\\udfff]")
"""Characters that parsers of URLs drop, so the request would go to another URL."""
_LINE_END = re.compile("[\r\n\0]")
_BEGINNING_BYTES = 8192
_ENCODING = "content-encoding"

Headers = Sequence[tuple[str, str]]
OWN_PORTS: set[int] = set()
"""The local ports of all connections so far. So others to the same servers can be told apart."""


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


@dataclass(frozen=True, slots=True)
class _PreparedRequest:
    url: URL
    target: aiohttp.ClientRequest  # tells the connector where to connect to. It is not sent.
    head: bytes  # the head without the length of the body and the empty line
    method: str
    has_length: bool

    def bytes_with(self, content: bytes | None) -> bytes:
        """Return the request with this body."""
        if self.has_length or (content is None and self.method in _WITHOUT_BODY):
            return b"%b\r\n%b" % (self.head, content or b"")
        content = content or b""
        return b"%bContent-Length: %d\r\n\r\n%b" % (self.head, len(content), content)


class _ResponseHandler(ResponseHandler):
    """aiohttp's, except that a malformed chunk ends the body, whose reader would otherwise wait forever.

    It also resumes only what was paused. aiohttp calls its parser for every piece that is read.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        OWN_PORTS.add((transport.get_extra_info("sockname") or (0, 0))[1])
        super().connection_made(transport)

    def resume_reading(self, *resume_parser: bool, **named: bool) -> None:
        if self._reading_paused:
            super().resume_reading(*resume_parser, **named)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        body = self._payload
        super().set_exception(exc, *cause)
        if isinstance(exc, HttpProcessingError) and body is not None and not body.is_eof():
            body.set_exception(aiohttp.ClientPayloadError(exc.message), *cause)


class _Exchange:
    """A response that arrives over a connection (implements `agentest.support.http.bodies.RawResponse`)."""

    held_up = 0.0
    __slots__ = ("_connection", "content", "headers", "raw_headers", "status", "url")

    def __init__(
        self, url: URL, connection: Connection, head: RawResponseMessage, content: aiohttp.StreamReader
    ) -> None:
        self.url = url
        self.status = head.code
        self.headers = head.headers
        self.raw_headers = head.raw_headers
        self.content = content
        self._connection: Connection | None = connection

    def release(self) -> None:
        """Return the connection to the pool, or close it if the request or the response is incomplete."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        transport = connection.transport
        if transport is not None and transport.get_write_buffer_size():
            connection.close()
        else:
            connection.release()


class DirectResponse:
    """A response whose body is decompressed and limited in size while it is read.

    The reader closes it with `aclose`.
    """

    first_token_ms: float | None = None
    """Milliseconds until the first piece of the reply's text; None if it was not measured."""
    waited: Callable[[], float] | None = None  # returns the seconds since the start of the request
    beginning = b""

    def __init__(self, raw: RawResponse) -> None:
        self.status_code = raw.status
        self.headers = _decoded_headers(raw)
        self._raw = raw
        self.most = self._left = MAX_BODY_BYTES

    def allow(self, most: int) -> None:
        """Change the limit of the body, before it is read."""
        self.most = self._left = most

    @property
    def url(self) -> str:
        return str(self._raw.url)

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    @property
    def is_cut(self) -> bool:
        """True if more was read than `beginning`."""
        return self.most - self._left > len(self.beginning)

    @property
    def held_up(self) -> float:
        """Seconds for which the responder, an application in this process, has blocked our event loop."""
        return self._raw.held_up

    def note_first_token(self) -> None:
        """Record that a piece of the reply's text has arrived. Only the first call counts."""
        if self.first_token_ms is None and self.waited is not None:
            self.first_token_ms = self.waited() * 1000

    async def read(self) -> bytes:
        """Return the whole body. Raises like `pieces`."""
        if _ENCODING in self._raw.headers:
            return b"".join([piece async for piece in self._unpacked()])
        pieces: list[bytes] = []
        while not self._raw.content.at_eof():
            pieces.append(self._counted(await self._raw.content.readany()))
        return b"".join(pieces)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Iterate over the decompressed body as it arrives. Raises BadBody or CONNECTION_ERRORS.

        At most one piece is in memory.
        """
        if _ENCODING in self._raw.headers:
            async for piece in self._unpacked():
                yield piece
        while piece := self._counted(await self._raw.content.readany()):
            yield piece

    def _counted(self, piece: bytes) -> bytes:
        self._left -= len(piece)
        if self._left < 0:
            raise BodyTooLarge(self.most)
        if len(self.beginning) < _BEGINNING_BYTES:
            self.beginning += piece[:_BEGINNING_BYTES]
        return piece

    async def _unpacked(self) -> AsyncIterator[bytes]:
        left = self.most  # limits received bytes as well, because they may decompress to nothing forever
        try:
            unpack = decompressor_for(", ".join(self._raw.headers.getall(_ENCODING)))
            while piece := await self._raw.content.readany():
                left -= len(piece)
                if left < 0:
                    raise BodyTooLarge(self.most)
                for part in unpack.feed(piece) if unpack else (piece,):
                    yield self._counted(part)
                    await checkpoint()  # a few bytes may have contained millions of events
            if unpack:
                unpack.end()
        except DecompressionError as error:
            raise (BadBody if isinstance(error, CutData) else UnusableBody)(str(error)) from None

    async def aclose(self) -> None:
        """Release the connection, which is closed if the body was not read to its end."""
        self._raw.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response from a recording, which is read like a `DirectResponse`."""

    status_code: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300

    async def read(self) -> bytes:
        return self.body

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self.body

    async def aclose(self) -> None:
        """Do nothing, like a response that was read."""


def _decoded_headers(raw: RawResponse) -> CIMultiDictProxy[str]:
    headers = raw.headers
    if _ENCODING not in headers and all(map(str.isascii, headers.values())):
        return headers
    # aiohttp decodes bytes that are not UTF-8 to lone surrogates, which cannot be encoded again.
    pairs = [(_text(name), _text(value)) for name, value in raw.raw_headers]
    dropped = (_ENCODING, "content-length") if _ENCODING in headers else ()
    return CIMultiDictProxy(CIMultiDict([pair for pair in pairs if pair[0].lower() not in dropped]))


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1")


class Sender(Protocol):
    """Sends requests: over connections, or to an application in this process."""

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request. The caller reads the body and closes the response."""


class Client:
    """Sends requests over aiohttp's connections."""

    def __init__(
        self,
        connector: aiohttp.TCPConnector,
        resolver: AbstractResolver,
        guard: AddressGuard | None,
        proxy: str | None,
    ) -> None:
        self._connector = connector
        self._resolver = resolver
        self._guard = guard
        self._proxy = URL(proxy) if proxy else None
        self._prepared: dict[tuple[object, ...], _PreparedRequest] = {}
        self._sockets: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sockets is not None:
            await self._sockets.close()
        await self._connector.close()

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request. The caller reads the body and closes the response.

        Raises CONNECTION_ERRORS or RefusedAddress.
        """
        key = (method, url, *headers)
        request = self._prepared.get(key)
        if request is None:
            request = self._prepared[key] = self._prepare(method, url, headers)
        may_repeat = method in _IDEMPOTENT
        while True:
            connection = await self._connector.connect(request.target, [], _NO_TIMEOUT)
            try:
                protocol, transport = connection.protocol, connection.transport
                if protocol is None or transport is None:
                    raise aiohttp.ServerDisconnectedError
                protocol.set_response_params(
                    skip_payload=method == "HEAD", read_until_eof=True, auto_decompress=False
                )
                if ("connection", "close") in headers:
                    protocol.force_close()  # the server need not announce that it closes the connection
                transport.write(request.bytes_with(content))
                head, body = await protocol.read()
                while head.code in _INFORMATIONAL:
                    head, body = await protocol.read()
                return DirectResponse(_Exchange(request.url, connection, head, body))
            except HttpProcessingError as error:
                connection.close()
                raise aiohttp.ClientPayloadError(error.message) from error
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                connection.close()
                if not may_repeat:
                    raise
                may_repeat = False  # only once: the server may have closed an idle connection
            except BaseException:
                connection.close()
                raise

    def _prepare(self, method: str, text: str, headers: Headers) -> _PreparedRequest:
        if len(self._prepared) >= _REMEMBERED_REQUESTS:
            self._prepared.clear()  # URLs and headers may contain user data
        url, more = self._checked(text)
        target = aiohttp.ClientRequest("GET", url, loop=asyncio.get_running_loop(), proxy=self._proxy)
        path = url.raw_path_qs
        if self._proxy and not target.is_ssl():
            path = str(url)
            more |= _credentials("Proxy-Authorization", self._proxy)
        names = {name.lower() for name, _ in headers}
        lines = [f"{method} {path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in more.items() if name.lower() not in names]
        lines += [f"{name}: {value}" for name, value in headers]
        if any(map(_LINE_END.search, lines)):
            raise aiohttp.InvalidURL(url, "a header has a line break, which HTTP does not allow")
        return _PreparedRequest(
            url, target, "\r\n".join([*lines, ""]).encode(), method, "content-length" in names
        )

    def _checked(self, text: str) -> tuple[URL, dict[str, str]]:
        if invalid := _UNPRINTABLE.search(text):
            raise aiohttp.InvalidURL(ascii(text), f"it contains the invalid character {invalid[0]!r}")
        try:
            url = URL(text.replace(" ", "%20"))
        except ValueError as error:
            raise aiohttp.InvalidURL(text, str(error)) from None
        if url.scheme not in _SCHEMES:
            raise aiohttp.InvalidURL(text, f"expected one of these schemes: {', '.join(_SCHEMES)}")
        if not url.raw_host:
            raise aiohttp.InvalidURL(text, "it has no host")
        if self._guard:  # names are checked when they are resolved
            self._guard.check_literal(url.raw_host)
        headers = {"Host": url.host_port_subcomponent or "", **_credentials("Authorization", url)}
        return url.with_user(None).with_fragment(None), headers

    async def open_websocket(self, url: str, headers: Headers, protocols: Sequence[str] = ()) -> WebSocket:
        """Connect to ws:// or wss://, without redirects. Raises CONNECTION_ERRORS or RefusedAddress."""
        from agentest.support.http.websockets import connected, websocket_session

        bare, more = self._checked(url)
        names = {name.lower() for name, _ in headers}
        added = [each for each in more.items() if each[0] != "Host" and each[0].lower() not in names]
        if self._sockets is None:
            self._sockets = websocket_session(self._connector)
        return await connected(self._sockets, str(bare), [*headers, *added], tuple(protocols))

    async def check_listening(self, host: str, port: int) -> None:
        """Connect and disconnect. Raises RefusedAddress, or CONNECTION_ERRORS if nothing listens.

        The name is resolved once, so the checked address is connected to.
        """
        if self._guard:  # names are checked when they are resolved
            self._guard.check_literal(host)
        target = aiohttp.ClientRequest("GET", URL.build(scheme="http", host=host, port=port))
        (await self._connector.connect(target, [], _NO_TIMEOUT)).close()


def _credentials(header: str, url: URL) -> dict[str, str]:
    if url.user is None and url.password is None:
        return {}
    pair = f"{url.user or ''}:{url.password or ''}"
    return {header: f"Basic {base64.b64encode(pair.encode()).decode()}"}


def open_client(
    guard: AddressGuard | None = None, resolver: AbstractResolver | None = None, proxy: str | None = None
) -> Client:
    """Open a client without connection limit, timeouts and redirects, in the running event loop.

    With a guard it never connects to an address that the guard refuses, and uses no proxy, because the proxy
    would resolve names. `resolver` (default: the system's) resolves the names. `proxy` (see `proxy_for`)
    applies only without a guard.
    """
    names = resolver or aiohttp.ThreadedResolver()
    names = _GuardedResolver(guard, names) if guard else names
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, resolver=names)
    handler: type[ResponseHandler] = _ResponseHandler
    connector._factory = partial(handler, loop=asyncio.get_running_loop())
    return Client(connector, names, guard, None if guard else proxy)


def proxy_for(url: str) -> str | None:
    """Return the environment's proxy for a URL (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY)."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")
