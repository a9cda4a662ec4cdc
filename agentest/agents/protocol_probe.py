"""Detect the protocol of an endpoint from its responses.

`detect_type` names the type of one response by features of that protocol alone. `EndpointProbe` sends probe
requests, whose results the probes of the protocols turn into a `DetectedProtocol`. Agentest uses both when it
cannot read an answer, because the configured `type` is then probably wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import anyio

from agentest.agents.error_hints import ProbeResponse, is_page
from agentest.agents.json_reader import mapping_at, objects_in
from agentest.agents.port import AppFailed
from agentest.agents.reply_paths import find_reply_path, places_of_text
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import BadBody
from agentest.support.http.client import Client, Headers, Sender
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.http.websockets import NotText, SocketClosed
from agentest.support.lazy_dataclasses import dataclass

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
"""Type → description of its endpoint, for messages."""
_REQUIRED_FIELDS: Sequence[tuple[str, frozenset[str]]] = (
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
"""Type → required fields that its servers report as missing, in lower case without separators."""
_REQUIRED_PARAMETER = {"input": "responses", "messages": "chat_completions"}
"""Required parameter of an OpenAI API → the type of its endpoint."""
_PATHS = {
    "/chat/completions": "chat_completions",
    "/v1/responses": "responses",
    "/v1/messages": "anthropic_messages",
    "/ag-ui": "ag_ui",
}
"""Usual end of a path → type."""
_AI_SDK_HEADERS = ("x-vercel-ai-ui-message-stream", "x-vercel-ai-data-stream")
_MISSING = re.compile(r"missing|required", re.I)
_NO_MODEL = re.compile(
    r"model=None|must provide a model|parameter: 'model'|model: field required|no such model"
    r"|model\b.{0,80}(?:not found|does not exist)",
    re.I,
)
_NO_PARTS = re.compile(rb"Cannot read properties of undefined \(reading '(some|map|filter|parts)'\)")
USER_AGENT = "agentest (detects the protocol of this server)"
_TIMEOUT_S = 2.0
_GREETING_S = 0.5
_REPLY_TIMEOUT_S = 30.0
"""For the reply to a message, which an agent may ask its model for."""
_READ_BYTES = 200_000
_NOT_FOR_WEBSOCKETS = ("accept", "accept-encoding", "content-type", "user-agent")
_MESSAGE_FIELDS = ("message", "question", "query", "prompt", "input", "text", "content", "msg")


def detect_type(response: ProbeResponse) -> str | None:
    """Return the type that a response belongs to, or None if it is not specific to one."""
    if response.status == 426 or b'"Upgrade" only to "WebSocket"' in response.body:
        return "websocket"
    if any(name in response.headers for name in _AI_SDK_HEADERS):
        return "ai_sdk"
    return _by_value(_json_value(response.body)) or _by_missing_fields(response)


def is_login_page(body: bytes) -> bool:
    """Return True if a body is a web page with a password field."""
    return is_page(body) and re.search(rb"type\s*=\s*[\"']?password", body, re.I) is not None


def is_missing_model_error(response: ProbeResponse) -> bool:
    """Return True if a response is an OpenAI-style error about a missing model."""
    error = mapping_at(response.json, "error")
    is_about_it = error.get("param") == "model" or _NO_MODEL.search(str(error.get("message")))
    return response.status in (400, 404, 422) and bool(is_about_it)


def is_absent(response: ProbeResponse | None) -> bool:
    """Return True if nothing takes a POST there. A 404 about a model comes from an agent."""
    return response is None or (response.status in (404, 405) and not is_missing_model_error(response))


def possible_type_hint(response: ProbeResponse, kind: str, url: str) -> str:
    """Return a suggestion from weaker signs, worded as a possibility, or ""."""
    if response.status >= 500 and kind != "ai_sdk" and _NO_PARTS.search(response.body):
        return "if this is a backend of Vercel's AI SDK, which misses the `parts` of messages: `type: ai_sdk`"
    possible_type = type_of_path(url) or kind
    if possible_type != kind and response.status not in (404, 405):
        return f"by its path, this may be {NAMES[possible_type]}: `type: {possible_type}`"
    is_refusal = response.status in (400, 415, 422) and response.json is None and response.body.strip()
    if kind in ("http", "websocket") or not is_refusal:
        return ""
    return "if it takes a form of its own: `type: http`, whose `body` and `headers` say which"


def type_of_path(url: str) -> str:
    """Return the type whose endpoints usually end like this URL, or ""."""
    path = urlsplit(url).path.rstrip("/")
    return next((name for end, name in _PATHS.items() if path.endswith(end)), "")


def _json_value(body: bytes) -> Any:
    """Return the JSON value of a body or of its first event that has one, or None."""
    text = body.decode("utf-8", errors="replace").lstrip("\ufeff \r\n\t")
    is_whole = text.startswith(("{", "["))
    texts = [text] if is_whole else [line[5:] for line in text.splitlines() if line.startswith("data:")]
    for each in texts:
        with suppress(ValueError, RecursionError):
            if (value := json.loads(each)) is not None:
                return value
    return None


def _by_value(value: Any) -> str | None:
    if isinstance(value, list):
        return "adk" if value and _is_adk(value[0]) else None
    if not isinstance(value, Mapping):
        return None
    return next((name for name, is_one in _MARKS.items() if is_one(value)), None)


def _is_adk(value: Any) -> bool:
    return isinstance(value, Mapping) and {"author", "invocationId"} <= value.keys()


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
    "adk": _is_adk,
}


def _by_missing_fields(response: ProbeResponse) -> str | None:
    if b"Unable to extract tag using discriminator 'trigger'" in response.body:
        return "ai_sdk"  # the error message is pydantic-ai's
    names = missing_fields(response.json)
    lacked = {name.replace("_", "").replace("-", "").lower() for name in names}
    by_fields = next((name for name, fields in _REQUIRED_FIELDS if fields <= lacked), None)
    error = mapping_at(response.json, "error")  # of an OpenAI API
    if by_fields or not {"param", "type"} <= error.keys() or not _MISSING.search(str(error.get("message"))):
        return by_fields
    return _REQUIRED_PARAMETER.get(str(error["param"]))


def missing_fields(answer: Any) -> tuple[str, ...]:
    """Return the body fields that an error of pydantic or FastAPI reports as missing."""
    fields = [path[path[0] == "body" :] for path in _missing_places(answer)]
    return tuple(str(field[0]) for field in fields if len(field) == 1)


def missing_headers(answer: Any) -> tuple[str, ...]:
    """Return the headers that an error of FastAPI reports as missing."""
    return tuple(str(path[1]) for path in _missing_places(answer) if path[0] == "header" and path[1:])


def _missing_places(answer: Any) -> list[list[Any]]:
    detail = answer.get("detail") if isinstance(answer, Mapping) else answer
    places = [each.get("loc") for each in objects_in(detail) if each.get("type") == "missing"]
    return [path for path in places if isinstance(path, list) and path]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedProtocol:
    """A detected protocol, and the settings for it."""

    settings: Mapping[str, Any]
    """The settings to write under `agent`, such as `type` and `endpoint`."""
    because: str
    """The evidence, as the end of a sentence: "its /info names a LangGraph server"."""


def settings_line(settings: Mapping[str, Any]) -> str:
    """Format settings as one line of YAML to paste: `type: a2a, endpoint: http://localhost:8000`."""
    return ", ".join(f"{key}: {_yaml(value)}" for key, value in settings.items())


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{settings_line(value)}}}"
    is_plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w./:@+-]*", value) is not None
    return value if is_plain and not value.endswith(":") else json.dumps(value, ensure_ascii=False)


@dataclass(slots=True)
class EndpointProbe:
    """Sends probe requests to one server, each only once. A failed request returns None."""

    url: str
    """The configured endpoint."""
    client: Sender
    headers: Headers = ()
    only_gets: bool = False
    """If true, no messages are sent: the agent does no work."""
    tried: list[str] = field(default_factory=list)
    """The requests so far and what came back, in order: `POST /chat: 404`."""
    _seen: dict[tuple[str, str], ProbeResponse | None] = field(default_factory=dict)
    _knows_greeting: bool = False
    _greeting: str | None = None
    """The first message of the WebSocket at the endpoint; "" if there is none."""
    _one_at_a_time: anyio.Lock = field(default_factory=anyio.Lock)

    async def get(self, path: str = "") -> ProbeResponse | None:
        """Return the response to a GET of a path on the server, or of the endpoint itself ("")."""
        return await self._send("GET", path, None)

    async def post_message(self, path: str = "") -> ProbeResponse | None:
        """Return the response to a valid first message of the protocol that the path suggests.

        An empty body would tell as much, but handlers that do not check their input die of it.
        """
        if self.only_gets:
            return None
        return await self._send("POST", path, first_message(urljoin(self.url, path)))

    async def post(self, path: str, body: Any) -> ProbeResponse | None:
        """Return the response to a POST of a JSON body."""
        return await self._send("POST", path, body)

    async def post_form(self, path: str, fields: Mapping[str, str]) -> ProbeResponse | None:
        """Return the response to a POST of a form."""
        return await self._send("POST", path, urlencode(fields))

    async def openapi(self) -> Any:
        """Return the server's OpenAPI document, or None."""
        response = await self.get(OPENAPI_PATH)
        document = response.json if response is not None and response.status == 200 else None
        return document if isinstance(document, Mapping) and "paths" in document else None

    async def places(self, *usual: str) -> AsyncIterator[str]:
        """Yield the paths to probe: the endpoint (""), then the usual paths if it does not accept a POST."""
        at_root = urlsplit(self.url).path in ("", "/")
        has_document = await self.openapi() is not None
        if not (at_root and has_document):
            yield ""
        if has_document:
            return  # it lists what the server takes
        itself = await self.post_message()
        if itself is not None and itself.status in (401, 403):
            return  # every path would answer the same
        is_elsewhere = itself is None or is_absent(itself) or is_page(itself.body) or not itself.body.strip()
        if is_elsewhere or (at_root and itself is not None and not itself.is_success):
            for path in usual:
                yield path

    async def websocket_greeting(self) -> str | None:
        """Return what a WebSocket at the endpoint sends first, "" for nothing; None if it does not open.

        It is closed without sending a message.
        """
        async with self._one_at_a_time:
            if not self._knows_greeting and isinstance(self.client, Client):
                self._knows_greeting = True
                headers = [(name, value) for name, value in self.headers if name not in _NOT_FOR_WEBSOCKETS]
                try:
                    with TimeLimit(_TIMEOUT_S):
                        socket = await self.client.open_websocket(
                            self.url, [*headers, ("user-agent", USER_AGENT)]
                        )
                except (*CONNECTION_ERRORS, TimeoutError, RefusedAddress):
                    return None
                self._greeting = ""
                try:
                    with suppress(TimeoutError, SocketClosed, NotText), TimeLimit(_GREETING_S):
                        self._greeting = await socket.next()
                finally:
                    await socket.close()
            return self._greeting  # None for an application in this process

    async def _send(self, method: str, path: str, body: Any) -> ProbeResponse | None:
        url = urljoin(self.url, path) if path else self.url
        key = (method, f"{url} {json.dumps(body)}" if body else url)
        async with self._one_at_a_time:  # many conversations may fail at the same time
            if key not in self._seen:
                self._seen[key] = await self._request(method, url, body)
            return self._seen[key]

    async def _request(self, method: str, url: str, body: Any) -> ProbeResponse | None:
        is_form = isinstance(body, str)
        content_type = "application/x-www-form-urlencoded" if is_form else "application/json"
        defaults = {"accept": "*/*", "content-type": content_type, "user-agent": USER_AGENT}
        own_headers = [(name, value) for name, value in self.headers if name not in defaults]
        # Servers that answer before they read a body would take it for the next request of the connection.
        headers = [*own_headers, *defaults.items(), ("connection", "close")]
        content = None if body is None else (body if is_form else json.dumps(body)).encode()
        tried = f"{method} {urlsplit(url).path or '/'}{' (form)' if is_form else ''}"
        limit_s = _TIMEOUT_S if body is None else _REPLY_TIMEOUT_S
        try:
            with TimeLimit(limit_s):
                response = await self.client.send_direct(method, url, headers, content)
                try:
                    received = b""
                    async for piece in response.pieces():
                        received += piece
                        if len(received) >= _READ_BYTES:
                            break
                finally:
                    await response.aclose()
        except TimeoutError:
            self.tried.append(f"{tried}: no complete answer within {limit_s:g} s")
            return None
        except (*CONNECTION_ERRORS, BadBody, RefusedAddress, AppFailed) as error:
            # An unreachable path is a valid result of a probe.
            known = isinstance(error, CONNECTION_ERRORS)
            self.tried.append(f"{tried}: {describe(error) if known else error}")
            return None
        self.tried.append(f"{tried}: {response.status_code}")
        return ProbeResponse(status=response.status_code, headers=response.headers, body=received)


