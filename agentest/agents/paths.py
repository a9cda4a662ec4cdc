"""Paths into what agents answer: texts where they stand, and what to say where a path finds nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from agentest.agents.reading import shown
from agentest.support.json_path import JsonPath, path_to

_USUAL = ("reply", "response", "answer", "message", "output", "text", "content", "delta", "token", "result")
_MOST_PLACES = 5
_LOOKED_AT = 10_000
_DEEPEST = 12


def text_of(value: Any) -> str | None:
    """A JSON value as what an agent says: None for none, texts as they are, lists joined, the rest as JSON.

    Parts of a list are texts, or objects with a `text`.
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
    """Paths to texts in a JSON value: those of usual names first, then the longest; at most five."""
    places = list(islice(_texts(value, ()), _LOOKED_AT))
    places.sort(key=lambda place: (_rank(place[0]), -place[1]))
    return [path_to(parts) for parts, _ in places[:_MOST_PLACES]]


def _texts(value: Any, at: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], int]]:
    """Where texts stand, and how long they are."""
    if isinstance(value, str) and value.strip():
        yield at, len(value)
    if len(at) >= _DEEPEST:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*at, index))


def _rank(parts: tuple[str | int, ...]) -> int:
    """How usual the last name of a path is for a reply."""
    name = next((part.lower() for part in reversed(parts) if isinstance(part, str)), "")
    return _USUAL.index(name) if name in _USUAL else len(_USUAL)


def nothing_found(key: str, path: JsonPath, answer: Any, events: Any = None) -> str:
    """What to say where the path of a key (`reply`) finds nothing in what an agent answered.

    Args:
        events: of a stream, what the path looked at, where that is not the answer as it is shown.
    """
    found = where_text_is(answer if events is None else events)
    return f"`{key}: {path.text}` finds nothing in the agent's answer; {found}: {shown(answer)}"


def where_text_is(answer: Any) -> str:
    """Where texts were found, as a part of a sentence."""
    places = places_of_text(answer)
    if not places:
        return "there is no text in it"
    return "found text at " + ", ".join(f"`{place}`" for place in places)
