"""Whether something can be an expected value at all: what could never hold is said when it is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from agentest.matchers.comparison import Matcher
from agentest.matchers.showing import FUNCTIONS, is_bare_type, shown
from agentest.matchers.values import is_call
from agentest.support.functions import is_async
from agentest.support.text import shortened

_MOST_DEPTH = 100
_SHOWN_CHARS = 80


def check_expected(value: Any, key: str, *, of_key: bool = True) -> None:
    """Raise ValueError, beginning with the key, for a value that nothing could be equal to, at any depth.

    Args:
        of_key: whether it is the value of a key, which may be missing: there `optional` and `absent` may be.
    """
    _Check().check(value, key, of_key=of_key)


@dataclass(slots=True)
class _Check:
    inside: list[int] = field(default_factory=list)
    """The ids of what the value is in."""
    levels: dict[tuple[int, bool], int] = field(default_factory=dict)
    """How deep what was found right is. It may stand in many places: looking each time may take for ever."""

    def check(self, value: Any, key: str, *, of_key: bool) -> int:
        """Returns how many levels the value has."""
        wrong = _wrong(value, of_key=of_key)
        if wrong:
            raise ValueError(f"{key}: {wrong}")
        if id(value) in self.inside:
            raise ValueError(f"{key}: contains itself")
        levels = self.levels.get((id(value), of_key), 0)
        if len(self.inside) + levels > _MOST_DEPTH:
            raise ValueError(f"{key}: is nested deeper than {_MOST_DEPTH} levels")
        return levels or self._checked_parts(value, key, of_key=of_key)

    def _checked_parts(self, value: Any, key: str, *, of_key: bool) -> int:
        self.inside.append(id(value))
        parts = list(_parts(value, key, of_key=of_key))
        levels = 1 + max((self.check(part, at, of_key=own) for part, at, own in parts), default=0)
        self.inside.pop()
        if parts:
            self.levels[id(value), of_key] = levels
        return levels


def _parts(value: Any, key: str, *, of_key: bool) -> Iterator[tuple[Any, str, bool]]:
    """What is in a value: itself, its key, and whether that may be missing."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield item, f"{key}.{name}", True
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield item, f"{key}[{at}]", False
    elif isinstance(value, Matcher):
        for item in value.inner:
            yield item, key, of_key


def _wrong(value: Any, *, of_key: bool) -> str | None:
    """What is wrong with a value itself, whatever is in it."""
    if is_bare_type(value) or get_origin(value) is not None or value is Any:
        return f"{_name(value)} is a type, which no value equals; write {_instance(value)}"
    if is_call(value):
        return f"found a call, {_short(value)}, where a value is expected; one of several calls is any_of(…)"
    if isinstance(value, Matcher) and value.may_be_absent and not of_key:
        return f"{_short(value)} stands for the value of a key, which may be missing; here is no key"
    if isinstance(value, re.Pattern) and not isinstance(value.pattern, str):
        return f"{_short(value)} is a pattern of bytes, which matches no text"
    if isinstance(value, FUNCTIONS) and is_async(value):
        return f"{_short(value)} is async; a predicate cannot be"
    if isinstance(value, Mapping):
        return next((_wrong_key(name) for name in value if isinstance(name, Matcher | re.Pattern)), None)
    return None


def _wrong_key(name: Any) -> str:
    return f"{_short(name)} is a key here, and keys are compared as they are; it can only be the value of one"


def _name(wanted: Any) -> str:
    return wanted.__name__ if is_bare_type(wanted) else _short(wanted)


def _instance(wanted: Any) -> str:
    """What to write for a type in an annotation's form."""
    if wanted is Any:
        return "instance(object)"
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is list and inner:
        return f"each({_instance(inner[0])})"
    if isinstance(origin, type) and is_bare_type(origin) and origin.__module__ == "builtins":
        return f"instance({origin.__name__})"
    several = inner if origin is not None else (wanted,)
    names = ("None" if each is type(None) else getattr(each, "__name__", "…") for each in several)
    return f"instance({', '.join(names)})"


def _short(value: Any) -> str:
    return shortened(shown(value), _SHOWN_CHARS)
