"""Who may talk to the server: the page that this server gave out, in a browser of the user who started it.

Whoever is on the machine can connect to a port of loopback, and any web page can have a browser do so. So
each request for data carries the token that only the first address has, in a header, which no foreign page
can set; and names, by `Host` and `Origin`, this server. A cookie would be sent to every other port of this
machine: the one that is set opens the empty page alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Middleware

from agentest.support.http.caller_guard import Callers, Handler, json_refusal

HEADERS: Mapping[str, str] = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""What every answer says to browsers."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_OURS = "this server answers to its own page alone"
_BODY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Lets requests pass or refuses them.

    Attributes:
        port: where the server listens.
        body_s: how long the body of a request may take to come.
    """

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    body_s: float = _BODY_S

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
            if request.method not in _METHODS:
                return with_headers(web.json_response({"error": "no such method"}, status=405))
            if refusal := self._refusal(request):
                refused = with_headers(json_refusal(refusal))
                refused.force_close()
                return refused
            problem = await self._unread(request)
            if problem is not None:  # a response of older aiohttp is an empty mapping, and so false
                return with_headers(problem)
            return with_headers(await handler(request))

        return guarded

    def _refusal(self, request: web.Request) -> str:
        """Why a request is refused; "" where it is not."""
        callers = Callers(port=self.port)
        if callers.host_problem(request):
            return "this server answers to http://127.0.0.1 and http://localhost alone"
        if callers.origin_problem(request):
            return _OURS
        if callers.site_problem(request) and not self._opened_by_link(request):
            return _OURS
        if not self._known(request):
            return "open the address that `agentest ui` has printed: its token is missing here, or an old one"
        return ""

    def _opened_by_link(self, request: web.Request) -> bool:
        """Whether a user has followed the printed address, as out of a terminal that is a web page itself."""
        navigates = request.headers.get("Sec-Fetch-Mode") == "navigate"
        whole = request.headers.get("Sec-Fetch-Dest") == "document"
        return request.method == "GET" and navigates and whole and self._has_token(request)

    def _has_token(self, request: web.Request) -> bool:
        return request.path == "/" and _same(request.query.get("token", ""), self.token)

    def _known(self, request: web.Request) -> bool:
        if request.path.startswith("/api/"):
            return _same(request.headers.get("Authorization", ""), f"Bearer {self.token}")
        name, value = self.cookie
        return self._has_token(request) or _same(request.cookies.get(name, ""), value)

    async def _unread(self, request: web.Request) -> web.Response | None:
        """What to answer where the body is none that is taken, or never comes; it is kept for the handler."""
        if not request.can_read_body:
            return None
        if request.content_type != "application/json":
            return web.json_response({"error": "the body must be application/json"}, status=415)
        try:
            await asyncio.wait_for(request.read(), self.body_s)
        except TimeoutError:
            return web.json_response({"error": "the body has not come in time"}, status=408)
        except web.HTTPRequestEntityTooLarge as error:
            return web.json_response({"error": error.text}, status=error.status)
        return None


def with_headers(response: web.StreamResponse) -> web.StreamResponse:
    """The response with what every answer says to browsers."""
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
