"""What browsers ask for before they show a page the answers of another origin: agents may live in pages."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from aiohttp import web

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
"""Pages from elsewhere get nothing: whoever visits one during a run would open the tools to it."""


def is_preflight(request: web.Request) -> bool:
    """Whether a browser asks what it may ask."""
    return request.method == "OPTIONS" and "access-control-request-method" in request.headers


def preflight(request: web.Request) -> web.Response:
    """What a page of this machine may ask: all."""
    told = request.headers
    headers = dict(allowing(request))
    if headers:
        headers["access-control-allow-methods"] = told["access-control-request-method"]
        headers["access-control-allow-headers"] = told.get("access-control-request-headers", "*")
    return web.Response(status=204, headers=headers)


def allowing(request: web.Request) -> Sequence[tuple[str, str]]:
    """The headers that let a page of this machine read an answer."""
    origin = request.headers.get("origin", "")
    try:
        here = urlsplit(origin).hostname in _THIS_MACHINE
    except ValueError:
        return ()
    if not here:
        return ()
    allowed = ("access-control-allow-origin", origin), ("access-control-expose-headers", "*")
    return (*allowed, ("access-control-allow-credentials", "true"), ("vary", "origin"))
