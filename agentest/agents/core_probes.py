"""How servers show that they speak a type of the core: chat completions, or an API of their own.

An API of its own shows in the operations of an OpenAPI document that take a user's message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import (
    MESSAGE_FIELDS,
    OPENAPI_PATH,
    DetectedProtocol,
    EndpointProbe,
    ProtocolProbe,
    detect_type,
    missing_parameter,
    posts_in,
)
from agentest.config.agents.chat_completions import CHAT_PATH

_MODELS_PATH = "/v1/models"

_SESSION_FIELD = re.compile(r"(?i)(session|conversation|thread|chat|dialog(ue)?)[_-]?(id|key|uuid)?")
_REPLY_FIELDS = ("reply", "response", "answer", "message", "output", "text", "content", "result")
_WORDS = (
    ("chat", "completions", "responses"),
    (
        "messages",
        "message",
        "agent",
        "agents",
        "assistant",
        "run",
        "runs",
        "invoke",
        "ask",
        "converse",
        "talk",
    ),
    ("query", "prompt", "generate", "reply", "respond", "completion", "stream"),
)
_OTHER_WORDS = {
    "search", "knowledge", "health", "ready", "status", "metrics", "feedback", "upload", "documents",
    "ingest", "embed", "embeddings", "index", "login", "token", "auth", "register", "config",
    "sessions", "memories", "memory", "history", "evals", "eval", "admin", "webhook", "traces",
    "cancel", "teams", "workflows", "continue", "batch",
}  # fmt: skip
"""Words of paths that lead to something else, even if a word for an agent is there, too."""
_TYPES = ("application/json", "multipart/form-data", "application/x-www-form-urlencoded")


class ChatCompletionsProbe(ProtocolProbe):
    """Finds chat-completions endpoints, by their list of models, too."""

    order = 2
    usual_paths = (CHAT_PATH, "/chat/completions")
    path_end = "/chat/completions"
    required = frozenset({"messages", "model"})
    names_model = True

    def is_spoken(self, response: ProbeResponse) -> bool:
        answer = response.first_object
        return isinstance(answer.get("choices"), list) or missing_parameter(answer) == "messages"

    def evidence(self, response: ProbeResponse) -> str | None:
        if detect_type(response) != self.kind:
            return None
        return "it answers with a chat completion" if response.is_success else "it asks for chat completions"

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        if found := await super().find(endpoint):
            return found
        models = await endpoint.get(_MODELS_PATH)
        if models is None or not isinstance(models.json, Mapping) or models.json.get("object") != "list":
            return None
        because = f"its {_MODELS_PATH} lists models, as servers with chat completions do"
        return self.found(urljoin(endpoint.url, CHAT_PATH), because)


class HttpProbe(ProtocolProbe):
    """Finds a chat request in the server's OpenAPI document, preferably at the endpoint itself."""

    order = 4
    has_own_form = True

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        operations, here = _chat_operations(await endpoint.openapi()), urlsplit(endpoint.url).path
        path = here if here in operations else next(iter(operations), None)
        if path is None:
            return None
        url = urljoin(endpoint.url, await _with_first_id(endpoint, path))
        return self.found(url, f"its {OPENAPI_PATH} describes POST {path}", **operations[path])


async def _with_first_id(endpoint: EndpointProbe, path: str) -> str:
    collection, brace, rest = path.partition("/{")
    if not brace:
        return path
    response = await endpoint.get(collection)
    listed = response.json if response is not None else None
    first = listed[0] if isinstance(listed, list) and listed else None
    if isinstance(first, Mapping):
        first = next((first[key] for key in ("id", "agent_id", "name") if key in first), None)
    return f"{collection}/{first}{rest.partition('}')[2]}" if isinstance(first, str) else path


def _chat_operations(document: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the paths that take a message and require nothing unknown, the likeliest agent first.

    A path may contain one parameter, such as `{agent_id}`. Its value has the settings of an agent of type
    `http` for its requests: `body`, `reply`, `headers`.
    """
    found = {
        path: settings
        for path, post in posts_in(document, parameters=1)
        if ("{" not in path or _lists(document, path)) and (settings := _settings(document, post))
    }
    return {path: found[path] for path in sorted(found, key=_rank)}


def likely_path(document: Any) -> str | None:
    """Return the likeliest path of a POST with a word for an agent. A POST to a list would add to it."""
    paths = [path for path, _ in posts_in(document) if not _lists(document, path)]
    likely = (path for path in paths if _rank(path) < len(_WORDS) and not path.endswith(("/agents", "/runs")))
    return min(likely, key=_rank, default=None)


def _lists(document: Mapping[str, Any], path: str) -> bool:
    collection = document["paths"].get(path.partition("/{")[0])
    return isinstance(collection, Mapping) and "get" in collection


def _rank(path: str) -> int:
    words = set(re.findall(r"[a-z]+", re.sub(r"{[^{}]*}", "", path).lower()))
    if words & _OTHER_WORDS:
        return len(_WORDS) + 1
    return next((rank for rank, known in enumerate(_WORDS) if words & set(known)), len(_WORDS))


def _settings(document: Mapping[str, Any], post: Mapping[str, Any]) -> dict[str, Any]:
    for content_type in _TYPES:
        body = _body(_schema(document, post.get("requestBody"), content_type))
        if body:
            headers = {} if content_type == _TYPES[0] else {"headers": {"Content-Type": content_type}}
            reply = _reply(document, post)
            return {**headers, "body": body, **({"reply": reply} if reply else {})}
    return {}


def _body(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    names = {name.lower(): name for name in properties}
    message = next((names[known] for known in MESSAGE_FIELDS if known in names), None)
    of_session = (
        name for name, each in properties.items() if _SESSION_FIELD.fullmatch(name) and _is_id(each)
    )
    session = next(of_session, None)
    if message is None or set(schema.get("required", [])) - {message, session}:
        return {}
    stream = properties.get("stream")
    streams = isinstance(stream, Mapping) and stream.get("default") is True
    return {
        message: "{{message}}",
        **({session: "{{session_id}}"} if session else {}),
        **({"stream": False} if streams else {}),
    }


def _is_id(schema: Any) -> bool:
    return isinstance(schema, Mapping) and "$ref" not in schema and schema.get("type", "string") == "string"


def _reply(document: Mapping[str, Any], post: Mapping[str, Any]) -> str | None:
    responses = post.get("responses")
    answer = responses.get("200") if isinstance(responses, Mapping) else None
    properties = _schema(document, answer, _TYPES[0]).get("properties", {})
    names = [name for name in properties if name.lower() in _REPLY_FIELDS]
    return names[0] if len(names) == 1 else None


def _schema(document: Mapping[str, Any], described: Any, content_type: str) -> Mapping[str, Any]:
    schema = described
    for key in ("content", content_type, "schema"):
        schema = schema.get(key) if isinstance(schema, Mapping) else None
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        reference = schema["$ref"].removeprefix("#/").split("/")
        schema = document
        for part in reference:
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    is_object = isinstance(schema, Mapping) and isinstance(schema.get("properties", {}), Mapping)
    return schema if is_object else {}
