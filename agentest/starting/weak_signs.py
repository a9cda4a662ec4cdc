"""What a refusal says of the form that was missed, where no protocol was recognised for certain."""

from __future__ import annotations

from agentest.agents.probing import Seen

_REFUSED = (400, 422)
_FIELDS = {"chat_completions": b"messages", "responses": b"input", "anthropic_messages": b"messages"}
"""Type → the field without which its requests are nothing."""


def misses(seen: Seen | None, kind: str) -> str:
    """The field that an endpoint may have missed in an empty request, if it is one of a type; else ""."""
    field = _FIELDS.get(kind)
    if seen is None or seen.status not in _REFUSED or field is None or field not in seen.body:
        return ""
    return field.decode()
