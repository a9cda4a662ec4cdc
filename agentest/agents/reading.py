"""What agents send, read as JSON and shown in messages."""

from __future__ import annotations

import json
from typing import Any

from agentest.agents.hints import is_page
from agentest.errors import AgentError

SHOWN_CHARS = 10_000
"""Of what an agent sent; the message is cut where it is shown, once secrets have been hidden in it."""


def read_json(body: bytes, place: str) -> Any:
    """The body's JSON value. Raises AgentError; `place` says where such agents usually are."""
    if not body.strip():
        raise AgentError("the agent's answer is empty")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        text = body[:SHOWN_CHARS].decode("utf-8", errors="replace")
        if is_page(body):
            raise AgentError(f"the agent's answer is a web page, no JSON ({place}): {text!r}") from None
        raise AgentError(f"the agent's answer is not JSON: {text!r}") from None


def shown(value: Any) -> str:
    """A value for a message, as JSON where it can be."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = f"a {type(value).__name__} that is not JSON"
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "…"
