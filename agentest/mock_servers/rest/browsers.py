"""What browsers ask for before they show a page the answers of another origin: agents may live in pages."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from agentest.support.http.callers import Callers


def is_preflight(request: web.Request) -> bool:
    """Whether a browser asks what it may ask."""
    return request.method == "OPTIONS" and "access-control-request-method" in request.headers


def preflight(request: web.Request, callers: Callers) -> web.Response:
    """What a page that may call may ask: all."""
    told = request.headers
    headers = dict(allowing(request, callers))
    if headers:
        headers["access-control-allow-methods"] = told["access-control-request-method"]
        headers["access-control-allow-headers"] = told.get("access-control-request-headers", "*")
    return web.Response(status=204, headers=headers)


def allowing(request: web.Request, callers: Callers) -> Sequence[tuple[str, str]]:
    """The headers that let a page that may call read an answer."""
    origin = request.headers.get("origin", "")
    if not callers.allows(origin):
        return ()
    allowed = ("access-control-allow-origin", origin), ("access-control-expose-headers", "*")
    return (*allowed, ("access-control-allow-credentials", "true"), ("vary", "origin"))
