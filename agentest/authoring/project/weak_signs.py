"""What a refusal says of the form that was missed, where no protocol was recognised for certain."""

from __future__ import annotations

from agentest.agents.probing import Seen
from agentest.agents.recognising import is_login_page, leads_to_login

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
