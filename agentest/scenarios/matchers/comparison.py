"""Compare an expected value with an actual one."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import field, fields, replace
from numbers import Number
from typing import Any, Final

from agentest.domain.results import ArgumentDifference
from agentest.scenarios.matchers.display import FUNCTIONS, shown
from agentest.support.calling import ends_the_run, message_of_error
from agentest.support.importing import raised_at
from agentest.support.json_text import copied, safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout, matches_whole
from agentest.support.text import is_same_text, shortened

Equal = Callable[[Any, Any], bool]
"""Type of `equal`, which compares an expected value or matcher with an actual value."""
_SCALARS = frozenset({str, int, float, bool, type(None)})


class PredicateFailed(Exception):
    """Raised if a user's predicate or matcher raised, so that the result is unknown.

    The message names the predicate, the exception, and the file and line in the user's code.
    """


class ComparisonUnknown(PredicateFailed):
    """Raised if a regular expression timed out, or a call's arguments are not reported."""


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
        """Return what is compared as (path, expected, actual), to locate a difference; None: no parts."""
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


def is_same(left: Any, right: Any) -> bool:
    """Return True if two expected values are equivalent: `1` and `1.0` are, `1` and `True` are not.

    No matcher compares a value here, not even a custom one: `one_of(5)` is not 5.
    """
    if isinstance(left, Matcher) or isinstance(right, Matcher):
        return (isinstance(left, Matcher) and left.says_same(right)) or (
            isinstance(right, Matcher) and right.says_same(left)
        )
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(is_same(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(is_same, left, right))
    alike = type(left) is type(right) or (_is_number(left) and _is_number(right))
    return alike and _same_values(left, right)


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _same_values(value: Any, other: Any) -> bool:
    try:
        return bool(value == other)
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
    text; a function is called; texts are compared in one normal form of Unicode, and everything else with
    `==`. `1` equals `1.0`; `True` does not equal `1`. May block if the expected value is not plain. Raises
    PredicateFailed.
    """
    kind = type(expected)
    if kind is str and type(actual) is str:
        return is_same_text(expected, actual)
    if kind in _SCALARS and type(actual) in _SCALARS:
        return bool(expected == actual) and (kind is bool) is (type(actual) is bool)
    if isinstance(expected, Matcher):
        return expected.holds(actual, equal)
    if kind is dict or isinstance(expected, Mapping):
        return (type(actual) is dict or isinstance(actual, Mapping)) and (
            actual.keys() <= expected.keys() and includes(expected, actual)
        )
    if isinstance(expected, list | tuple):
        return (
            isinstance(actual, list | tuple)
            and len(expected) == len(actual)
            and all_pairs_hold(equal, zip(expected, actual, strict=True))
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


def includes(expected: Mapping[Any, Any], actual: Mapping[Any, Any]) -> bool:
    """Return True if each expected key has an equal value, or may be missing. Raises like `equal`."""
    if not all(key in actual or may_be_absent(value) for key, value in expected.items()):
        return False
    return all_pairs_hold(equal, ((value, actual[key]) for key, value in expected.items() if key in actual))


def all_pairs_hold(equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return True if all pairs are equal. An unequal pair decides even if a predicate raises for another."""
    return not _any_has_answer(False, equal, pairs)


def any_holds(equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
    """Return True if any pair is equal. An equal pair decides even if a predicate raises for another."""
    return _any_has_answer(True, equal, pairs)


def _any_has_answer(wanted: bool, equal: Equal, pairs: Iterable[tuple[Any, Any]]) -> bool:
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


NOT_EXPECTED: Final = type("_NotExpected", (), {"__repr__": lambda _: "not expected"})()
"""Stands for the expected value of a key that should not exist."""
_VALUE_CHARS = 80
_KINDS = {str: "text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}
_KINDS |= {list: "a list", tuple: "a list", dict: "an object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDifference:
    """One part of a value that is not as expected."""

    path: str  # keys and indexes joined by dots; "" for the whole value
    expected: Any  # NOT_EXPECTED if the key should not exist
    actual: Any  # MISSING if the key does not exist
    failed: str | None = None
    """Why it is unknown whether this part is as expected, such as the exception of a predicate."""
    note: str = ""  # describes a part that has no expected value of its own

    @property
    def words(self) -> str:
        """A description on one line: `amount.value: expected 5, got 500`."""
        told = self.told
        text = self.note or (f"{self.failed}, got {told.actual}" if self.failed else told.words)
        return f"{told.path}: {text}" if self.path else text

    @property
    def told(self) -> ArgumentDifference:
        """The difference as text."""
        expected, actual = self.expected, self.actual
        # The shortened texts of two lists may look alike.
        lists = isinstance(expected, list | tuple) and isinstance(actual, list | tuple)
        lengths = f" (a list of {len(actual)}, not of {len(expected)})" if lists else ""
        return ArgumentDifference(
            path=shortened(self.path, _VALUE_CHARS),
            expected=None if expected is NOT_EXPECTED else shortened(shown(expected), _VALUE_CHARS),
            actual=None if actual is MISSING else shortened(safe_repr(actual), _VALUE_CHARS) + lengths,
            expected_kind=_KINDS.get(type(expected), ""),
            actual_kind=_KINDS.get(type(actual), ""),
        )


def outcome_of(problems: Iterable[ValueDifference]) -> tuple[bool | None, str]:
    """Return False if anything surely differs, True if nothing may, else None with the reason.

    Reads no more differences than it needs.
    """
    unknown = ""
    for problem in problems:
        if problem.failed is None:
            return False, ""
        unknown = unknown or problem.failed
    return (None if unknown else True), unknown


@dataclass(slots=True)
class DifferenceSearch:
    """Finds the differences of one expectation, which may have several parts.

    No predicate or pattern is evaluated after a certain difference, so that reading all differences calls no
    more of them than `outcome_of`.
    """

    has_differences: bool = field(default=False)  # True if anything surely differs

    def arguments(
        self, wanted: Mapping[str, Any], arguments: Mapping[str, Any], *, exact: bool, inside: str = ""
    ) -> Iterator[ValueDifference]:
        """Yield the differences of arguments: each has an equal value, or may be missing and is.

        Args:
            exact: True if no other arguments are allowed. A path covers the whole argument that contains it.
            inside: the path of the containing value if the keys are not arguments: `result`.
        """
        if exact:
            yield from self._extra({key: arguments[key] for key in not_expected(wanted, arguments)}, inside)
        yield from self._entries(wanted, {key: argument(arguments, key) for key in wanted}, inside)

    def _extra(self, entries: Mapping[Any, Any], path: str) -> Iterator[ValueDifference]:
        for key, actual in entries.items():
            yield self.problem(_joined_path(path, key), NOT_EXPECTED, actual)

    def _entries(
        self, wanted: Mapping[Any, Any], actual: Mapping[Any, Any], path: str
    ) -> Iterator[ValueDifference]:
        for key, value in wanted.items():
            if actual.get(key, MISSING) is MISSING and not may_be_absent(value):
                yield self.problem(_joined_path(path, key), value, MISSING)
        for key, value in wanted.items():
            found = actual.get(key, MISSING)
            if type(value) in _SCALARS:  # most values, and most calls are compared with all expected ones
                if found is not MISSING and not equal(value, found):
                    yield self.problem(_joined_path(path, key), value, found)
            elif found is not MISSING:
                yield from self.values(value, found, _joined_path(path, key))

    def values(self, expected: Any, actual: Any, path: str = "") -> Iterator[ValueDifference]:
        """Yield the differences for which `equal` returns False."""
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            yield from self._extra({key: actual[key] for key in actual if key not in expected}, path)
            yield from self._entries(expected, actual, path)
            return
        parts = _parts(expected, actual)
        if parts is None:
            yield from self.whole(expected, actual, path)
            return
        for at, wanted, actual_part in parts:
            for problem in self.values(wanted, actual_part, _joined_path(path, at) if at else path):
                is_whole_value = problem.path == path  # report `optional(5)` as written, not 5
                yield replace(problem, expected=expected) if is_whole_value else problem

    def whole(self, expected: Any, actual: Any, path: str, note: str = "") -> Iterator[ValueDifference]:
        """Yield the difference of a value that has no parts."""
        if self.has_differences and not is_plain(expected):
            return
        try:
            if not equal(expected, actual):
                yield self.problem(path, expected, actual, note=note)
        except PredicateFailed as error:
            yield self.problem(path, expected, actual, str(error))

    def problem(
        self, path: str, expected: Any, actual: Any, failed: str | None = None, note: str = ""
    ) -> ValueDifference:
        """Return a difference that was found."""
        self.has_differences |= failed is None
        return ValueDifference(path=path, expected=expected, actual=actual, failed=failed, note=note)


def _parts(expected: Any, actual: Any) -> list[tuple[str, Any, Any]] | None:
    if isinstance(expected, Matcher):
        return expected.parts(actual)
    if not isinstance(expected, list | tuple) or not isinstance(actual, list | tuple):
        return None
    if len(expected) != len(actual):
        return None
    return [(str(at), *both) for at, both in enumerate(zip(expected, actual, strict=True))]


def _joined_path(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


class _Missing:
    def __repr__(self) -> str:
        return "not given"


MISSING: Final = _Missing()  # stands for a missing value; None is a value
_MOST_INDEX_DIGITS = 9


def argument(arguments: Mapping[str, Any], key: str) -> Any:
    """Return the argument with this name, else the value at this path; MISSING if there is none."""
    if key in arguments:
        return arguments[key]
    return _value_at(arguments, key.split(".")) if isinstance(key, str) and "." in key else MISSING


def leading_keys(key: str) -> list[str]:
    """Return the key and, for a path, the keys that contain it, longest first: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def not_expected(wanted: Collection[str], arguments: Mapping[str, Any]) -> list[str]:
    """Return the arguments that no expected key names or leads into."""
    roots = {_root(arguments, key) for key in wanted}
    return [key for key in arguments if key not in roots]


def _root(arguments: Mapping[str, Any], key: Any) -> Any:
    if key in arguments or not isinstance(key, str) or "." not in key:
        return key
    parts = key.split(".")
    roots = [name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in arguments]
    through = (name for name in roots if _value_at({name: arguments[name]}, parts) is not MISSING)
    return next(through, roots[0] if roots else key)


def _value_at(value: Any, parts: list[str]) -> Any:
    if not parts:
        return value
    if isinstance(value, list | tuple):
        index = _index(parts[0])
        return _value_at(value[index], parts[1:]) if index is not None and index < len(value) else MISSING
    if not isinstance(value, Mapping):
        return MISSING
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name in value and (inner := _value_at(value[name], parts[end:])) is not MISSING:
            return inner
    number = _index(parts[0])  # keys of a state in memory may be numbers
    return _value_at(value[number], parts[1:]) if number is not None and number in value else MISSING


def _index(part: str) -> int | None:
    is_index = part.isascii() and part.isdigit() and len(part) <= _MOST_INDEX_DIGITS
    return int(part) if is_index else None
