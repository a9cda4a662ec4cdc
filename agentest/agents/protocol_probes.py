"""Probes that detect which protocol an endpoint speaks, one per protocol.

Each probe sends requests through a `EndpointProbe` and returns a `DetectedProtocol`, or None. The table of
agent types (`agentest.config.agent_types`) names the probe of each type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from agentest.agents.a2a.discovery import base_of, find_card
from agentest.agents.error_hints import ProbeResponse
from agentest.agents.response_features import DetectedProtocol, EndpointProbe, detect_type
from agentest.config.agents.chat_completions import CHAT_PATH


async def probe_a2a(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an A2A agent card at the endpoint or at the server's root."""

    async def fetch(url: str) -> Any:
        response = await probe.get(url)
        return response.json if response is not None and response.status == 200 else None

    for endpoint in dict.fromkeys((probe.url, urljoin(probe.url, "/"))):
        card = await find_card(endpoint, fetch)
        if card is not None and card.offers:
            return DetectedProtocol(
                settings={"type": "a2a", "endpoint": base_of(endpoint)},
                because=f"its agent card offers A2A {card.offers[0].version}",
            )
    return None


_ADK_APPS_PATH = "/list-apps"


async def probe_adk_server(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a google-adk server, and its first app, by `/list-apps`."""
    response = await probe.get(_ADK_APPS_PATH)
    apps = response.json if response is not None and response.status == 200 else None
    if not isinstance(apps, list) or not apps or not all(isinstance(app, str) for app in apps):
        return None
    root = urljoin(probe.url, "/").rstrip("/")
    return DetectedProtocol(
        settings={"type": "adk", "endpoint": root, "app_name": apps[0]},
        because=f"its {_ADK_APPS_PATH} tells the apps of google-adk's server",
    )


async def _by_empty_post(
    probe: EndpointProbe,
    kind: str,
    usual: Sequence[str],
    evidence: Callable[[ProbeResponse], str | None],
) -> DetectedProtocol | None:
    """Find an endpoint by its response to an empty POST, here or at the `usual` paths."""
    async for path in probe.places(*usual):
        response = await probe.post_nothing(path)
        if response is not None and (because := evidence(response)):
            endpoint = urljoin(probe.url, path) if path else probe.url
            return DetectedProtocol(settings={"type": kind, "endpoint": endpoint}, because=because)
    return None


_OPENAPI_PATH = "/openapi.json"


async def probe_ag_ui(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an AG-UI endpoint by its error for an empty run, or by the server's OpenAPI document."""
    found = await _by_empty_post(probe, "ag_ui", ("/ag-ui",), _ag_ui_evidence)
    if found:
        return found
    document = await probe.get(_OPENAPI_PATH)
    for path, post in _posts_in(document.json if document is not None else None):
        if "#/components/schemas/RunAgentInput" in str(post.get("requestBody")):
            return DetectedProtocol(
                settings={"type": "ag_ui", "endpoint": urljoin(probe.url, path)},
                because=f"its {_OPENAPI_PATH} says that POST {path} takes AG-UI runs",
            )
    return None


def _ag_ui_evidence(response: ProbeResponse) -> str | None:
    lacks_both = b"threadId" in response.body and b"runId" in response.body
    is_one = response.status in (400, 422, 500) and lacks_both
    return "it asks for the `threadId` and `runId` of an AG-UI run" if is_one else None


def _posts_in(document: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path → POST operation of an OpenAPI document, for paths without parameters."""
    paths = document.get("paths") if isinstance(document, Mapping) else None
    for path, operations in paths.items() if isinstance(paths, Mapping) else ():
        post = operations.get("post") if isinstance(operations, Mapping) else None
        if isinstance(post, Mapping) and "{" not in path:
            yield path, post


_AI_SDK_HEADERS = {
    "x-vercel-ai-ui-message-stream": "it answers with a UI message stream",
    "x-vercel-ai-data-stream": "it answers with a data stream of AI SDK 4",
}


async def probe_ai_sdk(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an AI SDK endpoint by its stream headers, or by pydantic-ai's error about a missing `trigger`."""
    return await _by_empty_post(probe, "ai_sdk", ("/api/chat",), _ai_sdk_evidence)


def _ai_sdk_evidence(response: ProbeResponse) -> str | None:
    for header, because in _AI_SDK_HEADERS.items():
        if header in response.headers:
            return because
    wants_trigger = response.status == 422 and b"discriminator 'trigger'" in response.body
    return "it wants a `trigger`, as the AI SDK's client sends it" if wants_trigger else None


async def probe_anthropic_messages(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a Messages endpoint by its error for an empty request, here or at the usual path."""
    return await _by_empty_post(probe, "anthropic_messages", ("/v1/messages",), _anthropic_evidence)


def _anthropic_evidence(response: ProbeResponse) -> str | None:
    match response.json:
        case {"type": "error", "error": {"type": str(), "message": _}}:
            return "its errors have the form of Anthropic's"
    return None


_MODELS_PATH = "/v1/models"


async def probe_chat_completions(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a chat-completions endpoint by its error for an empty request, or by its list of models."""
    response = await probe.post_nothing()
    if response is not None and detect_type(response) == "chat_completions":
        because = "it asks for the `messages` of chat completions"
        return DetectedProtocol(settings={"type": "chat_completions", "endpoint": probe.url}, because=because)
    models = await probe.get(_MODELS_PATH)
    if models is None or not isinstance(models.json, Mapping) or models.json.get("object") != "list":
        return None
    return DetectedProtocol(
        settings={"type": "chat_completions", "endpoint": urljoin(probe.url, CHAT_PATH)},
        because=f"its {_MODELS_PATH} lists models, as servers with chat completions do",
    )


_MESSAGE_FIELDS = [
    "message",
    "question",
    "query",
    "prompt",
    "input",
    "text",
    "content",
    "msg",
    "user_message",
    "q",
]
_SESSION_FIELDS = [
    "session_id",
    "sessionid",
    "session",
    "conversation_id",
    "conversationid",
    "thread_id",
    "threadid",
]
_REPLY_FIELDS = ("reply", "response", "answer", "message", "output", "text", "content", "result")


async def probe_http(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a chat request in the server's OpenAPI document, preferably at the endpoint itself."""
    response = await probe.get(_OPENAPI_PATH)
    document = response.json if response is not None and response.status == 200 else None
    operations = dict(_chat_operations(document))
    configured_path = urlsplit(probe.url).path
    path = configured_path if configured_path in operations else next(iter(operations), None)
    if path is None:
        return None
    settings = {"type": "http", "endpoint": urljoin(probe.url, path), **operations[path]}
    return DetectedProtocol(settings=settings, because=f"its {_OPENAPI_PATH} describes POST {path}")


def _chat_operations(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path → settings for each operation that takes a message and requires nothing unknown."""
    for path, post in _posts_in(document):
        if body := _body_template(document, post):
            reply = _reply_path(document, post)
            yield path, {"body": body, **({"reply": reply} if reply else {})}


def _body_template(document: Mapping[str, Any], post: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the request body with placeholders, or None if it requires other fields."""
    schema = _json_schema(document, post.get("requestBody"))
    names = list(schema.get("properties", {}))
    message = next((name for known in _MESSAGE_FIELDS for name in names if name.lower() == known), None)
    session = next((name for known in _SESSION_FIELDS for name in names if name.lower() == known), None)
    if message is None or set(schema.get("required", [])) - {message, session}:
        return None
    return {message: "{{message}}", **({session: "{{session_id}}"} if session else {})}


def _reply_path(document: Mapping[str, Any], post: Mapping[str, Any]) -> str | None:
    """Return the path of the reply in the response, if exactly one field qualifies."""
    responses = post.get("responses")
    schema = _json_schema(document, responses.get("200") if isinstance(responses, Mapping) else None)
    names = [name for name in schema.get("properties", {}) if name.lower() in _REPLY_FIELDS]
    return names[0] if len(names) == 1 else None


def _json_schema(document: Mapping[str, Any], described: Any) -> Mapping[str, Any]:
    """Return the JSON schema of a request or response, or an empty mapping."""
    schema = described
    for key in ("content", "application/json", "schema"):
        schema = schema.get(key) if isinstance(schema, Mapping) else None
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        reference = schema["$ref"].removeprefix("#/").split("/")
        schema = document
        for part in reference:
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    is_object = isinstance(schema, Mapping) and isinstance(schema.get("properties", {}), Mapping)
    return schema if is_object else {}


async def probe_langgraph(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a LangGraph server by `/info`, and its graphs by the list of assistants."""
    info = await probe.get("/info")
    known = info.json if info is not None else None
    if not isinstance(known, Mapping) or not any(str(key).startswith("langgraph_") for key in known):
        return None
    response = await probe.post_nothing("/assistants/search")
    assistants = response.json if response is not None and isinstance(response.json, list) else []
    graphs = list(
        dict.fromkeys(a["graph_id"] for a in assistants if isinstance(a, Mapping) and "graph_id" in a)
    )
    settings: dict[str, Any] = {"type": "langgraph", "endpoint": urljoin(probe.url, "/").rstrip("/")}
    if graphs:
        settings["assistant_id"] = graphs[0]
    names = f", with the graphs {', '.join(map(str, graphs))}" if graphs else ""
    return DetectedProtocol(settings=settings, because=f"its /info is that of a LangGraph server{names}")


async def probe_responses(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a Responses endpoint by its error for a missing `input`, here or at the usual paths."""
    return await _by_empty_post(probe, "responses", ("/v1/responses", "/responses"), _responses_evidence)


def _responses_evidence(response: ProbeResponse) -> str | None:
    match response.json:
        case {"object": "response", "output": _}:
            return "it answers with a `response` object"
        case {"error": {**error}} if error.get("param") == "input" or "'input'" in str(error.get("message")):
            return "it asks for the `input` of a response"
    return None


async def probe_websocket(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a WebSocket by opening and closing it, if a POST fails. Its message format stays unknown."""
    response = await probe.post_nothing()
    if response is None or response.status not in (400, 403, 404, 405, 426):
        return None
    if not await probe.opens_websocket():
        return None
    return DetectedProtocol(
        settings={"type": "websocket", "endpoint": re.sub("^http", "ws", probe.url)},
        because="a WebSocket opens there (`body` and `reply` say what its messages are)",
    )
