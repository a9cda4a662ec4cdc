"""Comparing an expected value with an actual one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from numbers import Number
from typing import Any

from agentest.matchers.showing import FUNCTIONS, shown
from agentest.matchers.values import Matcher, may_be_absent
from agentest.support.calling import ends_the_run, words_of
from agentest.support.json_text import copied
from agentest.support.patterns import PatternTimeout, matches_whole

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
    if isinstance(expected, Matcher):
        return all(map(is_plain, expected.inner))
    return type(expected) in _COMPARED


def equal(expected: Any, actual: Any) -> bool:
    """Whether the values are equal at every depth.

    Dicts and lists are compared item by item; a compiled pattern matches a text whole; a function is asked;
    everything else decides by `==`, matcher objects among them. `1` equals `1.0`; `True` does not equal `1`.
    May block where the expected value is not plain. Raises PredicateFailed.
    """
    if isinstance(expected, Matcher):
        return expected.holds(actual, equal)
    if isinstance(expected, Mapping):
        return isinstance(actual, Mapping) and _equal_keys(expected, actual)
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


def _equal_keys(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    return actual.keys() <= expected.keys() and includes(expected, actual)


def includes(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    """Whether each expected key is there with an equal value, or may be missing. Raises as `equal`."""
    return all(
        equal(value, actual[key]) if key in actual else may_be_absent(value)
        for key, value in expected.items()
    )


def _answer(expected: Any, actual: Any) -> Any:
    if isinstance(expected, re.Pattern):
        if isinstance(actual, str) and not isinstance(expected.pattern, str):
            raise TypeError("a pattern of bytes cannot match a text")
        return isinstance(actual, str) and matches_whole(expected, actual)
    if not isinstance(expected, FUNCTIONS):
        return expected == actual
    answer = expected(copied(actual))
    if inspect.iscoroutine(answer):  # it would count as true, whatever it has to say
        answer.close()
        raise TypeError("a predicate cannot be async")
    return answer
