"""The one way to open an HTTP client, to agents and to models.

httpx's interface over aiohttp's connections: httpx's own pool searches all its connections on every
request, which costs more than the request where conversations are many. Time-outs are the callers' own
(`anyio.fail_after`, from connect to the last byte), so the client has none.
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import os
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from io import BytesIO
from math import isnan
from random import uniform
from time import time
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.http_exceptions import HttpProcessingError

from agentest.bodies import BadBody, Body, headers_of

ALLOW_METADATA = "AGENTEST_ALLOW_METADATA_ENDPOINTS"
MAX_RETRY_AFTER_S = 30.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 8.0
_LARGE_BYTES = 2**20
_KEEPALIVE_S = 15.0
_NEXT_ADDRESS_S = 0.25
"""A host's next address is tried beside the first when that has not answered by then."""
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
Headers = Sequence[tuple[str, str]]

# Addresses at which clouds tell a machine its credentials, besides all link-local ones.
_METADATA = tuple(
    ipaddress.ip_network(net)
    for net in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::254/128",  # AWS over IPv6
        "fd00:ec2::23/128",  # AWS EKS, credentials of pods
        "fd20:ce::254/128",  # Google Cloud over IPv6
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure
        "192.0.0.192/32",  # Oracle
    )
)
CONNECTION_ERRORS = (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError, UnicodeError)
"""What a request may raise when the address or the connection, not the content of the answer, is at fault."""

# IPv6 networks whose addresses end with an IPv4 address: NAT64, its local form, IPv4-compatible ones.
_IPV4_INSIDE = tuple(ipaddress.IPv6Network(net) for net in ("64:ff9b::/96", "64:ff9b:1::/48", "::/96"))


class RefusedAddress(Exception):
    """The host is, or resolves to, a link-local or cloud-metadata address."""

    def __init__(self, host: str, address: str) -> None:
        where = host if host == address else f"{host} ({address})"
        super().__init__(
            f"{where} is a link-local or cloud-metadata address and is refused; "
            f"set {ALLOW_METADATA}=1 if the agent really lives there"
        )


class AddressGuard:
    """Refuses link-local and cloud-metadata addresses; loopback and private ones are allowed."""

    def __init__(self, allow_metadata: bool | None = None) -> None:
        self.allow_metadata = (
            os.environ.get(ALLOW_METADATA) == "1" if allow_metadata is None else allow_metadata
        )

    def check(self, host: str, addresses: list[str]) -> None:
        """Raise RefusedAddress if any of the host's addresses is one that is refused."""
        if self.allow_metadata:
            return
        for address in addresses:
            if _is_metadata(address):
                raise RefusedAddress(host, address)

    def check_literal(self, host: str) -> None:
        """The same for a host that is an address itself, in any of the forms that inet_aton reads."""
        literal = _literal(host)
        if literal:
            self.check(host, [literal])


def _literal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host.strip("[]").partition("%")[0]))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))  # 2852039166, 0xa9fea9fe, 169.254.43518
    except (OSError, ValueError):
        return None


def _is_metadata(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    meant = [ip]
    if isinstance(ip, ipaddress.IPv6Address):
        meant += [inner for inner in (ip.ipv4_mapped, ip.sixtofour, _last_32_bits(ip)) if inner]
    return any(ip in net for ip in meant for net in _METADATA if net.version == ip.version)


def _last_32_bits(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if not any(ip in net for net in _IPV4_INSIDE):
        return None
    return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)


class _GuardedResolver(AbstractResolver):
    """Resolves names and checks what they resolve to: the addresses checked are those connected to."""

    def __init__(self, guard: AddressGuard, resolver: AbstractResolver) -> None:
        self._guard = guard
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        self._guard.check(host, [result["host"] for result in found])
        return found

    async def close(self) -> None:
        await self._resolver.close()


class _Sender:
    """Sends requests over aiohttp's connections; errors are aiohttp's own."""

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

    async def send(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> aiohttp.ClientResponse:
        """The answer's head; the body is still to come. Raises RefusedAddress, httpx.InvalidURL."""
        if url not in self._normal:
            self._normal[url] = self._checked(httpx.URL(url))
        normal, credentials = self._normal[url]
        if credentials and not any(name.lower() == "authorization" for name, _ in headers):
            headers = (*headers, *credentials)
        return await self.session.request(
            method,
            normal,
            headers=headers,
            data=_in_pieces(content),
            allow_redirects=False,
            proxy=self._proxy,
        )

    def _checked(self, url: httpx.URL) -> tuple[str, Headers]:
        """The URL as it is asked for, and the header that says who asks.

        aiohttp is not shown a user in a URL: beside a header Authorization it refuses one.
        """
        if self._guard:  # names are checked when they are resolved
            self._guard.check_literal(url.host)
        if not url.userinfo:
            return str(url), ()
        said = f"{url.username}:{url.password}".encode()
        bare = str(url.copy_with(userinfo=b""))
        return bare, [("Authorization", f"Basic {base64.b64encode(said).decode()}")]

    async def connect(self, host: str, port: int) -> None:
        """Connect and hang up. The name is resolved once: what is checked is what is connected to."""
        found = await self._addresses(host, port)
        (await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1)).close()

    async def _addresses(self, host: str, port: int) -> list[AddrInfoType]:
        if _literal(host) is None:
            found = await self._resolver.resolve(host, port, socket.AF_UNSPEC)
            return [_info(result) for result in found]
        if self._guard:
            self._guard.check_literal(host)
        loop = asyncio.get_running_loop()
        return list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))


