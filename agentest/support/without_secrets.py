"""Hiding secrets in whole values: in every text that lies in them, however deep."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from agentest.support.json_text import plain, safe_repr
from agentest.support.redact import HIDDEN, Hiding, Redactor
from agentest.support.replacing import replace

_T = TypeVar("_T")
_MAX_DEPTH = 100
_LEAST_NUMBER = 10_000_000
"""Smaller numbers have fewer digits than a secret that is hidden in transcripts."""
_OURS = __name__.partition(".")[0]


def without_secrets(value: _T, redact: Redactor) -> _T:
    """The value without known secrets in its texts (`Redactor.transcript`); itself where there are none.

    Looks into our own dataclasses, dicts, lists and tuples. Of a foreign object, its text is looked at: with
    a secret in it, its JSON form takes its place.
    """
    if not redact.hides_transcripts:
        return value
    hide = redact.hiding_in(_texts(value))
    if not hide:
        return value
    hidden: _T = _Value(hide).value(value, 0)
    return hidden


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, keys of dicts included. Each container is looked at once."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        kind: type = type(item)
        if kind is str:
            yield item
        elif item is None or kind is bool or kind is float or isinstance(item, Enum):
            continue
        elif kind is int:
            if abs(item) >= _LEAST_NUMBER:
                yield _digits(item)
        elif id(item) not in seen:
            seen.add(id(item))
            if names := _fields(kind):
                waiting += [getattr(item, name) for name in names]
            elif isinstance(item, Mapping):
                waiting += [*item, *item.values()]
            elif isinstance(item, list | tuple | set | frozenset):
                waiting += item
            else:
                yield str(item) if isinstance(item, str) else _foreign_text(item)


class _Value:
    """Makes one value without secrets."""

    def __init__(self, hide: Hiding) -> None:
        self._text = hide
        self._made: dict[int, tuple[Any, Any]] = {}
        """By the `id` of a container, it and what takes its place: it may be in many, or contain itself."""

    def value(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | float | Enum):
            return value
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, int):
            return HIDDEN if abs(value) >= _LEAST_NUMBER and self._is_hidden(_digits(value)) else value
        if id(value) not in self._made:
            self._made[id(value)] = value, "…"
            made = "…" if depth > _MAX_DEPTH else self._container(value, depth + 1)
            self._made[id(value)] = value, made
        return self._made[id(value)][1]

    def _container(self, value: Any, depth: int) -> Any:
        kind: type = type(value)
        if names := _fields(kind):
            old = {name: getattr(value, name) for name in names}
            new = {name: self.value(part, depth) for name, part in old.items()}
            changed = {name: part for name, part in new.items() if part is not old[name]}
            return replace(value, **changed) if changed else value
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            parts = [self.value(part, depth) for part in value]
            if all(a is b for a, b in zip(value, parts, strict=True)):
                return value
            return parts if isinstance(value, list) else tuple(parts)
        return self.value(plain(value), depth) if self._is_hidden(_foreign_text(value)) else value

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        made: dict[Any, Any] = {}
        same = True
        for key, part in value.items():
            name, new = self.value(key, depth), self.value(part, depth)
            same = same and name is key and new is part
            number = 1
            while name in made:  # two keys became one
                number += 1
                name = f"{self.value(key, depth)} ({number})"
            made[name] = new
        return value if same else made

    def _is_hidden(self, text: str) -> bool:
        return self._text(text) != text


def _foreign_text(value: Any) -> str:
    """All that is ever shown or written of an object that is not JSON."""
    try:
        return f"{value}\0{safe_repr(value)}"
    except Exception:  # noqa: BLE001 - the object is a stranger's, and may not even have a text
        return safe_repr(value)


def _digits(number: int) -> str:
    """The number as a text; "": it has more digits than any secret, and than Python writes."""
    return str(number) if abs(number).bit_length() < 4_000 else ""


@cache
def _fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass of ours; none of anything else."""
    if not dataclasses.is_dataclass(kind) or kind.__module__.partition(".")[0] != _OURS:
        return ()
    return tuple(field.name for field in dataclasses.fields(kind))
