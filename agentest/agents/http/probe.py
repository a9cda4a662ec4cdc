"""Whether a server describes a chat of its own form: by its OpenAPI document, as FastAPI serves it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from agentest.agents.probing import Finding, Look

_DOCUMENT = "/openapi.json"
_MESSAGE = ("message", "question", "query", "prompt", "input", "text", "content", "msg", "user_message", "q")
_SESSION = (
    "session_id",
    "sessionid",
    "session",
    "conversation_id",
    "conversationid",
    "thread_id",
    "threadid",
)
_REPLY = ("reply", "response", "answer", "message", "output", "text", "content", "result")


async def probe(look: Look) -> Finding | None:
    """The request that such a document describes: at the endpoint itself, else anywhere."""
    seen = await look.get(_DOCUMENT)
    document = seen.json if seen is not None and seen.status == 200 else None
    if not isinstance(document, Mapping) or not isinstance(document.get("paths"), Mapping):
        return None
    found = dict(_chats(document))
    asked = urlsplit(look.url).path
    path = asked if asked in found else next(iter(found), None)
    if path is None:
        return None
    settings = {"type": "http", "endpoint": urljoin(look.url, path), **found[path]}
    return Finding(settings=settings, because=f"its {_DOCUMENT} describes POST {path}")


def _chats(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path → settings, for each that takes a message and needs nothing that is not known here."""
    for path, operations in document["paths"].items():
        post = operations.get("post") if isinstance(operations, Mapping) else None
        if not isinstance(post, Mapping) or "{" in path:
            continue
        body = _body(document, post)
        if body is not None:
            reply = _reply(document, post)
            yield path, {"body": body, **({"reply": reply} if reply else {})}


def _body(document: Mapping[str, Any], post: Mapping[str, Any]) -> dict[str, str] | None:
    """The body that such a request needs, with placeholders; None where it needs more."""
    schema = _schema(document, post.get("requestBody"))
    names = list(schema.get("properties", {}))
    message = next((name for known in _MESSAGE for name in names if name.lower() == known), None)
    session = next((name for known in _SESSION for name in names if name.lower() == known), None)
    if message is None or set(schema.get("required", [])) - {message, session}:
        return None
    return {message: "{{message}}", **({session: "{{session_id}}"} if session else {})}


def _reply(document: Mapping[str, Any], post: Mapping[str, Any]) -> str | None:
    """Where the answer has its reply, if it is one place alone."""
    responses = post.get("responses")
    answer = responses.get("200") if isinstance(responses, Mapping) else None
    names = [name for name in _schema(document, answer).get("properties", {}) if name.lower() in _REPLY]
    return names[0] if len(names) == 1 else None


def _schema(document: Mapping[str, Any], described: Any) -> Mapping[str, Any]:
    """The schema of the JSON of a request or an answer; empty where there is none."""
    found = described
    for key in ("content", "application/json", "schema"):
        found = found.get(key) if isinstance(found, Mapping) else None
    if isinstance(found, Mapping) and isinstance(found.get("$ref"), str):
        reference = found["$ref"].removeprefix("#/").split("/")
        found = document
        for part in reference:
            found = found.get(part) if isinstance(found, Mapping) else None
    is_object = isinstance(found, Mapping) and isinstance(found.get("properties", {}), Mapping)
    return found if is_object else {}
