"""Whether something can be an expected value at all: what could never hold is said when it is read."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from agentest.scenarios.matchers.comparison import Matcher
from agentest.scenarios.matchers.display import FUNCTIONS, is_bare_type, shown
from agentest.scenarios.matchers.values import is_call
from agentest.support.functions import is_async
from agentest.support.text import shortened

_MOST_DEPTH = 100
_MOST_LOOKED_AT = 1_000_000
_SHOWN_CHARS = 80


def check_expected(value: Any, key: str, *, of_key: bool = True, is_json: bool = False) -> None:
    """Raise ValueError, beginning with the key, for a value that nothing could be equal to, at any depth.

    Args:
        of_key: whether it is the value of a key, which may be missing: there `optional` and `absent` may be.
        is_json: whether what it is compared with came as JSON, which has no sets and no bytes.
    """
    _Check(is_json).check(value, key, of_key=of_key)


def function_problem(function: Any) -> str | None:
    """Why a function cannot be asked about one value; None where it can."""
    if is_async(function):
        return "is async; a predicate cannot be"
    if yields(function):
        return "yields; a predicate returns its answer"
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        return f"cannot be called with one value: {error}"
    except ValueError:  # a function of C that does not tell
        return None
    return None


def yields(function: Any) -> bool:
    """Whether calling it makes a generator, which is true whatever it would have said."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def compares_itself(value: Any) -> bool:
    """Whether it may be equal to more than itself."""
    plain: Any = object.__eq__
    return type(value).__eq__ is not plain


def word_in_value(value: Any) -> Any:
    """A matcher or a call somewhere in a value that is meant as it is; None where there is none."""
    waiting, seen = [value], 0
    while waiting and seen < _MOST_LOOKED_AT:
        part, seen = waiting.pop(), seen + 1
        if isinstance(part, Matcher) or is_call(part):
            return part
        if type(part) is dict:
            waiting += part.values()
        elif type(part) in (list, tuple):
            waiting += part
    return None


@dataclass(slots=True)
class _Check:
    is_json: bool
    inside: list[int] = field(default_factory=list)
    """The ids of what the value is in."""
    levels: dict[tuple[int, bool], int] = field(default_factory=dict)
    """How deep what was found right is. It may stand in many places: looking each time may take for ever."""

    def check(self, value: Any, key: str, *, of_key: bool) -> int:
        """Returns how many levels the value has."""
        wrong = _wrong(value, of_key=of_key) or (_not_json(value) if self.is_json else None)
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
    if isinstance(value, FUNCTIONS):
        problem = function_problem(value)
        return f"{_short(value)} {problem}" if problem else None
    if isinstance(value, Iterator | Coroutine | AsyncIterator):
        return f"{_short(value)} is a {type(value).__name__}, which no value equals; write a list"
    if callable(value) and not isinstance(value, type) and not compares_itself(value):
        return f"{_short(value)} can be called, but is no function; write lambda value: …, which calls it"
    if isinstance(value, Mapping):
        return next((_wrong_key(name) for name in value if isinstance(name, Matcher | re.Pattern)), None)
    return None


def _not_json(value: Any) -> str | None:
    if isinstance(value, Set):
        return f"{_short(value)} is a set, and JSON has none; write one_of(…) for one of these, else a list"
    if isinstance(value, bytes | bytearray):
        return f"{_short(value)} is no text, and JSON has no bytes; write a text"
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
