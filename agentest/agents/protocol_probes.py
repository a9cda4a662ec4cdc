"""Whether an endpoint is an A2A agent: it has a card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from agentest.agents.a2a.discovery import base_of, find_card
from agentest.agents.detection import Finding, Look, Seen, recognised
from agentest.config.agents.chat_completions import CHAT_PATH


async def probe_a2a(look: Look) -> Finding | None:
    """The agent that the card at the endpoint, or at its server's root, speaks of."""

    async def fetch(url: str) -> Any:
        seen = await look.get(url)
        return seen.json if seen is not None and seen.status == 200 else None

    for endpoint in dict.fromkeys((look.url, urljoin(look.url, "/"))):
        card = await find_card(endpoint, fetch)
        if card is not None and card.offers:
            return Finding(
                settings={"type": "a2a", "endpoint": base_of(endpoint)},
                because=f"its agent card offers A2A {card.offers[0].version}",
            )
    return None


_APPS = "/list-apps"


async def probe_adk_server(look: Look) -> Finding | None:
    """The root of google-adk's server, with its first app."""
    seen = await look.get(_APPS)
    apps = seen.json if seen is not None and seen.status == 200 else None
    if not isinstance(apps, list) or not apps or not all(isinstance(app, str) for app in apps):
        return None
    root = urljoin(look.url, "/").rstrip("/")
    return Finding(
        settings={"type": "adk", "endpoint": root, "app_name": apps[0]},
        because=f"its {_APPS} tells the apps of google-adk's server",
    )


_REFUSED = (400, 422, 500)
_OF_A_RUN = (b"threadId", b"runId")
_DOCUMENT = "/openapi.json"
_INPUT = "#/components/schemas/RunAgentInput"


async def probe_ag_ui(look: Look) -> Finding | None:
    """What the endpoint says of a run without anything, else what the server's OpenAPI document does."""
    async for path in look.places("/ag-ui"):
        if _misses_a_run(await look.post_nothing(path)):
            return Finding(
                settings={"type": "ag_ui", "endpoint": urljoin(look.url, path) if path else look.url},
                because="it asks for the `threadId` and `runId` of an AG-UI run",
            )
    document = await look.get(_DOCUMENT)
    described = next(_takes_runs(document.json if document is not None else None), None)
    if described is None:
        return None
    return Finding(
        settings={"type": "ag_ui", "endpoint": urljoin(look.url, described)},
        because=f"its {_DOCUMENT} says that POST {described} takes AG-UI runs",
    )


def _misses_a_run(seen: Seen | None) -> bool:
    return seen is not None and seen.status in _REFUSED and all(word in seen.body for word in _OF_A_RUN)


def _takes_runs(document: Any) -> Iterator[str]:
    paths = document.get("paths") if isinstance(document, Mapping) else None
    for path, operations in paths.items() if isinstance(paths, Mapping) else ():
        post = operations.get("post") if isinstance(operations, Mapping) else None
        if isinstance(post, Mapping) and "{" not in path and _INPUT in str(post.get("requestBody")):
            yield path


_HEADERS = {
    "x-vercel-ai-ui-message-stream": "answers with a UI message stream",
    "x-vercel-ai-data-stream": "answers with a data stream of AI SDK 4",
}


async def probe_ai_sdk(look: Look) -> Finding | None:
    """Its streams say what they are by a header; pydantic-ai refuses `{}` for want of a `trigger`."""
    async for path in look.places("/api/chat"):
        seen = await look.post_nothing(path)
        because = _why(seen) if seen is not None else None
        if because is not None:
            endpoint = urljoin(look.url, path) if path else look.url
            return Finding(settings={"type": "ai_sdk", "endpoint": endpoint}, because=because)
    return None


def _why(seen: Seen) -> str | None:
    for header, because in _HEADERS.items():
        if header in seen.headers:
            return f"it {because}"
    wants_trigger = seen.status == 422 and b"discriminator 'trigger'" in seen.body
    return "it wants a `trigger`, as the AI SDK's client sends it" if wants_trigger else None


_PATHS = ("/v1/messages",)


async def probe_anthropic_messages(look: Look) -> Finding | None:
    """Ask with an empty request: at the endpoint, and, where nobody is there, where Messages usually are."""
    async for path in look.places(*_PATHS):
        if _is_error(await look.post_nothing(path)):
            endpoint = urljoin(look.url, path) if path else look.url
            return Finding(
                settings={"type": "anthropic_messages", "endpoint": endpoint},
                because="its errors have the form of Anthropic's",
            )
    return None


def _is_error(seen: Seen | None) -> bool:
    data = seen.json if seen else None
    if not isinstance(data, Mapping) or data.get("type") != "error":
        return False
    error = data.get("error")
    return isinstance(error, Mapping) and isinstance(error.get("type"), str) and "message" in error


_MODELS = "/v1/models"


async def probe_chat_completions(look: Look) -> Finding | None:
    """The endpoint itself, or the one beside the list of models."""
    here = await look.post_nothing()
    if here is not None and recognised(here) == "chat_completions":
        because = "it asks for the `messages` of chat completions"
        return Finding(settings={"type": "chat_completions", "endpoint": look.url}, because=because)
    seen = await look.get(_MODELS)
    if seen is None or not isinstance(seen.json, Mapping) or seen.json.get("object") != "list":
        return None
    endpoint = urljoin(look.url, CHAT_PATH)
    return Finding(
        settings={"type": "chat_completions", "endpoint": endpoint},
        because=f"its {_MODELS} lists models, as servers with chat completions do",
    )


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


async def probe_http(look: Look) -> Finding | None:
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


async def probe_langgraph(look: Look) -> Finding | None:
    """A LangGraph server says so at /info, and lists its graphs as assistants."""
    info = await look.get("/info")
    if info is None or not _is_langgraph(info.json):
        return None
    found = await look.post_nothing("/assistants/search")
    assistants = found.json if found is not None and isinstance(found.json, list) else []
    graphs = list(
        dict.fromkeys(a["graph_id"] for a in assistants if isinstance(a, Mapping) and "graph_id" in a)
    )
    settings: dict[str, Any] = {"type": "langgraph", "endpoint": urljoin(look.url, "/").rstrip("/")}
    if graphs:
        settings["assistant_id"] = graphs[0]
    names = f", with the graphs {', '.join(map(str, graphs))}" if graphs else ""
    return Finding(settings=settings, because=f"its /info is that of a LangGraph server{names}")


def _is_langgraph(info: Any) -> bool:
    return isinstance(info, Mapping) and any(str(key).startswith("langgraph_") for key in info)


_probe_PATHS = ("/v1/responses", "/responses")


async def probe_responses(look: Look) -> Finding | None:
    """Ask without an `input`: at the endpoint, and, where nobody is there, where Responses usually are."""
    async for path in look.places(*_probe_PATHS):
        why = _probe_why(await look.post_nothing(path))
        if why:
            endpoint = urljoin(look.url, path) if path else look.url
            return Finding(settings={"type": "responses", "endpoint": endpoint}, because=why)
    return None


def _probe_why(seen: Seen | None) -> str | None:
    data = seen.json if seen else None
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


async def probe_websocket(look: Look) -> Finding | None:
    """It is opened and closed, where a POST is not answered; what its messages are is not known then."""
    seen = await look.post_nothing()
    if seen is None or seen.status not in _NO_ANSWER_TO_A_POST or not await look.opens_websocket():
        return None
    return Finding(
        settings={"type": "websocket", "endpoint": re.sub("^http", "ws", look.url)},
        because="a WebSocket opens there (`body` and `reply` say what its messages are)",
    )
