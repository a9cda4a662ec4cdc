"""Reject expected values that can never match, when a scenario file is read."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Set
from dataclasses import field
from typing import Any, get_args, get_origin

from agentest.scenarios.matchers.comparison import Matcher
from agentest.scenarios.matchers.display import FUNCTIONS, is_bare_type, shown
from agentest.scenarios.matchers.values import is_call
from agentest.support.calling import is_async
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import shortened

_MOST_DEPTH = 100
_MOST_VALUES = 1_000_000
_SHOWN_CHARS = 80


def check_expected(value: Any, key: str, *, of_key: bool = True, is_json: bool = False) -> None:
    """Raise ValueError, beginning with the key, if no actual value can equal the value, at any depth.

    Args:
        of_key: True if it is the value of a key, so that `optional` and `absent` are allowed.
        is_json: True if it is compared with JSON, which has no sets and no bytes.
    """
    _Validator(is_json).check(value, key, of_key=of_key)


def function_problem(function: Any) -> str | None:
    """Return why a function cannot be called with one value, or None."""
    if is_async(function):
        return "is async; a predicate cannot be"
    if is_generator(function):
        return "yields; a predicate returns its answer"
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        return f"cannot be called with one value: {error}"
    except ValueError:  # a C function without a signature
        return None
    return None


def is_generator(function: Any) -> bool:
    """Return True if calling it returns a generator, which always counts as true."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def compares_itself(value: Any) -> bool:
    """Return True if it may be equal to other objects."""
    plain: Any = object.__eq__
    return type(value).__eq__ is not plain


def word_in_value(value: Any) -> Any:
    """Return a matcher or call inside a value that must be plain; None if there is none."""
    waiting, checked = [value], 0
    while waiting and checked < _MOST_VALUES:
        part, checked = waiting.pop(), checked + 1
        if isinstance(part, Matcher) or is_call(part):
            return part
        if type(part) is dict:
            waiting += part.values()
        elif type(part) in (list, tuple):
            waiting += part
    return None


@dataclass(slots=True)
class _Validator:
    is_json: bool
    inside: list[int] = field(default_factory=list)
    levels: dict[tuple[int, bool], int] = field(default_factory=dict)
    """Depth of values that were validated, because one value may occur in many places."""

    def check(self, value: Any, key: str, *, of_key: bool) -> int:
        """Return the number of nesting levels of a valid value."""
        wrong = _problem_of(value, of_key=of_key) or (_json_problem(value) if self.is_json else None)
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
        levels = 1 + max((self.check(part, at, of_key=is_key) for part, at, is_key in parts), default=0)
        self.inside.pop()
        if parts:
            self.levels[id(value), of_key] = levels
        return levels


def _parts(value: Any, key: str, *, of_key: bool) -> Iterator[tuple[Any, str, bool]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield item, f"{key}.{name}", True
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield item, f"{key}[{at}]", False
    elif isinstance(value, Matcher):
        for item in value.inner:
            yield item, key, of_key


def _problem_of(value: Any, *, of_key: bool) -> str | None:
    if is_bare_type(value) or get_origin(value) is not None or value is Any:
        name = value.__name__ if is_bare_type(value) else _short(value)
        return f"{name} is a type, which no value equals; write {_matcher_for(value)}"
    if is_call(value):
        return f"found a call, {_short(value)}, where a value is expected; one of several calls is any_of(…)"
    if isinstance(value, Matcher) and value.may_be_absent and not of_key:
        return f"{_short(value)} is for a key that may be missing, but this place has no key"
    if isinstance(value, re.Pattern) and not isinstance(value.pattern, str):
        return f"{_short(value)} is a pattern of bytes, which matches no text"
    if isinstance(value, FUNCTIONS):
        problem = function_problem(value)
        return f"{_short(value)} {problem}" if problem else None
    if isinstance(value, Iterator | Coroutine | AsyncIterator):
        return f"{_short(value)} is a {type(value).__name__}, which no value equals; write a list"
    if callable(value) and not isinstance(value, type) and not compares_itself(value):
        return f"{_short(value)} is callable but not a function; write lambda value: …, which calls it"
    for name in value if isinstance(value, Mapping) else ():
        if isinstance(name, Matcher | re.Pattern):
            why = "is a key here, and keys are compared as they are; it can only be the value of one"
            return f"{_short(name)} {why}"
    return None


def _json_problem(value: Any) -> str | None:
    if isinstance(value, Set):
        return f"{_short(value)} is a set, and JSON has none; write one_of(…) for one of these, else a list"
    if isinstance(value, bytes | bytearray):
        return f"{_short(value)} is not a text, and JSON has no bytes; write a text"
    return None


def _matcher_for(wanted: Any) -> str:
    if wanted is Any:
        return "instance(object)"
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin is list and inner:
        return f"each({_matcher_for(inner[0])})"
    if isinstance(origin, type) and is_bare_type(origin) and origin.__module__ == "builtins":
        return f"instance({origin.__name__})"
    several = inner if origin is not None else (wanted,)
    names = ("None" if each is type(None) else getattr(each, "__name__", "…") for each in several)
    return f"instance({', '.join(names)})"


def _short(value: Any) -> str:
    return shortened(shown(value), _SHOWN_CHARS)
