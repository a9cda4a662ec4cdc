"""Compare an expected value with an actual one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from numbers import Number
from typing import Any

from agentest.scenarios.matchers.display import FUNCTIONS, shown
from agentest.support.calling import ends_the_run, message_of_error
from agentest.support.json_text import copied
from agentest.support.patterns import PatternTimeout, matches_whole
from agentest.support.source_location import raised_at

Equal = Callable[[Any, Any], bool]
"""Type of `equal`, which compares an expected value or matcher with an actual value."""
_SCALARS = frozenset({str, int, float, bool, type(None)})


class PredicateFailed(Exception):
    """Raised if a user's predicate or matcher raised, so that the result is unknown.

    The message names the predicate, the exception, and the file and line in the user's code.
    """


class ComparisonUnknown(PredicateFailed):
    """Raised if the result is unknown: a regular expression timed out, or a call's arguments are not
    reported.
    """


class Matcher:
    """Base of frozen values that decide whether an actual value is as expected.

    `==` with a plain value also decides; two matchers are equal if their fields are. Declare dataclasses that
    inherit from it with `eq=False` to preserve this.
    """

    __slots__ = ()

    def holds(self, actual: Any, equal: Equal) -> bool:
        """Return True if a value that exists is as expected; use `equal` to compare inner values."""
        raise NotImplementedError

    @property
    def inner(self) -> tuple[Any, ...]:
        """The expected values inside, which may be matchers themselves."""
        return ()

    @property
    def is_plain(self) -> bool:
        """True if neither users' code nor anything slow is involved."""
        return all(map(is_plain, self.inner))

    @property
    def may_be_absent(self) -> bool:
        """True if the key with this value may be missing."""
        return False

    def parts(self, actual: Any) -> list[tuple[str, Any, Any]] | None:
        """Return what is compared as (path, expected, actual), to locate a difference.

        None: it has no parts.
        """
        del actual
        return None

    def __eq__(self, other: object) -> bool:
        return is_same(self, other) if isinstance(other, Matcher) else equal(self, other)

    def says_same(self, other: Any) -> bool:
        """Return True if another expected value is equivalent."""
        return (
            isinstance(other, Matcher)
            and type(self) is type(other)
            and all(map(is_same, self._field_values(), other._field_values()))
        )

    def __hash__(self) -> int:
        return hash((type(self), *map(_hash_or_zero, self._field_values())))

    def _field_values(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]


def is_same(one: Any, other: Any) -> bool:
    """Return True if two expected values are equivalent: `1` and `1.0` are, `1` and `True` are not.

    No matcher compares a value here, not even a custom one: `one_of(5)` is not 5.
    """
    if isinstance(one, Matcher) or isinstance(other, Matcher):
        return (isinstance(one, Matcher) and one.says_same(other)) or (
            isinstance(other, Matcher) and other.says_same(one)
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(is_same, one, other))
    alike = type(one) is type(other) or (_is_number(one) and _is_number(other))
    return alike and _same_values(one, other)


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _same_values(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except BaseException as error:  # an exception in a custom matcher does not affect equivalence
        if ends_the_run(error):
            raise
        return False


def _hash_or_zero(value: Any) -> int:
    try:
        return hash(value)
    except TypeError:  # a list, a dict
        return 0


def may_be_absent(expected: Any) -> bool:
    """Return True if the key of an expected value may be missing."""
    return isinstance(expected, Matcher) and expected.may_be_absent


def is_plain(expected: Any) -> bool:
    """Return True if a comparison involves neither users' code nor anything slow."""
    if type(expected) in _SCALARS:
        return True
    if isinstance(expected, dict):
        return all(map(is_plain, expected.values()))
    if isinstance(expected, list | tuple):
        return all(map(is_plain, expected))
    return isinstance(expected, Matcher) and expected.is_plain


def equal(expected: Any, actual: Any) -> bool:
    """Return True if the values are equal at every depth.

    Dicts and lists are compared item by item; a matcher decides; a compiled pattern must match the whole
    text; a function is called; everything else is compared with `==`. `1` equals `1.0`; `True` does not equal
    `1`. May block if the expected value is not plain. Raises PredicateFailed.
    """
    kind = type(expected)
    if kind in _SCALARS and type(actual) in _SCALARS:
        return bool(expected == actual) and (kind is bool) is (type(actual) is bool)
    if isinstance(expected, Matcher):
        return expected.holds(actual, equal)
    if kind is dict or isinstance(expected, Mapping):
        return (type(actual) is dict or isinstance(actual, Mapping)) and _equal_keys(expected, actual)
    if isinstance(expected, list | tuple):
        return (
            isinstance(actual, list | tuple)
            and len(expected) == len(actual)
            and all_hold(equal, zip(expected, actual, strict=True))
        )
    if isinstance(expected, Number) and isinstance(actual, bool) is not isinstance(expected, bool):
        return False
    return call_predicate(expected, lambda: _compared(expected, actual))


def call_predicate(expected: Any, question: Callable[[], Any]) -> bool:
    """Return the answer of a user's function or matcher. Raises PredicateFailed, which names `expected`."""
    try:
        return bool(question())
    except PredicateFailed:
        raise
    except PatternTimeout as error:
        raise ComparisonUnknown(str(error)) from None
    except BaseException as error:
        if ends_the_run(error):
            raise
        at = raised_at(error, expected)
        message = f"{type(error).__name__}: {message_of_error(error)}".removesuffix(": ")
        raise PredicateFailed(f"{shown(expected)} raised {message}" + (f" ({at})" if at else "")) from error


def _equal_keys(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    return actual.keys() <= expected.keys() and includes(expected, actual)


def includes(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    """Return True if each expected key has an equal value, or may be missing. Raises like `equal`."""
    if not all(key in actual or may_be_absent(value) for key, value in expected.items()):
        return False
    return all_hold(equal, ((value, actual[key]) for key, value in expected.items() if key in actual))


def all_hold(equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return True if all pairs are equal. An unequal pair decides even if a predicate raises for another."""
    return not _any_has_answer(False, equal, pairs)


def any_holds(equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return True if any pair is equal. An equal pair decides even if a predicate raises for another."""
    return _any_has_answer(True, equal, pairs)


def _any_has_answer(wanted: bool, equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return True if any pair has this answer. Raises PredicateFailed if this is unknown."""
    failed = None
    for expected, actual in pairs:
        try:
            if bool(equal(expected, actual)) is wanted:
                return True
        except PredicateFailed as error:
            failed = failed or error
    if failed:
        raise failed
    return False


def _compared(expected: Any, actual: Any) -> Any:
    if isinstance(expected, re.Pattern):
        if isinstance(actual, str) and not isinstance(expected.pattern, str):
            raise TypeError("a pattern of bytes cannot match a text")
        return isinstance(actual, str) and matches_whole(expected, actual)
    if not isinstance(expected, FUNCTIONS):
        return expected == actual
    answer = expected(copied(actual))
    if inspect.iscoroutine(answer):  # a coroutine would count as true
        answer.close()
        raise TypeError("a predicate cannot be async")
    return answer
