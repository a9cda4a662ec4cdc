"""Which protocol an answer is of, told by what only that protocol sends.

It is asked when an answer cannot be read: the configured `type` is then likely the wrong one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from agentest.agents.hints import is_page
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

_LACKED_PARAMETER = {"input": "responses", "messages": "chat_completions"}
"""Parameter of OpenAI's interfaces → the type whose endpoint asks for it."""
_PATHS = {
    "/chat/completions": "chat_completions",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic_messages",
}
"""Ends of paths that are usual for a type."""
_LOGIN = {"login", "signin", "sign-in", "sign_in", "log-in", "sso", "oauth", "auth", "saml"}
_MISSING = re.compile(r"missing|required", re.I)
_NO_MODEL = re.compile(r"model=None|must provide a model|parameter: 'model'|model: field required", re.I)
_NO_PARTS = re.compile(rb"Cannot read properties of undefined \(reading '(some|map|filter|parts)'\)")


def recognised(seen: Seen) -> str | None:
    """The type that an answer is of; None where it could be anything."""
    return (
        _by_header(seen)
        or _by_value(_value(seen.body))
        or _by_what_is_lacking(seen)
        or _by_parameter(_error(seen.json))
    )


def leads_to_login(seen: Seen) -> bool:
    """Whether an answer is a redirect to where users log in."""
    try:
        path = urlsplit(seen.headers.get("location", "")).path.lower()
    except ValueError:
        return False
    return 300 <= seen.status < 400 and bool(_LOGIN & {part.partition(".")[0] for part in path.split("/")})


def is_login_page(body: bytes) -> bool:
    """Whether a body is a web page that asks for a password."""
    return is_page(body) and re.search(rb"type\s*=\s*[\"']?password", body, re.I) is not None


def wants_a_model(seen: Seen) -> bool:
    """Whether an answer is a refusal of OpenAI's form, as no model was named."""
    error = _error(seen.json)
    is_about_it = error.get("param") == "model" or _NO_MODEL.search(str(error.get("message")))
    return seen.status in (400, 404, 422) and bool(is_about_it)


def perhaps(seen: Seen, kind: str, url: str) -> str:
    """What may be the case by weaker signs, told as such; "" where there are none."""
    if seen.status >= 500 and kind != "ai_sdk" and _NO_PARTS.search(seen.body):
        return "if this is a backend of Vercel's AI SDK, which misses the `parts` of messages: `type: ai_sdk`"
    found = usual_at(url) or kind
    if found != kind and seen.status not in (404, 405):
        return f"by its path, this may be {NAMES[found]}: `type: {found}`"
    is_refusal = seen.status in (400, 415, 422) and seen.json is None and seen.body.strip()
    if kind in ("http", "websocket") or not is_refusal:
        return ""
    return "if it takes a form of its own: `type: http`, whose `body` and `headers` say which"


def usual_at(url: str) -> str:
    """The type whose endpoints usually end as this one does; "" where none does."""
    path = urlsplit(url).path.rstrip("/")
    return next((name for end, name in _PATHS.items() if path.endswith(end)), "")


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


def _error(value: Any) -> Mapping[str, Any]:
    """The error of OpenAI's form; empty where there is none."""
    error = value.get("error") if isinstance(value, Mapping) else None
    return error if isinstance(error, Mapping) else {}


def _by_parameter(error: Mapping[str, Any]) -> str | None:
    said = str(error.get("message"))
    if not {"param", "type"} <= error.keys() or not _MISSING.search(said):
        return None
    return _LACKED_PARAMETER.get(str(error["param"]))


def _by_what_is_lacking(seen: Seen) -> str | None:
    if b"Unable to extract tag using discriminator 'trigger'" in seen.body:
        return "ai_sdk"  # pydantic-ai's
    lacked = {_plain(name) for name in missing_fields(seen.json)}
    return next((name for name, fields in _LACKED if fields <= lacked), None)


def missing_fields(answer: Any) -> tuple[str, ...]:
    """The fields that a refusal in pydantic's or FastAPI's form says are missing, at the top of the body."""
    fields = [place[place[0] == "body" :] for place in _missing_places(answer)]
    return tuple(str(field[0]) for field in fields if len(field) == 1)


def missing_headers(answer: Any) -> tuple[str, ...]:
    """The headers that such a refusal says are missing."""
    return tuple(str(place[1]) for place in _missing_places(answer) if place[0] == "header" and place[1:])


def _missing_places(answer: Any) -> list[list[Any]]:
    detail = answer.get("detail") if isinstance(answer, Mapping) else answer
    complaints = [one for one in detail if isinstance(one, Mapping)] if isinstance(detail, list) else []
    places = [one.get("loc") for one in complaints if one.get("type") == "missing"]
    return [place for place in places if isinstance(place, list) and place]


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