def _in_pieces(content: bytes | None) -> bytes | BytesIO | None:
    """A large body as a file: aiohttp would copy it whole into the connection's buffer, and warn of that."""
    return BytesIO(content) if content and len(content) > _LARGE_BYTES else content


def _info(result: ResolveResult) -> AddrInfoType:
    host, port = result["host"], result["port"]
    if ":" in host:
        return socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port)


class _Transport(httpx.AsyncBaseTransport):
    """aiohttp's connections under httpx's interface."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        headers = [(name.decode(), value.decode()) for name, value in request.headers.raw]
        raw = await self._sender.send(request.method, str(request.url), headers, request.content)
        return httpx.Response(raw.status, headers=headers_of(raw), stream=Body(raw), request=request)

    async def aclose(self) -> None:
        await self._sender.session.close()


class DirectResponse(httpx.Response):
    """The answer to a request that was sent without an httpx.Request."""

    def __init__(self, raw: aiohttp.ClientResponse) -> None:
        self._body = Body(raw)
        super().__init__(raw.status, headers=headers_of(raw), stream=self._body)
        self._raw = raw

    @property
    def url(self) -> httpx.URL:
        return httpx.URL(str(self._raw.url))

    def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, unpacked. Raises BadBody, CONNECTION_ERRORS."""
        return aiter(self._body)  # what httpx does with each piece would cost more than the piece


class Client(httpx.AsyncClient):
    """httpx's client, and a short way past it for those who need none of its services."""

    def __init__(self, sender: _Sender) -> None:
        # `verify=False` spares a TLS context: the session has its own.
        super().__init__(transport=_Transport(sender), timeout=None, verify=False)
        self._sender = sender

    async def post_direct(self, url: str, headers: Headers, content: bytes) -> DirectResponse:
        """Post without redirects, cookies, authentication and logging, which cost more than the rest.

        The body is to be read, and the response to be closed. Raises CONNECTION_ERRORS, RefusedAddress.
        """
        return DirectResponse(await self._sender.send("POST", url, headers, content))

    async def check_listening(self, host: str, port: int) -> None:
        """Connect and hang up. Raises RefusedAddress, or CONNECTION_ERRORS where nobody listens."""
        await self._sender.connect(host, port)


def open_client(
    guard: AddressGuard | None = None,
    resolver: AbstractResolver | None = None,
    proxy: str | None = None,
) -> Client:
    """A client without a limit on connections, without time-outs and without redirects.

    With a guard it never connects to an address that the guard refuses, and uses no proxy: the proxy would
    do the resolving. `resolver` (default: the system's) resolves the names. `proxy`
    (see `proxy_for`) serves an unguarded one. Must be opened inside the running event loop.
    """
    names = resolver or aiohttp.ThreadedResolver()
    names = _GuardedResolver(guard, names) if guard else names
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, resolver=names)
    # Not `trust_env`: with it, aiohttp reads ~/.netrc in a thread for every single request.
    session = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=_NO_TIMEOUT,
        auto_decompress=False,
        skip_auto_headers=("accept", "accept-encoding", "user-agent"),
    )
    return Client(_Sender(session, names, guard, None if guard else proxy))


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY)."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or proxies.get("all")


def pause_before_retry(attempt: int, retry_after: float | None = None) -> float:
    """Seconds to wait before attempt `attempt` + 1: what the server asked for, else exponential with jitter.

    Args:
        attempt: number of the attempt that failed, from 1.
        retry_after: seconds that the server asked for; at most 30 are granted.
    """
    if retry_after is not None:
        return min(max(retry_after, 0.0), MAX_RETRY_AFTER_S)
    longest = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**attempt)
    return uniform(longest / 2, longest)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds of a `Retry-After` header (seconds or a date), or None without a readable one."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time()
        except (TypeError, ValueError, OverflowError):
            return None
    return None if isnan(seconds) else seconds


def was_refused(error: BaseException) -> bool:
    """Whether a connection was refused, or ended before the first byte of an answer.

    Names that do not resolve and TLS that fails are neither: asking again would not help.
    """
    chain = list(_causes(error))
    if any(isinstance(e, aiohttp.ClientConnectorDNSError | aiohttp.ClientSSLError) for e in chain):
        return False
    if any(isinstance(e, aiohttp.ClientConnectorError) for e in chain):
        return True
    if isinstance(chain[-1], aiohttp.ServerDisconnectedError):
        return isinstance(chain[-1].message, str)  # otherwise it is the half of a head that had come
    return isinstance(chain[-1], ConnectionError)


def found_nobody(error: BaseException) -> bool:
    """Whether no connection could be made: refused, out of reach, or a name that does not resolve."""
    return any(isinstance(e, aiohttp.ClientConnectorError) for e in _causes(error))


def describe(error: BaseException) -> str:
    """What went wrong with a connection, in a few words."""
    chain = list(_causes(error))
    cause = chain[-1]
    if isinstance(cause, BadBody):
        return f"the answer {cause}"
    if isinstance(cause, ConnectionRefusedError):
        return "connection refused: nobody listens there"
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, ConnectionError | aiohttp.ServerDisconnectedError) or "Not enough data" in str(
        cause
    ):
        return "the connection was closed before the answer was complete"
    if any(isinstance(e, HttpProcessingError) for e in chain):
        return f"what came is not HTTP as it should be: {' '.join(str(cause).split())}"
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An error and what it wraps: httpx's wraps aiohttp's, which wraps the operating system's."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
