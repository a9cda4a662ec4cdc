"""The cookies of one conversation (RFC 6265). Unlike in browsers, cookies are separate for each port."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from time import time
from urllib.parse import urlsplit


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
    expires: float | None
    """Seconds since the epoch. None if the cookie lasts for the conversation."""

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
    """Parse a line. Returns None for a cookie without a name, or for another server's domain."""
    first, *rest = line.split(";")
    name, value = _name_and_value(first)
    attributes = {
        _name_and_value(part)[0].lower() or _name_and_value(part)[1].lower(): _name_and_value(part)[1]
        for part in rest
    }
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    domain = attributes.get("domain", "").lower().lstrip(".")
    server = parts.netloc.rpartition("@")[2].lower()
    if not name or (domain and not _may_set(host, domain)):
        return None
    path = attributes.get("path", "")
    return Cookie(
        name=name,
        value=value,
        host=domain or server,
        subdomains=bool(domain),
        path=path if path.startswith("/") else _folder(parts.path),
        secure="secure" in attributes,
        expires=_expires(attributes),
    )


def _may_set(host: str, domain: str) -> bool:
    """Return True if a host may set cookies for a domain: itself, or a parent that is not a TLD."""
    return host == domain or ("." in domain and host.endswith(f".{domain}") and not _is_address(host))


def _folder(path: str) -> str:
    return path[: path.rfind("/")] or "/" if path.startswith("/") else "/"


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
    server = parts.netloc.rpartition("@")[2].lower()
    at_host = (
        host == cookie.host or host.endswith(f".{cookie.host}")
        if cookie.subdomains
        else server == cookie.host
    )
    below = path == cookie.path or path.startswith(cookie.path.rstrip("/") + "/")
    alive = cookie.expires is None or cookie.expires > time()
    return (
        at_host
        and below
        and alive
        and (not cookie.secure or parts.scheme == "https" or _is_this_machine(host))
    )


def _is_this_machine(host: str) -> bool:
    """Return True for this machine, which receives secure cookies over http too, as in browsers."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
