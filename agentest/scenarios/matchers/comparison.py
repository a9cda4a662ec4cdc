"""Comparing an expected value with an actual one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from numbers import Number
from typing import Any

from agentest.scenarios.matchers.display import FUNCTIONS, shown
from agentest.support.calling import ends_the_run, words_of
from agentest.support.json_text import copied
from agentest.support.patterns import PatternTimeout, matches_whole
from agentest.support.source_location import raised_at

Equal = Callable[[Any, Any], bool]
"""`equal`: whether an expected value, or matcher, and an actual one are equal."""
_SCALARS = frozenset({str, int, float, bool, type(None)})


class PredicateFailed(Exception):
    """A predicate or matcher of the scenario raised instead of answering, so it cannot be told.

    The message names it, what it raised, and the file and line of the user's where that was.
    """


class CannotTell(PredicateFailed):
    """It cannot be known: a regular expression did not come to its end, a call's arguments are not told."""


class Matcher:
    """What decides by itself whether a value is as expected. A frozen value.

    `==` with a plain value decides, too; two matchers are equal that hold the same. (A dataclass that is a
    matcher is declared with `eq=False`, so that this stays so.)
    """

    __slots__ = ()

    def holds(self, actual: Any, equal: Equal) -> bool:
        """Whether a value that is there is as expected. `equal` compares what it holds."""
        raise NotImplementedError

    @property
    def inner(self) -> tuple[Any, ...]:
        """The expected values that it holds, which may be matchers themselves."""
        return ()

    @property
    def is_plain(self) -> bool:
        """Whether no code of the user's own takes part, and nothing that may take long."""
        return all(map(is_plain, self.inner))

    @property
    def may_be_absent(self) -> bool:
        """Whether the key of which it is the value may be missing."""
        return False

    def parts(self, actual: Any) -> list[tuple[str, Any, Any]] | None:
        """What is compared in it, for who looks for the part that differs: where, expected, and actual.

        None: it is one whole.
        """
        del actual
        return None

    def __eq__(self, other: object) -> bool:
        return is_same(self, other) if isinstance(other, Matcher) else equal(self, other)

    def says_same(self, other: Any) -> bool:
        """Whether another expected value says the same."""
        return (
            isinstance(other, Matcher)
            and type(self) is type(other)
            and all(map(is_same, self._held(), other._held()))
        )

    def __hash__(self) -> int:
        return hash((type(self), *map(_hash_of, self._held())))

    def _held(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]  # type: ignore[arg-type]


def is_same(one: Any, other: Any) -> bool:
    """Whether two expected values say the same: `1` and `1.0` do, `1` and `True` do not.

    No matcher is asked about a value, be it of somebody's own: `one_of(5)` is not 5.
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
    except BaseException as error:  # a matcher of somebody's own: whatever it means, it says nothing of this
        if ends_the_run(error):
            raise
        return False


def _hash_of(value: Any) -> int:
    try:
        return hash(value)
    except TypeError:  # a list, a dict
        return 0


def may_be_absent(expected: Any) -> bool:
    """Whether the key of an expected value may be missing."""
    return isinstance(expected, Matcher) and expected.may_be_absent


def is_plain(expected: Any) -> bool:
    """Whether no code of the user's own takes part in a comparison, and nothing that may take long."""
    if type(expected) in _SCALARS:
        return True
    if isinstance(expected, dict):
        return all(map(is_plain, expected.values()))
    if isinstance(expected, list | tuple):
        return all(map(is_plain, expected))
    return isinstance(expected, Matcher) and expected.is_plain


def equal(expected: Any, actual: Any) -> bool:
    """Whether the values are equal at every depth.

    Dicts and lists are compared item by item; a matcher decides; a compiled pattern matches a text whole; a
    function is asked; everything else decides by `==`. `1` equals `1.0`; `True` does not equal `1`.
    May block where the expected value is not plain. Raises PredicateFailed.
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
    return asked(expected, lambda: _answer(expected, actual))


def asked(expected: Any, question: Callable[[], Any]) -> bool:
    """What a function or matcher of the user's answers. Raises PredicateFailed, which names `expected`."""
    try:
        return bool(question())
    except PredicateFailed:
        raise
    except PatternTimeout as error:
        raise CannotTell(str(error)) from None
    except BaseException as error:
        if ends_the_run(error):
            raise
        at = raised_at(error, expected)
        message = f"{type(error).__name__}: {words_of(error)}".removesuffix(": ")
        raise PredicateFailed(f"{shown(expected)} raised {message}" + (f" ({at})" if at else "")) from error


def _equal_keys(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    return actual.keys() <= expected.keys() and includes(expected, actual)


def includes(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    """Whether each expected key is there with an equal value, or may be missing. Raises as `equal`."""
    if not all(key in actual or may_be_absent(value) for key, value in expected.items()):
        return False
    return all_hold(equal, ((value, actual[key]) for key, value in expected.items() if key in actual))


def all_hold(equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether all pairs are equal. One that is not decides, though a predicate raises for another one."""
    return not _one_answers(False, equal, pairs)


def any_holds(equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether a pair is equal. One that is decides, though a predicate raises for another one."""
    return _one_answers(True, equal, pairs)


def _one_answers(wanted: bool, equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Whether there is this answer for one of the pairs. Raises PredicateFailed where that is not known."""
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
