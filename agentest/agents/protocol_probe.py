"""Detect the protocol of an endpoint from its responses.

`detect_type` names the type of one response by features of that protocol alone. `EndpointProbe` sends probe
requests, whose results the `ProtocolProbe` of each agent type turns into a `DetectedProtocol`. Agentest uses
both when it cannot read an answer, because the configured `type` is then probably wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, ClassVar
from urllib.parse import urljoin, urlsplit

import anyio

from agentest.agents.error_hints import ProbeResponse, is_page
from agentest.agents.json_reader import mapping_at, objects_in
from agentest.agents.port import AppFailed
from agentest.config.agent_types import DEFAULT_TYPE, agent_type
from agentest.plugin import PLUGINS, if_command
from agentest.support.deadlines import TimeLimit
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import BadBody
from agentest.support.http.client import Client, Headers, Sender
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.http.websockets import NotText, SocketClosed
from agentest.support.lazy_dataclasses import dataclass

_MISSING = re.compile(r"missing|required", re.I)
_NO_MODEL = re.compile(
    r"model=None|must provide a model|parameter: 'model'|model: field required|no such model"
    r"|model\b.{0,80}(?:not found|does not exist)",
    re.I,
)
USER_AGENT = "agentest (detects the protocol of this server)"
_TIMEOUT_S = 2.0
_GREETING_S = 2.0  # a model may write it
_REPLY_TIMEOUT_S = 30.0  # for the reply to a message, which an agent may ask its model for
_READ_BYTES = 200_000
_NOT_FOR_WEBSOCKETS = ("accept", "accept-encoding", "content-type", "user-agent")
_LACKING = re.compile("^Required$|received undefined$")
MESSAGE_FIELDS = (
    "message", "question", "query", "prompt", "input", "text", "content", "msg", "user_message", "utterance",
    "user_input", "q",
)  # fmt: skip
"""Names of the user's message in requests, the likeliest first."""


