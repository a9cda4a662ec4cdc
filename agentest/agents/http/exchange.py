"""Send one request with the conversation's cookies, and explain error statuses.

Raises `Unauthorized` so that the caller can log in and retry. `CookieSender` adds cookies and follows
redirects.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from time import time
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

from agentest.agents.error_hints import is_login, leads_to_login, readable
from agentest.agents.http.requests import origin
from agentest.agents.http_sender import (
    MAX_REDIRECTS,
    HttpAnswer,
    HttpSender,
    OutgoingRequest,
    beginning_of,
    probe_response_of,
)
from agentest.agents.port import NoReply
from agentest.config.fields import check_url
from agentest.support.errors import AgentError, errors_as
from agentest.support.http.client import DirectResponse, Headers, Sender
from agentest.support.lazy_dataclasses import dataclass

T = TypeVar("T")
Read = Callable[[DirectResponse], Awaitable[T]]
_LOGIN_ADVICE = (
    "log in with `setup: {per: run, endpoint: …, body: …, save: {token: …}}` and send {{token}} in `headers`"
)
_BY_STATUS = {
    400: (
        "`body`, `params` and `headers` are sent as they are written: do they have everything "
        "the agent requires?"
    ),
    401: f"are the credentials in `headers` right? For an agent with a login, {_LOGIN_ADVICE}",
    403: "are the credentials in `headers` right, and may their user do this?",
    404: "is the path of `endpoint` right?",
    405: "is `method` right?",
    411: "is a `body` missing?",
    413: "`body` is larger than the agent takes",
    415: "the agent takes another form of `body`: say which by a header, like `Content-Type: "
    "application/x-www-form-urlencoded` for a form",
    422: "`body` lacks a field, or has one of another type, that the agent requires",
}
_BODY_HEADERS = ("content-type", "content-length")
_SAFE_FOR_ANY_ORIGIN = ("accept", "accept-encoding")


class Unauthorized(NoReply):
    """The agent rejects the credentials, or they have expired."""


async def send_with_status_errors(
    sender: HttpSender, request: OutgoingRequest, read: Read[T]
) -> HttpAnswer[T]:
    """Send a request and return what `read` makes of a 2xx response.

    Raises NoReply for any other status; Unauthorized for 401 and for a redirect to a login.
    """

    async def read_any(response: DirectResponse) -> T:
        if 200 <= response.status_code < 300:
            return await read(response)
        problem = await describe_error_status(response, request.method, sender)
        if response.status_code == 401 or leads_to_login(probe_response_of(response)):
            raise Unauthorized(problem)
        raise (NoReply if 300 <= response.status_code < 400 else AgentError)(problem)

    return await sender.send(request, read_any, range(1000))


async def describe_error_status(response: DirectResponse, method: str, sender: HttpSender) -> str:
    """Describe a response with an error status and what to try. Reads the start of the body."""
    status = response.status_code
    if 300 <= status < 400:
        problem = await sender.problem(response)
        return f"{problem} ({_LOGIN_ADVICE})" if leads_to_login(probe_response_of(response)) else problem
    advice = _BY_STATUS.get(status, "")
    shown = readable(await beginning_of(response)) or "(empty body)"
    return f"{method} {response.url} answered {status}{f' ({advice})' if advice else ''}: {shown}"


@dataclass(eq=False)
class CookieSender:
    """A `Sender` that stores the cookies of one conversation."""

    _client: Sender
    _jar: CookieJar
    _on_secret: Callable[[Iterable[str]], None]
    follows_all: bool = False  # also follow redirects to a login, as login requests need

    async def send_direct(
        self, method: str, url: str, headers: Headers, content: bytes | None
    ) -> DirectResponse:
        """Send a request and follow redirects to a GET. Raises AgentError and the errors of a Sender."""
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._client.send_direct(method, url, self._with_cookies(url, headers), content)
            try:
                if lines := response.headers.getall("set-cookie", ()):
                    self._on_secret([cookie.value for cookie in self._jar.store(url, lines)])
                target = self._redirect_target(method, url, response)
            except BaseException:
                await response.aclose()
                raise
            if target is None:
                return response
            await response.aclose()
            # Drop headers about the body and, for another server, all that may be credentials.
            headers = [header for header in headers if header[0].lower() not in _BODY_HEADERS]
            if origin(target) != origin(url):
                headers = [header for header in headers if header[0].lower() in _SAFE_FOR_ANY_ORIGIN]
            method, url, content = "GET", target, None
        raise AgentError(f"{url}: more than {MAX_REDIRECTS} redirects")

    def _with_cookies(self, url: str, headers: Headers) -> Headers:
        configured = "; ".join(value for name, value in headers if name.lower() == "cookie")
        cookies = self._jar.header(url, configured)
        others = [header for header in headers if header[0].lower() != "cookie"]
        return [*others, ("cookie", cookies)] if cookies else others

    def _redirect_target(self, method: str, url: str, response: DirectResponse) -> str | None:
        location = response.headers.get("location", "")
        if response.status_code not in (301, 302, 303) or not location:
            return None
        with errors_as(AgentError, f"{url} redirects to an address that "):
            target = check_url(urljoin(url, location))
        if self.follows_all:
            return target
        asks_for_get = method == "GET" or response.status_code == 303
        return target if asks_for_get and not is_login(target) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cookie:
    """A cookie, and where to send it."""

    name: str
    value: str
    host: str
    """The host in lower case. With `subdomains`, also its subdomains at any port; otherwise only its own
    port."""
    subdomains: bool
    path: str
    secure: bool
    expires: float | None  # seconds since the epoch. None if the cookie lasts for the conversation.

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.host, self.path


class CookieJar:
    """Stores the cookies that servers set, and returns those for a request."""

    def __init__(self, cookies: Iterable[Cookie] = ()) -> None:
        self._cookies = {cookie.key: cookie for cookie in cookies}

    def __iter__(self) -> Iterator[Cookie]:
        return iter(tuple(self._cookies.values()))

    def add(self, cookies: Iterable[Cookie]) -> None:
        """Add cookies. Each replaces the one with the same name, host and path."""
        self._cookies |= {cookie.key: cookie for cookie in cookies}

    def store(self, url: str, lines: Iterable[str]) -> list[Cookie]:
        """Store valid cookies from `Set-Cookie` lines and return them."""
        fresh = [cookie for line in lines if (cookie := _read(line, url))]
        for cookie in fresh:
            if cookie.expires is not None and cookie.expires <= time():
                self._cookies.pop(cookie.key, None)
            else:
                self._cookies[cookie.key] = cookie
        return fresh

    def header(self, url: str, given: str = "") -> str:
        """Return the `Cookie` header for a request, or "". `given` is the configured header."""
        parts = dict(_name_and_value(part) for part in given.split(";") if part.strip())
        matching = sorted((c for c in self._cookies.values() if _matches(c, url)), key=lambda c: len(c.path))
        parts |= {cookie.name: cookie.value for cookie in matching}
        return "; ".join(f"{name}={value}" if name else value for name, value in parts.items())

    def value(self, name: str) -> str | None:
        """Return the value of the cookie set last under this name."""
        return next((c.value for c in reversed(self._cookies.values()) if c.name == name), None)


def _name_and_value(part: str) -> tuple[str, str]:
    name, equals, value = part.partition("=")
    return (name.strip(), value.strip()) if equals else ("", name.strip())


def _read(line: str, url: str) -> Cookie | None:
    first, *rest = line.split(";")
    name, value = _name_and_value(first)
    attributes = {(key or word).lower(): word for key, word in map(_name_and_value, rest)}
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    domain = attributes.get("domain", "").lower().lstrip(".")
    # A host may set cookies for itself, and for a parent that is not a TLD.
    of_parent = "." in domain and host.endswith(f".{domain}") and not _is_address(host)
    if not name or (domain and host != domain and not of_parent):
        return None
    path = attributes.get("path", "")
    if not path.startswith("/"):
        path = parts.path[: parts.path.rfind("/")] or "/"
    return Cookie(
        name=name,
        value=value,
        host=domain or parts.netloc.rpartition("@")[2].lower(),
        subdomains=bool(domain),
        path=path,
        secure="secure" in attributes,
        expires=_expires(attributes),
    )


def _expires(attributes: dict[str, str]) -> float | None:
    try:
        if "max-age" in attributes:
            return time() + int(attributes["max-age"])
        if "expires" in attributes:
            return parsedate_to_datetime(attributes["expires"]).timestamp()
    except (TypeError, ValueError, OverflowError):
        pass
    return None


def _matches(cookie: Cookie, url: str) -> bool:
    parts = urlsplit(url)
    host, path = (parts.hostname or "").lower(), parts.path or "/"
    if cookie.subdomains:
        at_host = host == cookie.host or host.endswith(f".{cookie.host}")
    else:
        at_host = parts.netloc.rpartition("@")[2].lower() == cookie.host
    # As in browsers, this machine receives secure cookies over http too.
    is_local = host == "localhost" or host.endswith(".localhost")
    is_local = is_local or (_is_address(host) and ip_address(host).is_loopback)
    return (
        at_host
        and (path == cookie.path or path.startswith(cookie.path.rstrip("/") + "/"))
        and (cookie.expires is None or cookie.expires > time())
        and (not cookie.secure or parts.scheme == "https" or is_local)
    )


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