OPENAPI_PATH = "/openapi.json"
_HELLO = "Hello, my name is {}."
GREETERS = {
    "message": "Ada",
    "messages": "Ben",
    "input": "Cleo",
    "query": "Dana",
    "question": "Emil",
    "prompt": "Fay",
    "text": "Gil",
}
"""Field of a first message → the name in its greeting, which replies often repeat."""


def first_message(url: str, model: str = "") -> dict[str, Any]:
    """Return the body of a valid first message for the protocol that the path of a URL suggests.

    If it suggests none, every field that agents usually read has the message.
    """
    text = _HELLO.format(GREETERS["messages"])
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    named = {"model": model} if model else {}
    match type_of_path(url):
        case "chat_completions":
            return {**named, "messages": messages}
        case "responses":
            return {**named, "input": messages}
        case "anthropic_messages":
            return {**named, "max_tokens": 1024, "messages": messages}
        case "ag_ui":
            run = {"threadId": "agentest-1", "runId": "agentest-2", "state": {}, "tools": [], "context": []}
            return {**run, "messages": [{"id": "agentest-3", **messages[0]}], "forwardedProps": {}}
    texts = {name: _HELLO.format(who) for name, who in GREETERS.items() if name != "messages"}
    parts = {"id": "agentest-3", **messages[0], "parts": [{"type": "text", "text": text}]}
    ids = {"session_id": "agentest-1", "id": "agentest-1", "trigger": "submit-message"}
    return {**named, **texts, "messages": [parts], **ids}


