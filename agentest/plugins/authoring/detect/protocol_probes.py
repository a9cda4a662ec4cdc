"""Probes that detect which protocol an endpoint speaks, one per protocol.

Each probe sends requests through a `EndpointProbe` and returns a `DetectedProtocol`, or None. The table of
agent types (`agentest.config.agent_types`) names the probe of each type.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from agentest.agents.core_probes import chat_operations, posts_in
from agentest.agents.error_hints import ProbeResponse
from agentest.agents.protocol_probe import (
    OPENAPI_PATH,
    DetectedProtocol,
    EndpointProbe,
    detect_type,
    is_missing_model_error,
    type_of_path,
)
from agentest.config.agents.chat_completions import CHAT_PATH
from agentest.plugins.protocols.a2a.discovery import base_of, find_card


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
        because=f"its {_ADK_APPS_PATH} lists the apps of google-adk's server",
    )


async def _by_message(
    probe: EndpointProbe,
    kind: str,
    usual: Sequence[str],
    evidence: Callable[[ProbeResponse], str | None],
) -> DetectedProtocol | None:
    """Find an endpoint by its response to a message, at the paths of the OpenAPI document, here or at the
    `usual` paths. Without messages, the document and a path of the protocol that takes only POST count."""
    listed = [path for path, named in _protocol_paths(await probe.openapi()) if named == kind]
    if listed and probe.only_gets:
        because = f"its {OPENAPI_PATH} lists POST {listed[0]}"
        return _found(probe, kind, listed[0], because)
    if probe.only_gets:
        for path in usual:
            if type_of_path(path) == kind and (await _status_of(probe, path)) == 405:
                return _found(probe, kind, path, f"the server has {path}")
        return None
    for path in listed:
        response = await probe.post_message(path)
        shown = evidence(response) if response is not None else None
        return _found(probe, kind, path, shown or f"its {OPENAPI_PATH} lists POST {path}")
    async for path in probe.places(*usual):
        response = await probe.post_message(path)
        if response is None:
            continue
        names_kind = type_of_path(urljoin(probe.url, path)) == kind
        if seen := evidence(response):
            return _found(probe, kind, path, seen)
        if names_kind and is_missing_model_error(response):
            return _found(probe, kind, path, "it asks for the name of a model, at a path of this protocol")
    return None


def _found(probe: EndpointProbe, kind: str, path: str, because: str) -> DetectedProtocol:
    endpoint = urljoin(probe.url, path) if path else probe.url
    return DetectedProtocol(settings={"type": kind, "endpoint": endpoint}, because=because)


async def _status_of(probe: EndpointProbe, path: str) -> int | None:
    response = await probe.get(path)
    return response.status if response is not None else None


def _protocol_paths(document: Any) -> Iterator[tuple[str, str]]:
    """Yield path → type for the POST operations of an OpenAPI document that belong to a known protocol."""
    for path, post in posts_in(document):
        takes_runs = "#/components/schemas/RunAgentInput" in str(post.get("requestBody"))
        if kind := "ag_ui" if takes_runs else type_of_path(path):
            yield path, kind


async def probe_ag_ui(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an AG-UI endpoint by its answer or error for a message, or by the OpenAPI document."""
    return await _by_message(probe, "ag_ui", ("/ag-ui",), _ag_ui_evidence)


def _ag_ui_evidence(response: ProbeResponse) -> str | None:
    if detect_type(response) == "ag_ui":
        return "it speaks in AG-UI's events and fields"
    lacks_both = b"threadId" in response.body and b"runId" in response.body
    is_one = response.status in (400, 422, 500) and lacks_both
    return "it asks for the `threadId` and `runId` of an AG-UI run" if is_one else None


_AI_SDK_HEADERS = {
    "x-vercel-ai-ui-message-stream": "it answers with a UI message stream",
    "x-vercel-ai-data-stream": "it answers with a data stream of AI SDK 4",
}


