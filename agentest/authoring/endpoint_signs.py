"""Whether a server of HTTPS can be talked to: what a connection alone does not tell."""

from __future__ import annotations

import anyio

from agentest.agents.detection import Seen, is_login_page, leads_to_login
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


LOGIN = (
    "it looks like a login: send the credentials with `headers`, or log in by a `setup` request (type: http)"
)
_REFUSED = (400, 422)
_FIELDS = {"chat_completions": b"messages", "responses": b"input", "anthropic_messages": b"messages"}
"""Type → the field without which its requests are nothing."""


def is_login(seen: Seen) -> bool:
    """Whether an answer leads to where users log in."""
    return leads_to_login(seen) or is_login_page(seen.body)


def misses(seen: Seen | None, kind: str) -> str:
    """The field that an endpoint may have missed in an empty request, if it is one of a type; else ""."""
    field = _FIELDS.get(kind)
    if seen is None or seen.status not in _REFUSED or field is None or field not in seen.body:
        return ""
    return field.decode()
