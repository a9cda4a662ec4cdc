"""Comparing an expected value with an actual one."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Mapping
from numbers import Number
from typing import Any

from agentest.support.calling import ends_the_run, words_of
from agentest.support.json_text import copied, safe_repr
from agentest.support.patterns import PatternTimeout, matches_whole

_FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.MethodDescriptorType,  # str.isdigit
    functools.partial,
)


_COMPARED = (str, int, float, bool, type(None))


class PredicateFailed(Exception):
    """A predicate or matcher of the scenario raised instead of answering."""


class CannotTell(PredicateFailed):
    """It cannot be known: a regular expression did not come to its end, a call's arguments are not told."""


def is_plain(expected: Any) -> bool:
    """Whether no code of the user's own takes part in a comparison, and nothing that may take long."""
    if isinstance(expected, dict):
        return all(map(is_plain, expected.values()))
    if isinstance(expected, list | tuple):
        return all(map(is_plain, expected))
    return type(expected) in _COMPARED


def equal(expected: Any, actual: Any) -> bool:
    """Whether the values are equal at every depth.

    Dicts and lists are compared item by item; a compiled pattern matches a text whole; a function is asked;
    everything else decides by `==`, matcher objects among them. `1` equals `1.0`; `True` does not equal `1`.
    May block where the expected value is not plain. Raises PredicateFailed.
    """
    if isinstance(expected, Mapping):
        return (
            isinstance(actual, Mapping)
            and expected.keys() == actual.keys()
            and all(equal(value, actual[key]) for key, value in expected.items())
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(actual, list | tuple)
            and len(expected) == len(actual)
            and all(map(equal, expected, actual))
        )
    if isinstance(expected, Number) and isinstance(actual, bool) is not isinstance(expected, bool):
        return False
    try:
        return bool(_answer(expected, actual))
    except PatternTimeout as error:
        raise CannotTell(str(error)) from None
    except BaseException as error:
        if ends_the_run(error):
            raise
        raised = f"{type(error).__name__}: {words_of(error)}"
        raise PredicateFailed(f"{shown(expected)} raised {raised}") from error


def _answer(expected: Any, actual: Any) -> Any:
    if isinstance(expected, re.Pattern):
        if isinstance(actual, str) and not isinstance(expected.pattern, str):
            raise TypeError("a pattern of bytes cannot match a text")
        return isinstance(actual, str) and matches_whole(expected, actual)
    if not isinstance(expected, _FUNCTIONS):
        return expected == actual
    answer = expected(copied(actual))
    if inspect.iscoroutine(answer):  # it would count as true, whatever it has to say
        answer.close()
        raise TypeError("a predicate cannot be async")
    return answer


def shown(value: Any) -> str:
    """A value as a failure's reason shows it."""
    if isinstance(value, re.Pattern):
        return f"re.compile({value.pattern!r})"
    if isinstance(value, _FUNCTIONS):
        return f"<predicate {getattr(value, '__name__', 'function')}>"
    if (
        isinstance(value, type) and type(value).__eq__ is type.__eq__
    ):  # dirty-equals has types that do compare
        name = value.__name__
        return f"the type {name} (which no value equals; ask lambda value: isinstance(value, {name}))"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return safe_repr(value)
