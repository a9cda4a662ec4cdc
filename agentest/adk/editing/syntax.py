"""JSON as it is written: which characters of a text are which value.

The texts are JSON already, as `parse_json` found: nothing is checked here again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
# Values are passed over by the scanner of the standard library, which is fast: sets may have megabytes.
# Numbers are not looked at, so that they may have any number of digits.
_SCAN = json.JSONDecoder(parse_int=len, parse_float=len, strict=False).raw_decode


@dataclass(frozen=True, slots=True)
class Span:
    """Where a value stands: the characters from `start` up to `end`."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an object or a list.

    Attributes:
        start: where its key begins, of a list its value.
        value: what it holds, but for numbers.
    """

    start: int
    span: Span
    value: Any
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A value with all that is in it. `entries`: what an object or a list holds; None for other values."""

    span: Span
    value: Any
    entries: tuple[Member, ...] | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """An entry with its value."""

    start: int
    node: Node
    key: str | None = None

    @property
    def end(self) -> int:
        return self.node.span.end


def root(text: str) -> Span:
    """Where the document stands in its text, without the space around it."""
    return Span(_after_space(text, 0), len(text.rstrip(" \t\r\n")))


def entries(text: str, span: Span) -> Iterator[Entry]:
    """What an object or a list holds, one after another; nothing where the value is neither."""
    if text[span.start] not in "[{":
        return
    is_object, place = text[span.start] == "{", _after_space(text, span.start + 1)
    while text[place] not in "]}":
        start, key = place, None
        if is_object:
            key, end = _SCAN(text, start)
            place = _after_space(text, _after_space(text, end) + 1)
        value, end = _SCAN(text, place)
        yield Entry(start, Span(place, end), value, key)
        place = _after_space(text, end)
        if text[place] == ",":
            place = _after_space(text, place + 1)


def read(text: str, span: Span) -> Node:
    """The value at a place. Raises ValueError for a number of more digits than Python reads."""
    if text[span.start] not in "[{":
        return Node(span, json.loads(text[span.start : span.end]))
    members = tuple(Member(each.start, read(text, each.span), each.key) for each in entries(text, span))
    if text[span.start] == "{":
        return Node(span, {str(each.key): each.node.value for each in members}, members)
    return Node(span, [each.node.value for each in members], members)


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    assert match is not None, "the pattern fits everywhere"
    return match.end()
