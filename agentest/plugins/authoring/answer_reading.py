"""Read the first answers of an unknown API: the place of its reply, in JSON or in the events of a stream."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from agentest.agents.error_hints import ProbeResponse
from agentest.agents.reply_detection import find_reply_path, places_of_text
from agentest.support.errors import AgentError
from agentest.support.http.sse import EventParser
from agentest.support.jmespath_expressions import JsonPath
from agentest.support.json_text import json_or

HELLO = "Hello, my name is Ada."
ACCEPTED = 202
_NAMES_OF_NO_REPLY = re.compile(
    r"(?:\b|_)(?:id|uuid|token|key|status|state|type|object|role|model|created_at|timestamp)$|[a-z]Id$"
)
OPAQUE = re.compile(r"(?=\D{0,99}\d)[\w.:-]{6,}")


def says_something(response: ProbeResponse) -> bool:
    """Return True if a response has a text that may be a reply."""
    answer = response.json
    if response.status == ACCEPTED:
        return False
    if isinstance(answer, Mapping):
        has_reply = any(map(partial(_may_be_reply, answer), places_of_text(answer)))
        return "jsonrpc" not in answer and has_reply and not (answer.get("error") or answer.get("errors"))
    return bool(response.body.strip())


def _may_be_reply(answer: Mapping[str, Any], place: str) -> bool:
    text = str(JsonPath(place).find(answer)).strip()
    is_word = len(text.split()) == 1
    return not (is_word and (_NAMES_OF_NO_REPLY.search(place) or OPAQUE.fullmatch(text)))


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
    if events := events_in(response):
        path, key = stream_path(events)
        return {key: path} if path else {}
    answer = response.json
    if not isinstance(answer, Mapping):
        return {}
    if any(answer.get(key) for key in ("error", "errors")):
        return {}
    with suppress(AgentError):
        if (found := find_reply_path(answer)) and _may_be_reply(answer, found.text):
            return {"reply": found.text}
    places = sorted(places_of_text(answer), key=lambda place: not _may_be_reply(answer, place))
    return {"reply": places[0]} if places else {}


def events_in(response: ProbeResponse) -> list[Any]:
    """Return the events of a stream, or the values of lines of JSON; none for another answer."""
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
    value = json_or(data, data)
    return {"event": name, **value} if isinstance(value, Mapping) and name else value


def stream_path(events: list[Any]) -> tuple[str, str]:
    """Return the path of the reply in events, and its key: `delta`, or `reply` for one event; or two ""."""
    names = ("event", "type", "kind", "id", "role", "status")
    objects = [event for event in events if isinstance(event, Mapping)]
    kinds = ["event", "type", "kind"]
    for name in objects[0] if objects else ():
        words = [str(event.get(name)) for event in objects]
        kinds += [name] if len(set(words)) < len(words) and all(map(str.isidentifier, words)) else []
    places = ((place, event) for event in objects for place in places_of_text(event)[:4])
    found = Counter((place, *_kind(event, kinds)) for place, event in places if place not in names)
    if not found:
        return "", ""
    ranked = found.most_common()
    (place, key, kind), times = next((each for each in ranked if each[0][0] not in kinds), ranked[0])
    others = any(other[0] == place and other[2] != kind for other in found)
    path = f"{key} == '{kind}' && {place}" if key and others else place
    return path, "delta" if times > 1 else "reply"


def _kind(event: Mapping[str, Any], kinds: Sequence[str]) -> tuple[str, str]:
    key = next((key for key in kinds if isinstance(event.get(key), str)), "")
    return key, str(event[key]) if key else ""
