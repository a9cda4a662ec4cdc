"""Which protocol an answer is of, told by what only that protocol sends.

It is asked when an answer cannot be read: the configured `type` is then likely the wrong one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentest.agents.probing import Seen

NAMES = {
    "chat_completions": "a chat-completions endpoint",
    "responses": "an endpoint of OpenAI's Responses API",
    "anthropic_messages": "an endpoint of Anthropic's Messages API",
    "a2a": "an A2A agent",
    "ag_ui": "an AG-UI endpoint",
    "ai_sdk": "a chat endpoint of Vercel's AI SDK",
    "langgraph": "a LangGraph server",
    "adk": "google-adk's own server",
    "websocket": "a WebSocket endpoint",
}
"""What an endpoint of a type is called, for messages."""

_LACKED: Sequence[tuple[str, frozenset[str]]] = (
    ("ag_ui", frozenset({"threadid", "runid"})),
    ("adk", frozenset({"appname", "userid"})),
    ("langgraph", frozenset({"assistantid"})),
    ("a2a", frozenset({"jsonrpc"})),
    ("ai_sdk", frozenset({"trigger"})),
    ("responses", frozenset({"input", "model"})),
    ("responses", frozenset({"input"})),
    ("anthropic_messages", frozenset({"maxtokens", "messages"})),
    ("chat_completions", frozenset({"messages", "model"})),
)
"""Type → fields whose lack servers of it complain of, in no spelling in particular."""


def recognised(seen: Seen) -> str | None:
    """The type that an answer is of; None where it could be anything."""
    return _by_header(seen) or _by_value(_value(seen.body)) or _by_what_is_lacking(seen)


def _by_header(seen: Seen) -> str | None:
    if seen.status == 426 or b'"Upgrade" only to "WebSocket"' in seen.body:
        return "websocket"
    vercel = ("x-vercel-ai-ui-message-stream", "x-vercel-ai-data-stream")
    return "ai_sdk" if any(name in seen.headers for name in vercel) else None


def _value(body: bytes) -> Any:
    """The JSON value of a body, or of its first event that has one; None where there is none."""
    text = body.decode("utf-8", errors="replace").lstrip("\ufeff \r\n\t")
    if text.startswith(("{", "[")):
        return _json(text)
    lines = (line[5:].strip() for line in text.splitlines() if line.startswith("data:"))
    return next((value for value in map(_json, lines) if value is not None), None)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _by_value(value: Any) -> str | None:
    if isinstance(value, list):
        first = value[0] if value else None
        return "adk" if isinstance(first, Mapping) and {"author", "invocationId"} <= first.keys() else None
    if not isinstance(value, Mapping):
        return None
    return next((name for name, is_one in _MARKS.items() if is_one(value)), None)


def _is_langgraph(value: Mapping[str, Any]) -> bool:
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], Mapping):
        return "__error__" in value or "__interrupt__" in value
    return messages[-1].get("type") in ("human", "ai", "tool") and "content" in messages[-1]


def _is_responses(value: Mapping[str, Any]) -> bool:
    begins = str(value.get("type", "")).startswith("response.")
    return begins or value.get("object") == "response" or {"output", "status", "id"} <= value.keys()


def _is_anthropic(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    if kind == "error":
        return isinstance(value.get("error"), Mapping) and "type" in value["error"]
    return kind == "message_start" or (kind == "message" and isinstance(value.get("content"), list))


_MARKS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "chat_completions": lambda value: isinstance(value.get("choices"), list),
    "a2a": lambda value: value.get("jsonrpc") == "2.0",
    "ag_ui": lambda value: value.get("type") in ("RUN_STARTED", "RUN_ERROR"),
    "ai_sdk": lambda value: value.get("type") in ("start", "text-start", "tool-input-start"),
    "responses": _is_responses,
    "anthropic_messages": _is_anthropic,
    "langgraph": _is_langgraph,
    "adk": lambda value: {"author", "invocationId"} <= value.keys(),
}


def _by_what_is_lacking(seen: Seen) -> str | None:
    lacked = {_plain(name) for name in missing_fields(seen.json)}
    return next((name for name, fields in _LACKED if fields <= lacked), None)


def missing_fields(answer: Any) -> tuple[str, ...]:
    """The fields that a refusal in pydantic's or FastAPI's form says are missing, at the top of the body."""
    detail = answer.get("detail") if isinstance(answer, Mapping) else answer
    complaints = [one for one in detail if isinstance(one, Mapping)] if isinstance(detail, list) else []
    places = [one.get("loc") for one in complaints if one.get("type") == "missing"]
    fields = [place[place[0] == "body" :] for place in places if isinstance(place, list) and place]
    return tuple(str(field[0]) for field in fields if len(field) == 1)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
