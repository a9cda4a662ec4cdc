"""Probes that detect which protocol an endpoint speaks, one per protocol.

Each probe sends requests through a `EndpointProbe` and returns a `DetectedProtocol`, or None. The table of
agent types (`agentest.config.agent_types`) names the probe of each type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
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


_AG_UI_REFUSED = (400, 422, 500)
_AG_UI_RUN_FIELDS = (b"threadId", b"runId")
_OPENAPI_PATH = "/openapi.json"
_AG_UI_INPUT_SCHEMA = "#/components/schemas/RunAgentInput"


async def probe_ag_ui(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an AG-UI endpoint by its error for an empty run, or by the server's OpenAPI document."""
    async for path in probe.places("/ag-ui"):
        if _rejects_empty_run(await probe.post_nothing(path)):
            return DetectedProtocol(
                settings={"type": "ag_ui", "endpoint": urljoin(probe.url, path) if path else probe.url},
                because="it asks for the `threadId` and `runId` of an AG-UI run",
            )
    document = await probe.get(_OPENAPI_PATH)
    described = next(_paths_that_take_runs(document.json if document is not None else None), None)
    if described is None:
        return None
    return DetectedProtocol(
        settings={"type": "ag_ui", "endpoint": urljoin(probe.url, described)},
        because=f"its {_OPENAPI_PATH} says that POST {described} takes AG-UI runs",
    )


def _rejects_empty_run(response: ProbeResponse | None) -> bool:
    return (
        response is not None
        and response.status in _AG_UI_REFUSED
        and all(word in response.body for word in _AG_UI_RUN_FIELDS)
    )


def _paths_that_take_runs(document: Any) -> Iterator[str]:
    paths = document.get("paths") if isinstance(document, Mapping) else None
    for path, operations in paths.items() if isinstance(paths, Mapping) else ():
        post = operations.get("post") if isinstance(operations, Mapping) else None
        if (
            isinstance(post, Mapping)
            and "{" not in path
            and _AG_UI_INPUT_SCHEMA in str(post.get("requestBody"))
        ):
            yield path


_AI_SDK_HEADERS = {
    "x-vercel-ai-ui-message-stream": "answers with a UI message stream",
    "x-vercel-ai-data-stream": "answers with a data stream of AI SDK 4",
}


async def probe_ai_sdk(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an AI SDK endpoint by its stream headers, or by pydantic-ai's error about a missing `trigger`."""
    async for path in probe.places("/api/chat"):
        response = await probe.post_nothing(path)
        because = _ai_sdk_evidence(response) if response is not None else None
        if because is not None:
            endpoint = urljoin(probe.url, path) if path else probe.url
            return DetectedProtocol(settings={"type": "ai_sdk", "endpoint": endpoint}, because=because)
    return None


def _ai_sdk_evidence(response: ProbeResponse) -> str | None:
    for header, because in _AI_SDK_HEADERS.items():
        if header in response.headers:
            return f"it {because}"
    wants_trigger = response.status == 422 and b"discriminator 'trigger'" in response.body
    return "it wants a `trigger`, as the AI SDK's client sends it" if wants_trigger else None


_MESSAGES_PATHS = ("/v1/messages",)


async def probe_anthropic_messages(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a Messages endpoint by its error for an empty request, here or at the usual path."""
    async for path in probe.places(*_MESSAGES_PATHS):
        if _is_anthropic_error(await probe.post_nothing(path)):
            endpoint = urljoin(probe.url, path) if path else probe.url
            return DetectedProtocol(
                settings={"type": "anthropic_messages", "endpoint": endpoint},
                because="its errors have the form of Anthropic's",
            )
    return None


def _is_anthropic_error(response: ProbeResponse | None) -> bool:
    data = response.json if response else None
    if not isinstance(data, Mapping) or data.get("type") != "error":
        return False
    error = data.get("error")
    return isinstance(error, Mapping) and isinstance(error.get("type"), str) and "message" in error


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
    endpoint = urljoin(probe.url, CHAT_PATH)
    return DetectedProtocol(
        settings={"type": "chat_completions", "endpoint": endpoint},
        because=f"its {_MODELS_PATH} lists models, as servers with chat completions do",
    )


_MESSAGE_FIELDS = (
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
)
_SESSION_FIELDS = (
    "session_id",
    "sessionid",
    "session",
    "conversation_id",
    "conversationid",
    "thread_id",
    "threadid",
)
_REPLY_FIELDS = ("reply", "response", "answer", "message", "output", "text", "content", "result")


async def probe_http(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a chat request in the server's OpenAPI document, preferably at the endpoint itself."""
    response = await probe.get(_OPENAPI_PATH)
    document = response.json if response is not None and response.status == 200 else None
    if not isinstance(document, Mapping) or not isinstance(document.get("paths"), Mapping):
        return None
    operations = dict(_chat_operations(document))
    configured_path = urlsplit(probe.url).path
    path = configured_path if configured_path in operations else next(iter(operations), None)
    if path is None:
        return None
    settings = {"type": "http", "endpoint": urljoin(probe.url, path), **operations[path]}
    return DetectedProtocol(settings=settings, because=f"its {_OPENAPI_PATH} describes POST {path}")


def _chat_operations(document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path → settings for each operation that takes a message and requires nothing unknown."""
    for path, operations in document["paths"].items():
        post = operations.get("post") if isinstance(operations, Mapping) else None
        if not isinstance(post, Mapping) or "{" in path:
            continue
        body = _body_template(document, post)
        if body is not None:
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
    answer = responses.get("200") if isinstance(responses, Mapping) else None
    names = [
        name for name in _json_schema(document, answer).get("properties", {}) if name.lower() in _REPLY_FIELDS
    ]
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
    if info is None or not _is_langgraph_info(info.json):
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


def _is_langgraph_info(info: Any) -> bool:
    return isinstance(info, Mapping) and any(str(key).startswith("langgraph_") for key in info)


_RESPONSES_PATHS = ("/v1/responses", "/responses")


async def probe_responses(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a Responses endpoint by its error for a missing `input`, here or at the usual paths."""
    async for path in probe.places(*_RESPONSES_PATHS):
        why = _responses_evidence(await probe.post_nothing(path))
        if why:
            endpoint = urljoin(probe.url, path) if path else probe.url
            return DetectedProtocol(settings={"type": "responses", "endpoint": endpoint}, because=why)
    return None


def _responses_evidence(response: ProbeResponse | None) -> str | None:
    data = response.json if response else None
    if not isinstance(data, Mapping):
        return None
    if data.get("object") == "response" and "output" in data:
        return "it answers with a `response` object"
    return "it asks for the `input` of a response" if _lacks_input(data.get("error")) else None


def _lacks_input(error: Any) -> bool:
    if not isinstance(error, Mapping):
        return False
    return error.get("param") == "input" or "'input'" in str(error.get("message"))


_NO_ANSWER_TO_A_POST = (400, 403, 404, 405, 426)


async def probe_websocket(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a WebSocket by opening and closing it, if a POST fails. Its message format stays unknown."""
    response = await probe.post_nothing()
    if response is None or response.status not in _NO_ANSWER_TO_A_POST or not await probe.opens_websocket():
        return None
    return DetectedProtocol(
        settings={"type": "websocket", "endpoint": re.sub("^http", "ws", probe.url)},
        because="a WebSocket opens there (`body` and `reply` say what its messages are)",
    )
