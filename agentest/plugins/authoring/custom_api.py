"""Find out what a chat API of no known protocol takes and returns, from its answers to valid messages."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

from agentest.agents.error_hints import ProbeResponse, is_page
from agentest.agents.protocol_probe import (
    GREETERS,
    DetectedProtocol,
    EndpointProbe,
    body_of_fields,
    detect_type,
    first_message,
    is_absent,
    missing_fields,
    probe_of,
)
from agentest.agents.reply_paths import find_reply_path, places_of_text
from agentest.support.errors import AgentError
from agentest.support.http.sse import EventParser
from agentest.support.json_path import JsonPath

HELLO = "Hello, my name is Ada."
USUAL_PATHS = ("/chat", "/api/chat", "/ask", "/message", "/messages", "/invoke", "/query", "/agent", "/run")
"""Where agents with an API of their own usually are."""
_FORM = "application/x-www-form-urlencoded"
_ACCEPTED = 202
_REFUSED = (400, 415, 422, 500)
"""Statuses of a server that may expect a form in place of JSON."""
_NAMED_FIELD = re.compile(
    r"[\"'`](\w+)[\"'`]? (?:field )?is (?:required|missing)|(?:missing|required)[^\"'`\w]*"
    r"(?:field|parameter|key|property)?[^\"'`\w]*[\"'`](\w+)[\"'`]",
    re.I,
)
_NAMES_OF_NO_REPLY = re.compile(
    r"(?:\b|_)(?:id|uuid|token|key|status|state|type|object|role|model|created_at|timestamp)$|[a-z]Id$"
)
_OPAQUE = re.compile(r"(?=.*\d)[\w.:-]{6,}")
"""An id, a hash, a time."""
_TEMPLATES = {"messages": "{{messages}}", "session_id": "{{session_id}}"}
_OTHERS = ("id", "trigger")
"""Fields of a first message that are for known protocols only."""


async def detect_custom_api(probe: EndpointProbe) -> DetectedProtocol | None:
    """Find an API that answers a message in its own form, at the endpoint or at the usual paths."""
    async for path in probe.places(*USUAL_PATHS):
        response = await probe.post_message(path)
        if response is None or is_absent(response) or is_page(response.body):
            continue
        endpoint = urljoin(probe.url, path) if path else probe.url
        shown = urlsplit(endpoint).path or "/"
        detected = detect_type(response)
        if detected and (known := probe_of(detected)).usual_paths:
            settings = {"type": detected, "endpoint": endpoint}
            return DetectedProtocol(settings=settings, because=f"POST {shown} answers as {known.about} does")
        if settings := await _settings(probe, path, response):
            because = f"POST {shown} answers a message in a form of its own"
            return DetectedProtocol(
                settings={"type": "http", "endpoint": endpoint, **settings}, because=because
            )
    return None


async def _settings(probe: EndpointProbe, path: str, response: ProbeResponse) -> dict[str, Any]:
    if response.status == _ACCEPTED and response.headers.get("location"):
        job = {"save": {"job": {"header": "Location"}}, "poll": {"endpoint": "{{job}}"}}
        return {"body": _fields_read(response), **job}
    if response.is_success:
        return (
            {"body": _fields_read(response), **reply_settings(response)} if _says_something(response) else {}
        )
    if response.status not in _REFUSED:
        return {}
    asked = missing_fields(response.json) or _named_fields(response)
    sent = first_message("")
    body = body_of_fields(asked) if asked else {}
    if any(name not in sent for name in asked) and all(body.values()):
        accepted = await probe.post(path or probe.url, filled(body))
        return (
            {"body": body, **reply_settings(accepted)} if accepted is not None and accepted.is_success else {}
        )
    form = (
        filled(body)
        if body
        else {name: text for name, text in sent.items() if name not in ("messages", *_OTHERS)}
    )
    accepted = await probe.post_form(path, form)
    if accepted is None or not accepted.is_success or is_page(accepted.body):
        return {}
    read = body if all(body.values()) and body else _fields_read(accepted)
    read.pop("messages", None)
    return {"headers": {"Content-Type": _FORM}, "body": read, **reply_settings(accepted)}


def _named_fields(response: ProbeResponse) -> tuple[str, ...]:
    text = response.body.decode("utf-8", errors="replace")[:2_000]
    return tuple(dict.fromkeys(first or second for first, second in _NAMED_FIELD.findall(text)))


def _says_something(response: ProbeResponse) -> bool:
    answer = response.json
    if isinstance(answer, Mapping):
        has_reply = any(map(partial(_may_be_reply, answer), places_of_text(answer)))
        return "jsonrpc" not in answer and has_reply and not answer.get("error")
    return bool(response.body.strip())


def _may_be_reply(answer: Mapping[str, Any], place: str) -> bool:
    """Return False for an id or a status, which start a session or a job rather than answer a message."""
    text = str(JsonPath(place).find(answer)).strip()
    is_word = len(text.split()) == 1
    return not (is_word and (_NAMES_OF_NO_REPLY.search(place) or _OPAQUE.fullmatch(text)))


def _fields_read(response: ProbeResponse) -> dict[str, Any]:
    """Return the body to write: the field whose greeting the reply repeats, else all that were sent."""
    text = "".join(_texts(response))
    repeated = [name for name, who in GREETERS.items() if re.search(rf"\b{who}\b", text)]
    chosen = repeated if len(repeated) == 1 else GREETERS
    return {**{name: _TEMPLATES.get(name, "{{message}}") for name in chosen}, "session_id": "{{session_id}}"}


def _texts(response: ProbeResponse) -> Iterator[str]:
    events = _events(response)
    if not events:
        yield response.body.decode("utf-8", errors="replace")
        return
    path, _ = _stream_path(events)
    found = JsonPath(path) if path else None
    for event in events:
        value = found.find(event) if found else event
        yield value if isinstance(value, str) else ""


def filled(value: Any) -> Any:
    """Replace the placeholders of a body by a first message."""
    if isinstance(value, Mapping):
        return {key: filled(each) for key, each in value.items()}
    known = {
        "{{message}}": HELLO,
        "{{messages}}": [{"role": "user", "content": HELLO}],
        "{{session_id}}": "agentest-1",
    }
    return known.get(value, value) if isinstance(value, str) else value


def reply_settings(response: ProbeResponse) -> dict[str, Any]:
    """Return where the reply is in an answer: `reply`, or `delta` for a stream."""
    if events := _events(response):
        path, key = _stream_path(events)
        return {key: path} if path else {}
    answer = response.json
    if not isinstance(answer, Mapping):
        return {}
    with suppress(AgentError):
        if found := find_reply_path(answer):
            return {"reply": found.text}
    return {"reply": places[0]} if (places := places_of_text(answer)) else {}


def _events(response: ProbeResponse) -> list[Any]:
    """Return the JSON values or texts of a stream's events; [] if the answer is not a stream."""
    text = response.body.decode("utf-8", errors="replace")
    if re.match(r"\s*(data|event|id|retry):", text):
        parser = EventParser()
        return [_with_name(event.data, event.name) for event in (*parser.feed(text.encode()), *parser.rest())]
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2 or not text.lstrip().startswith("{"):
        return []
    with suppress(ValueError, RecursionError):
        return [json.loads(line) for line in lines]
    return []


def _with_name(data: str, name: str) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return {"event": name, **value} if isinstance(value, Mapping) and name else value


def _stream_path(events: list[Any]) -> tuple[str, str]:
    """Return the path of the text in a stream's events, and the key for it: `delta`, or `reply` for one."""
    names = ("event", "type", "id", "role", "status")
    found = Counter(
        (place, *_kind(event))
        for event in events
        if isinstance(event, Mapping)
        for place in places_of_text(event)[:4]
        if place not in names
    )
    if not found:
        return "", ""
    (place, key, kind), times = found.most_common(1)[0]
    others = any(other[0] == place and other[2] != kind for other in found)
    path = f"{key} == '{kind}' && {place}" if key and others else place
    return path, "delta" if times > 1 else "reply"


def _kind(event: Mapping[str, Any]) -> tuple[str, str]:
    key = next((key for key in ("event", "type") if isinstance(event.get(key), str)), "")
    return key, str(event[key]) if key else ""