async def probe_ai_sdk(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an AI SDK endpoint by its stream headers, or by pydantic-ai's error about a missing `trigger`."""
    return await _by_message(probe, "ai_sdk", ("/api/chat",), _ai_sdk_evidence)


def _ai_sdk_evidence(response: ProbeResponse) -> str | None:
    for header, because in _AI_SDK_HEADERS.items():
        if header in response.headers:
            return because
    if response.is_success and detect_type(response) == "ai_sdk":
        return "it answers with a UI message stream"
    wants_trigger = response.status == 422 and b"discriminator 'trigger'" in response.body
    return "it wants a `trigger`, as the AI SDK's client sends it" if wants_trigger else None


async def probe_anthropic_messages(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a Messages endpoint by its answer or error for a message, here or at the usual path."""
    return await _by_message(probe, "anthropic_messages", ("/v1/messages",), _anthropic_evidence)


def _anthropic_evidence(response: ProbeResponse) -> str | None:
    match response.json:
        case {"type": "error", "error": {"type": str(), "message": _}}:
            return "its errors have the form of Anthropic's"
    is_one = response.is_success and detect_type(response) == "anthropic_messages"
    return "it answers with a message in the form of Anthropic's" if is_one else None


_MODELS_PATH = "/v1/models"


async def probe_chat_completions(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a chat-completions endpoint by its answer or error for a message, or by its list of models."""
    usual = (CHAT_PATH, "/chat/completions")
    if found := await _by_message(probe, "chat_completions", usual, _chat_completions_evidence):
        return found
    models = await probe.get(_MODELS_PATH)
    if models is None or not isinstance(models.json, Mapping) or models.json.get("object") != "list":
        return None
    return DetectedProtocol(
        settings={"type": "chat_completions", "endpoint": urljoin(probe.url, CHAT_PATH)},
        because=f"its {_MODELS_PATH} lists models, as servers with chat completions do",
    )


def _chat_completions_evidence(response: ProbeResponse) -> str | None:
    if detect_type(response) != "chat_completions":
        return None
    return "it answers with a chat completion" if response.is_success else "it asks for chat completions"


async def probe_http(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a chat request in the server's OpenAPI document, preferably at the endpoint itself."""
    operations = {each.path: each for each in chat_operations(await probe.openapi())}
    here = urlsplit(probe.url).path
    chosen = operations.get(here) or next(iter(operations.values()), None)
    if chosen is None:
        return None
    path = await _with_first_id(probe, chosen.path)
    settings = {"type": "http", "endpoint": urljoin(probe.url, path), **chosen.settings}
    return DetectedProtocol(settings=settings, because=f"its {OPENAPI_PATH} describes POST {chosen.path}")


async def _with_first_id(probe: EndpointProbe, path: str) -> str:
    """Replace the parameter of a path by the first id of the collection before it."""
    collection, brace, rest = path.partition("/{")
    if not brace:
        return path
    response = await probe.get(collection)
    listed = response.json if response is not None else None
    first = listed[0] if isinstance(listed, list) and listed else None
    if isinstance(first, Mapping):
        first = next((first[key] for key in ("id", "agent_id", "name") if key in first), None)
    return f"{collection}/{first}{rest.partition('}')[2]}" if isinstance(first, str) else path


async def probe_langgraph(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a LangGraph server by `/info`, and its graphs by the list of assistants."""
    info = await probe.get("/info")
    known = info.json if info is not None else None
    if not isinstance(known, Mapping) or not any(str(key).startswith("langgraph_") for key in known):
        return None
    response = await probe.post("/assistants/search", {})
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
    """Find a Responses endpoint by its answer or error for a message, here or at the usual paths."""
    return await _by_message(probe, "responses", ("/v1/responses", "/responses"), _responses_evidence)


def _responses_evidence(response: ProbeResponse) -> str | None:
    match response.json:
        case {"object": "response", "output": _}:
            return "it answers with a `response` object"
        case {"error": {**error}} if error.get("param") == "input" or "'input'" in str(error.get("message")):
            return "it asks for the `input` of a response"
    is_one = response.is_success and detect_type(response) == "responses"
    return "it answers with the events of a response" if is_one else None


async def probe_websocket(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find a WebSocket by opening and closing it, if a GET fails. Its first message may show Realtime."""
    response = await probe.get()
    if response is None or response.status not in (400, 403, 404, 405, 426):
        return None
    greeting, endpoint = await probe.websocket_greeting(), re.sub("^http", "ws", probe.url)
    if greeting is None:
        return None
    if '"session.created"' in greeting:
        return DetectedProtocol(
            settings={"type": "realtime", "endpoint": endpoint},
            because="its first message is `session.created` of OpenAI's Realtime API",
        )
    return DetectedProtocol(
        settings={"type": "websocket", "endpoint": endpoint},
        because="a WebSocket opens there (`body` and `reply` say what its messages are)",
    )
