"""Signs in an endpoint's behavior: TLS problems, login redirects, and missing request fields."""

from __future__ import annotations

import anyio

from agentest.agents.response_features import ProbeResponse, is_login_page, leads_to_login
from agentest.support.http.client import Client, Headers
from agentest.support.http.retries import CONNECTION_ERRORS, describe

_PATIENCE_S = 5.0


async def tls_problem(url: str, client: Client, headers: Headers = ()) -> str:
    """Return why HTTPS requests to a URL fail; "" if they succeed, or for another scheme."""
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
"""Type → the field that its requests require."""


def is_login(seen: ProbeResponse) -> bool:
    """Return True if a response redirects to a login page."""
    return leads_to_login(seen) or is_login_page(seen.body)


def misses(seen: ProbeResponse | None, kind: str) -> str:
    """Return the required field of this type that the endpoint complained about; "" if there is none."""
    field = _FIELDS.get(kind)
    if seen is None or seen.status not in _REFUSED or field is None or field not in seen.body:
        return ""
    return field.decode()