def describe_detected(finding: DetectedProtocol) -> str:
    """Describe a finding and the configuration for it."""
    return f"{finding.because}: `{settings_line(finding.settings)}`"


def suggest_for_fields(missing: Sequence[str], *, add: bool = False) -> str:
    """Suggest a configuration for an agent that reports missing fields. `add`: to a configured `body`."""
    values = body_of_fields(missing, guess=not add).items()
    fields = ", ".join(f'{name}: "{value}"' if value else f"{name}: …" for name, value in values)
    if add:
        return f"add to `body`: {fields}"
    return f"it has a form of its own: `type: http` with `body: {{{fields}}}`"


def body_of_fields(missing: Sequence[str], *, guess: bool = True) -> dict[str, str]:
    """Return a request body with the fields that the server said are missing.

    The message is filled in; a field of unknown purpose is "". `guess`: one of them is for the message.
    """
    message = next((name for name in _MESSAGE_FIELDS if name in missing), missing[0] if guess else "")
    known = {message: "{{message}}", "messages": "{{messages}}"}
    return {
        name: known.get(name, "{{session_id}}" if "session" in name or name.endswith("id") else "")
        for name in missing
    }


def suggest_for_reply(response: ProbeResponse) -> str:
    """Suggest a configuration for an agent that answers with JSON in a custom form, or ""."""
    answer = response.json if 200 <= response.status < 300 else None
    if not isinstance(answer, Mapping) or any(answer.get(key) for key in ("error", "errors", "detail")):
        return ""
    places = places_of_text(answer)
    try:
        path = find_reply_path(answer)
    except AgentError:
        path = None
    offered = " or ".join(f"`{place}`" for place in places)
    where = f"`reply` ({offered})" if path is None else f"`reply: {path.text}`"
    body = '{message: "{{message}}"}'
    return f"if this form is its own: `type: http` with {where} and a `body` like `{body}`" if places else ""
