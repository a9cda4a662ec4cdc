"""Decide which requests our servers accept: those of programs, and those of permitted web pages.

Any web page can make a browser send requests to a port of this machine, and the owner of a domain can resolve
it to this machine (DNS rebinding). Browsers report the target and the origin in `Host`, `Origin` and
`Sec-Fetch-Site`; programs send only `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Middleware

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(?P<name>\[[0-9a-f:.]+\]|[0-9a-z_.-]+)(?::(?P<port>[0-9]{1,5}))?", re.I)
_OWN_SITE = ("same-origin", "none")
_HTTP_PORT = 80
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerGuard:
    """Who may call a server.

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
            if not self._is_ours(host):
                known = ", ".join((*LOOPBACK, *self.hosts))
                shown = host[:_SHOWN_CHARS]
                return f"this server does not answer to the host {shown!r}, only to {known}{self._way()}"
        return ""

    def origin_problem(self, request: web.Request) -> str:
        """Return the problem with the page that sends a request; "" if there is none, or no page."""
        origins = request.headers.getall("Origin", [])
        if not origins or (len(origins) == 1 and self.allows(origins[0])):
            return ""
        shown = ", ".join(origins)[:_SHOWN_CHARS]
        return f"requests of pages from {shown!r} are refused{self._way()}"

    def site_problem(self, request: web.Request) -> str:
        """Return why a browser's request for a page of another site is refused; "" if it is not.

        Scripts of permitted pages may send requests with CORS preflight. Links, forms and images may not.
        """
        site = request.headers.get("Sec-Fetch-Site", "none")
        by_script = "Origin" in request.headers and request.headers.get("Sec-Fetch-Mode") == "cors"
        if site in _OWN_SITE or (by_script and self.port is None):
            return ""
        return f"requests of pages of another site are refused (Sec-Fetch-Site: {site[:_SHOWN_CHARS]})"

    def allows(self, origin: str) -> bool:
        """Return True if pages of an origin may call the server."""
        scheme, _, host = origin.lower().partition("://")
        return scheme in ("http", "https") and self._is_ours(host) and (self.port is None or scheme == "http")

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None or found["name"].lower() not in (*LOOPBACK, *self.hosts):
            return False
        return self.port is None or int(found["port"] or _HTTP_PORT) == self.port

    def _way(self) -> str:
        return f"; {self.setting} allows more" if self.setting else ""


def json_refusal(problem: str) -> web.Response:
    """Create a refusal in JSON."""
    return web.json_response({"error": problem}, status=403)
