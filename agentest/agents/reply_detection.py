"""Find the reply in an agent's answer if no path is configured, and explain failures to find it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from agentest.agents.json_reader import excerpt
from agentest.agents.port import AgentNotes
from agentest.support.errors import AgentError
from agentest.support.jmespath_expressions import JsonPath, path_to

USUAL_PLACES = (
    "reply",
    "response",
    "answer",
    "message",
    "message.content",
    "output",
    "output_text",
    "text",
    "content",
    "result",
    "completion",
    "generated_text",
    "bot_message",
    "choices[0].message.content",
    "data.reply",
    "data.response",
    "data.answer",
    "data.message",
    "data.text",
    "data.content",
)
"""Listed in docs/agents/http.md."""


def find_reply_path(answer: Any) -> JsonPath | None:
    """Return the path of the reply in an answer, or None if no usual place contains text.

    Raises AgentError if several places contain text, or if the answer seems to report an error.
    """
    if isinstance(answer, str):
        return JsonPath("@")
    if sign := _sign_of_failure(answer):
        raise AgentError(
            f"the agent's answer seems to report an error at `{sign}`: {excerpt(answer)}; if this "
            "is not an error, set `reply` to the JMESPath of the reply"
        )
    matching = [path for path in map(JsonPath, USUAL_PLACES) if _has_text(path.find(answer))]
    if len(matching) < 2:
        return matching[0] if matching else None
    places = " and ".join(f"`{path.text}`" for path in matching)
    raise AgentError(
        f"the agent's answer has text at {places}: set `reply` to the JMESPath of the reply: "
        f"{excerpt(answer)}"
    )


def missing_reply_message(answer: Any) -> str:
    """Return the error message for an answer in which no reply was found."""
    return (
        "no reply was found in the agent's answer: set `reply` to its JMESPath; "
        f"{where_text_is(answer)}: {excerpt(answer)}"
    )


def note_guessed_path(notes: AgentNotes, path: JsonPath) -> None:
    """Add a note about the usual place at which a reply was found."""
    if not path.is_all:
        notes.add(path.text, f"`reply` is not set, so its reply is the text at `{path.text}`")


def note_failure(notes: AgentNotes, answer: Any) -> None:
    """Add a note if an answer with a reply also seems to report an error, without an `error` path."""
    if sign := _sign_of_failure(answer):
        notes.add(
            "failure",
            f"its answers seem to report an error at `{sign}`, and nothing reads it: set `error` to its "
            "JMESPath",
        )


def _sign_of_failure(answer: Any) -> str | None:
    if not isinstance(answer, dict):
        return None
    if str(answer.get("status")).lower() in ("error", "failed", "failure"):
        return "status"
    return next((key for key in ("error", "errors") if answer.get(key)), None)


def _has_text(values: Any) -> bool:
    if isinstance(values, list):
        first = values[0] if values else None
        return isinstance(first.get("text") if isinstance(first, dict) else first, str)
    return isinstance(values, str) and bool(values.strip())


_USUAL = ("reply", "response", "answer", "message", "output", "text", "content", "delta", "token", "result")
_MOST_PLACES = 5
_LOOKED_AT = 10_000
_DEEPEST = 12
Place = tuple[str | int, ...]  # keys and indices that lead to a value


def text_of(value: Any) -> str | None:
    """Convert a JSON value to the agent's text: texts unchanged, lists joined, other values as JSON.

    Parts of a list are texts, or objects with a `text`. Returns None for null.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_part(item) for item in value)
    return json.dumps(value, ensure_ascii=False)


def _part(item: Any) -> str:
    text = item.get("text") if isinstance(item, Mapping) else None
    return text if isinstance(text, str) else text_of(item) or ""


def places_of_text(value: Any) -> list[str]:
    """Return paths to texts in a JSON value, at most five: usual names first, then the longest texts."""
    texts = ((at, each) for at, each in values_in(value) if isinstance(each, str) and each.strip())
    places = sorted(islice(texts, _LOOKED_AT), key=lambda each: (_rank(each[0]), -len(each[1])))
    return [path_to(at) for at, _ in places[:_MOST_PLACES]]


def values_in(value: Any, at: Place = (), *, from_end: bool = False) -> Iterator[tuple[Place, Any]]:
    """Yield the place of each text, number and null in a JSON value, except those that are nested deeply.

    `from_end`: the index of the last of several items is -1.
    """
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        yield at, value
    if len(at) >= _DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from values_in(item, (*at, key), from_end=from_end)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            place = -1 if from_end and 0 < index == len(value) - 1 else index
            yield from values_in(item, (*at, place), from_end=from_end)


def name_of(place: Place) -> str:
    """Return the nearest key of a place, or "" if it has only indices."""
    return next((part for part in reversed(place) if isinstance(part, str)), "")


def _rank(place: Place) -> int:
    name = name_of(place).lower()
    return _USUAL.index(name) if name in _USUAL else len(_USUAL)


def empty_path_message(key: str, path: JsonPath, answer: Any, events: Any = None) -> str:
    """Return the error message for a path (such as `reply`) that finds nothing in an answer.

    `events` are those that the path searched, if the answer is a stream.
    """
    text_places = where_text_is(answer if events is None else events)
    return f"`{key}: {path.text}` finds nothing in the agent's answer; {text_places}: {excerpt(answer)}"


def where_text_is(answer: Any) -> str:
    """Describe where texts were found, as part of a sentence."""
    places = places_of_text(answer)
    if not places:
        return "it contains no text"
    return "found text at " + ", ".join(f"`{path}`" for path in places)
