"""Access control: only this server's page may send requests, from the browser of the user who started it.

All users on the machine can connect to a loopback port, and any web page can make a browser do so. Each
request for data must therefore carry the token of the first address in a header, which other sites
cannot set, and name this server in `Host` and `Origin`. A cookie is not enough, because browsers send it
to all ports of the machine. The cookie set here opens only the empty page.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import field

from aiohttp import web
from aiohttp.typedefs import Middleware

from agentest.support.http.caller_guard import CallerGuard, Handler, json_refusal
from agentest.support.lazy_dataclasses import dataclass

HEADERS: Mapping[str, str] = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Security headers of every response."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
_WRONG_PAGE = "this server answers to its own page alone"
_BODY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestGuard:
    """Checks requests.

    Attributes:
        port: the server's port.
        body_s: seconds within which a request body must arrive.
    """

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    body_s: float = _BODY_S

    @property
    def address(self) -> str:
        """The URL to open first, for the user only."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    @property
    def cookie(self) -> tuple[str, str]:
        """Name and value of the cookie that opens the empty page. The token cannot be derived from it."""
        value = hmac.new(self.token.encode(), b"page", hashlib.sha256).hexdigest()
        return f"agentest-page-{self.port}", value

    def middleware(self) -> Middleware:
        """Return the middleware that checks every request before its handler."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.method not in _METHODS:
                return with_headers(web.json_response({"error": "no such method"}, status=405))
            if refusal := self._refusal(request):
                refused = with_headers(json_refusal(refusal))
                refused.force_close()
                return refused
            problem = await self._read_body(request)
            if (
                problem is not None
            ):  # do not test for truth: older versions of aiohttp have empty responses that are false
                return with_headers(problem)
            return with_headers(await handler(request))

        return guarded

    def _refusal(self, request: web.Request) -> str:
        """Return the reason to refuse a request; "" if it is allowed."""
        callers = CallerGuard(port=self.port)
        if callers.host_problem(request):
            return "this server answers to http://127.0.0.1 and http://localhost alone"
        if callers.origin_problem(request):
            return _WRONG_PAGE
        if callers.site_problem(request) and not self._opened_by_link(request):
            return _WRONG_PAGE
        if not self._is_known(request):
            return "open the address that `agentest ui` has printed: its token is missing here, or an old one"
        return ""

    def _opened_by_link(self, request: web.Request) -> bool:
        """Return True if the user followed the printed link, for example from a terminal in a web page."""
        navigates = request.headers.get("Sec-Fetch-Mode") == "navigate"
        is_document = request.headers.get("Sec-Fetch-Dest") == "document"
        return request.method == "GET" and navigates and is_document and self._has_token(request)

    def _has_token(self, request: web.Request) -> bool:
        return request.path == "/" and _equal(request.query.get("token", ""), self.token)

    def _is_known(self, request: web.Request) -> bool:
        if request.path.startswith("/api/"):
            return _equal(request.headers.get("Authorization", ""), f"Bearer {self.token}")
        name, value = self.cookie
        return self._has_token(request) or _equal(request.cookies.get(name, ""), value)

    async def _read_body(self, request: web.Request) -> web.Response | None:
        """Read the body; return a response if it has the wrong type or does not arrive in time."""
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
    """Add the security headers to a response."""
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


def _equal(actual: str, wanted: str) -> bool:
    return hmac.compare_digest(actual.encode(errors="replace"), wanted.encode())