class ProtocolProbe:
    """How a server shows that it speaks the protocol of an agent type. Each type hands in a subclass.

    Args:
        kind: the name of the type.
        about: what speaks it, for messages: "an A2A agent".
    """

    order: ClassVar[int] = 3
    """Place among all probes: first those of servers that describe themselves to GET requests, then those
    that send a message, and last those of protocols that many servers speak."""
    usual_paths: ClassVar[tuple[str, ...]] = ()
    """Where endpoints that answer a first message usually are. Empty: a message does not show this type."""
    path_end: ClassVar[str] = ""  # the end of a path that suggests this type
    required: ClassVar[frozenset[str]] = frozenset()
    """Fields that its servers report as missing, in lower case without separators."""
    names_model: ClassVar[bool] = False
    at_root: ClassVar[bool] = False
    """True if its endpoint is the root of a server, whose agent a setting names."""
    has_own_form: ClassVar[bool] = False  # True if its settings say what messages are like
    forms: ClassVar[tuple[Mapping[str, Any], ...]] = ({},)  # further settings to send a message with

    def __init__(self, kind: str, about: str) -> None:
        self.kind = kind
        self.about = about

    def is_spoken(self, response: ProbeResponse) -> bool:
        """Return True if a response is one of this protocol alone."""
        del response
        return False

    def evidence(self, response: ProbeResponse) -> str | None:
        """Return what shows that the response to a first message is of this protocol, or None."""
        del response
        return None

    def is_listed(self, path: str, operation: Mapping[str, Any]) -> bool:
        """Return True if a POST of an OpenAPI document is of this protocol."""
        del operation
        return bool(self.path_end) and path.rstrip("/").endswith(self.path_end)

    def first_body(self, messages: list[dict[str, Any]], model: Mapping[str, str]) -> dict[str, Any]:
        """Return the body of a first message. Only for a type with a `path_end`."""
        return {**model, "messages": messages}

    def hint(self, response: ProbeResponse) -> str:
        """Return advice from a weak sign in a response, worded as a possibility, or ""."""
        del response
        return ""

    def guess(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        """Return what to write if no probe has found anything, with the reason as a sentence, or None."""
        del endpoint
        return None

    async def find(self, endpoint: EndpointProbe) -> DetectedProtocol | None:
        """Find an endpoint by its response to a message, at the paths of the OpenAPI document, here or at the
        `usual_paths`. Without messages, the document and a path of the protocol that takes only POST count.
        """
        if not self.usual_paths:
            return None
        url, document = endpoint.url, await endpoint.openapi()
        listed = [path for path, post in posts_in(document) if self.is_listed(path, post)]
        if listed and endpoint.only_gets:
            return self.found(urljoin(url, listed[0]), f"its {OPENAPI_PATH} lists POST {listed[0]}")
        if endpoint.only_gets:
            for path in self.usual_paths:
                response = await endpoint.get(path) if self.is_listed(path, {}) else None
                if response is not None and response.status == 405:
                    return self.found(urljoin(url, path), f"the server has {path}")
            return None
        for path in listed:
            response = await endpoint.post_message(path)
            shown = self.evidence(response) if response is not None else None
            return self.found(urljoin(url, path), shown or f"its {OPENAPI_PATH} lists POST {path}")
        async for path in endpoint.places(*self.usual_paths):
            response = await endpoint.post_message(path)
            if response is None:
                continue
            here = urljoin(url, path)
            if seen := self.evidence(response):
                return self.found(here, seen)
            if self.is_listed(urlsplit(here).path, {}) and is_missing_model_error(response):
                return self.found(here, "it asks for the name of a model, at a path of this protocol")
        return None

    def found(self, address: str, because: str, **more: Any) -> DetectedProtocol:
        """Return a finding at an address, with further settings."""
        return DetectedProtocol(settings={"type": self.kind, "endpoint": address, **more}, because=because)


def all_probes() -> list[ProtocolProbe]:
    """Return the probes of all agent types that have one, in the order in which types were handed in."""
    found: dict[str, type[ProtocolProbe]] = PLUGINS.load_all("agent type", "probe")
    return [make(name, agent_type(name).help) for name, make in found.items()]


def probe_of(name: str) -> ProtocolProbe:
    """Return the probe of an agent type. That of a type that is not detected finds nothing."""
    kind = agent_type(name)
    make: type[ProtocolProbe] = kind.load("probe") if "probe" in kind.facts else ProtocolProbe
    return make(name, kind.help)


def detect_type(response: ProbeResponse) -> str | None:
    """Return the type that a response belongs to, or None if it is not specific to one."""
    probes = all_probes()
    if spoken := next((each.kind for each in probes if each.is_spoken(response)), None):
        return spoken
    lacked = {re.sub("[_-]", "", name).lower() for name in missing_fields(response.json)}
    asking = [each for each in probes if each.required and each.required <= lacked]
    # Other protocols ask for what chat completions have, and more.
    most = max(asking, key=lambda each: (len(each.required), each.kind != DEFAULT_TYPE), default=None)
    return most.kind if most else None


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
    hints = (each.hint(response) for each in all_probes() if each.kind != kind)
    if found := next(filter(None, hints), ""):
        return found
    possible = probe_of_path(url)
    if possible and possible.kind != kind and response.status not in (404, 405):
        return f"by its path, this may be {possible.about}: `type: {possible.kind}`"
    answer = response.json
    is_refusal = response.status in (400, 415, 422) and answer is None and response.body.strip()
    is_reply = response.is_success and isinstance(answer, Mapping)
    is_error = is_reply and any(map(answer.get, ("error", "errors", "detail")))
    if probe_of(kind).has_own_form or is_error or not (is_refusal or is_reply):
        return ""
    how = if_command("init", ", which agentest init FOLDER --curl 'curl …' writes for a request that works")
    return f"if it has a form of its own: `type: http`{how}"


def probe_of_path(url: str) -> ProtocolProbe | None:
    """Return the probe of the type whose endpoints usually end like this URL, or None."""
    path = urlsplit(url).path
    return next((each for each in all_probes() if each.is_listed(path, {})), None)


def missing_parameter(value: Any) -> str:
    """Return the parameter that an error of an OpenAI API reports as missing, or ""."""
    error = mapping_at(value, "error")
    is_one = {"param", "type"} <= error.keys() and _MISSING.search(str(error.get("message")))
    return str(error["param"]) if is_one else ""


def missing_fields(answer: Any) -> tuple[str, ...]:
    """Return the body fields that an error of pydantic, FastAPI or Zod reports as missing."""
    fields = [path[path[0] == "body" :] for path in _missing_places(answer)]
    return tuple(str(field[0]) for field in fields if len(field) == 1)


def missing_headers(answer: Any) -> tuple[str, ...]:
    """Return the headers that an error of FastAPI reports as missing."""
    return tuple(str(path[1]) for path in _missing_places(answer) if path[0] == "header" and path[1:])


def _missing_places(answer: Any) -> list[list[Any]]:
    named = answer if isinstance(answer, Mapping) else {"detail": answer}
    errors = [each for key in ("detail", "issues", "errors") for each in objects_in(named.get(key))]
    lacking = [
        each for each in errors if each.get("type") == "missing" or _LACKING.search(str(each.get("message")))
    ]
    places = [each.get("loc", each.get("path")) for each in lacking]
    return [path for path in places if isinstance(path, list) and path]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedProtocol:
    """A detected protocol, and the settings for it."""

    settings: Mapping[str, Any]  # the settings to write under `agent`, such as `type` and `endpoint`
    because: str  # the evidence, as the end of a sentence: "its /info names a LangGraph server"


def settings_line(settings: Mapping[str, Any]) -> str:
    """Format settings as one line of YAML to paste: `type: http, endpoint: http://localhost:8000`."""
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
    client: Sender
    headers: Headers = ()
    only_gets: bool = False  # if true, no messages are sent: the agent does no work
    tried: list[str] = field(default_factory=list)
    """The requests so far and what came back, in order: `POST /chat: 404`."""
    _seen: dict[tuple[str, str], ProbeResponse | None] = field(default_factory=dict)
    _knows_greeting: bool = False
    _greeting: str | None = None  # the first message of the WebSocket at the endpoint; "" if there is none
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
        """Return the response to a POST of a JSON body, or of an encoded form."""
        return await self._send("POST", path, body)

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
            known = isinstance(error, CONNECTION_ERRORS)  # an unreachable path is a valid result of a probe
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


def posts_in(document: Any, parameters: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield path → POST operation of an OpenAPI document, for paths with at most so many parameters."""
    paths = document.get("paths") if isinstance(document, Mapping) else None
    for path, operations in paths.items() if isinstance(paths, Mapping) else ():
        post = operations.get("post") if isinstance(operations, Mapping) else None
        if isinstance(post, Mapping) and path.count("{") <= parameters:
            yield path, post


def first_message(url: str, model: str = "") -> dict[str, Any]:
    """Return the body of a valid first message for the protocol that the path of a URL suggests.

    If it suggests none, every field that agents usually read has the message.
    """
    text = _HELLO.format(GREETERS["messages"])
    messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
    named = {"model": model} if model else {}
    if probe := probe_of_path(url):
        return probe.first_body(messages, named)
    texts = {name: _HELLO.format(who) for name, who in GREETERS.items() if name != "messages"}
    parts = {"id": "agentest-3", **messages[0], "parts": [{"type": "text", "text": text}]}
    ids = {"session_id": "agentest-1", "id": "agentest-1", "trigger": "submit-message"}
    return {**named, **texts, "messages": [parts], **ids}


def describe_detected(finding: DetectedProtocol) -> str:
    """Describe a finding and the configuration for it."""
    return f"{finding.because}: `{settings_line(finding.settings)}`"


def suggest_for_fields(missing: Sequence[str], *, add: bool = False) -> str:
    """Suggest a configuration for an agent that reports missing fields. `add`: to a configured `body`."""
    message = next((name for name in MESSAGE_FIELDS if name in missing), "" if add else missing[0])
    known = {message: "{{message}}", "messages": "{{messages}}"}
    ids = {name: "{{session_id}}" for name in missing if "session" in name or name.endswith("id")}
    fields = settings_line({name: {**ids, **known}.get(name, "…") for name in missing})
    if add:
        return f"add to `body`: {fields}"
    return f"it has a form of its own: `type: http` with `body: {{{fields}}}`"
