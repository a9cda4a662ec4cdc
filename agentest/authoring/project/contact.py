"""Whether a server of HTTPS can be talked to: what a connection alone does not tell."""

from __future__ import annotations

import anyio

from agentest.support.http.client import Client, Headers
from agentest.support.http.retries import CONNECTION_ERRORS, describe

_PATIENCE_S = 5.0


async def tls_problem(url: str, client: Client, headers: Headers = ()) -> str:
    """Why no request gets through to a URL of HTTPS; "" where one does, or the scheme is another."""
    if not url.startswith("https://"):
        return ""
    try:
        with anyio.move_on_after(_PATIENCE_S):
            response = await client.send_direct("GET", url, headers, None)
            await response.aclose()
    except CONNECTION_ERRORS as error:
        return describe(error)
    return ""
