"""Who may talk to the server: the page that this server gave out, in a browser of the user who started it.

Whoever is on the machine can connect to a port of loopback, and any web page can have a browser do so. So
each request for data carries the token that only the first address has, in a header, which no foreign page
can set; and names, by `Host` and `Origin`, this server. A cookie would be sent to every other port of this
machine: the one that is set opens the empty page alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Middleware

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_HEADERS = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Lets requests pass or refuses them. `port`: where the server listens."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))

    @property
    def address(self) -> str:
        """The first address, for the user alone."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> tuple[str, str]:
        """Name and value of what opens the empty page; the token cannot be had from it."""
        value = hmac.new(self.token.encode(), b"page", hashlib.sha256).hexdigest()
        return f"agentest-page-{self.port}", value

    def middleware(self) -> Middleware:
        """What stands before every handler."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            refusal = self._refusal(request)
            if refusal:
                return with_headers(web.json_response({"error": refusal}, status=403))
            return with_headers(await handler(request))

        return guarded

    def _refusal(self, request: web.Request) -> str:
        """Why a request is refused; "" where it is not."""
        hosts = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost")}
        if request.headers.get("Host", "") not in hosts:
            return "this server answers to http://127.0.0.1 and http://localhost alone"
        origin = request.headers.get("Origin")
        if origin is not None and origin not in {f"http://{host}" for host in hosts}:
            return "this server answers to its own page alone"
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return "this server answers to its own page alone"
        if not self._known(request):
            return "open the address that `agentest ui` has printed: its token is missing here, or an old one"
        return ""

    def _known(self, request: web.Request) -> bool:
        if request.path.startswith("/api/"):
            return _same(request.headers.get("Authorization", ""), f"Bearer {self.token}")
        name, value = self.cookie
        return _same(request.query.get("token", ""), self.token) or _same(
            request.cookies.get(name, ""), value
        )


def with_headers(response: web.StreamResponse) -> web.StreamResponse:
    """The response with what every answer says to browsers."""
    if not response.prepared:
        response.headers.update(_HEADERS)
    return response


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
