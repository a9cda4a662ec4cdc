"""Find the parts of a value that differ from expectations: `amount.value: expected 5, got 500`.

The module also finds arguments by name or path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from agentest.scenarios.matchers.comparison import (
    Matcher,
    PredicateFailed,
    all_hold,
    equal,
    is_plain,
    may_be_absent,
)
from agentest.scenarios.matchers.display import shown
from agentest.support.json_text import safe_repr
from agentest.support.text import shortened

NOT_EXPECTED: Final = type("_NotExpected", (), {"__repr__": lambda _: "not expected"})()
"""Stands for the expected value of a key that should not exist."""
_VALUE_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueDifference:
    """One part of a value that is not as expected."""

    path: str
    """Keys and indexes joined by dots; "" for the whole value."""
    expected: Any
    """NOT_EXPECTED if the key should not exist."""
    actual: Any
    """MISSING if the key does not exist."""
    failed: str | None = None
    """The exception of a predicate, in which case the result is unknown."""

    @property
    def words(self) -> str:
        """A description on one line: `amount.value: expected 5, got 500`."""
        return f"{shortened(self.path, _VALUE_CHARS)}: {self._words}" if self.path else self._words

    @property
    def _words(self) -> str:
        got = shortened(safe_repr(self.actual), _VALUE_CHARS)
        if self.failed:
            return f"{self.failed}, got {got}"
        if self.expected is NOT_EXPECTED:
            return f"not expected, got {got}"
        wanted = shortened(shown(self.expected), _VALUE_CHARS)
        if self.actual is MISSING:
            return f"expected {wanted}, not given"
        return f"expected {wanted}, got {got}{_lengths_text(self.expected, self.actual)}"


def _lengths_text(expected: Any, actual: Any) -> str:
    """Return the lengths of two lists, because their shortened texts may look alike."""
    if not isinstance(expected, list | tuple) or not isinstance(actual, list | tuple):
        return ""
    return f" (a list of {len(actual)}, not of {len(expected)})"


def argument_problems(
    wanted: Mapping[str, Any], given: Mapping[str, Any], *, exact: bool, inside: str = ""
) -> Iterator[ValueDifference]:
    """Yield the differences that `arguments_hold` found in the arguments of a call.

    After the first problem, no further predicates and patterns are evaluated, so that none can hang here that
    did not hang before.

    Args:
        exact: True if no other arguments are allowed.
        inside: the path of the containing value if the keys are not arguments: `result`.
    """
    search = _DifferenceSearch()
    if exact:
        yield from search.extra({key: given[key] for key in not_expected(wanted, given)}, inside)
    found = {key: argument(given, key) for key in wanted}
    yield from search.entries(wanted, found, inside)


def value_problems(expected: Any, actual: Any, path: str = "") -> Iterator[ValueDifference]:
    """Yield the differences that `equal` found in a value, like `argument_problems`."""
    return _DifferenceSearch().values(expected, actual, path)


@dataclass(slots=True)
class _DifferenceSearch:
    found: bool = field(default=False)

    def extra(self, entries: Mapping[Any, Any], path: str) -> Iterator[ValueDifference]:
        for key, actual in entries.items():
            yield self._problem(_joined_path(path, key), NOT_EXPECTED, actual)

    def entries(
        self, wanted: Mapping[Any, Any], given: Mapping[Any, Any], path: str
    ) -> Iterator[ValueDifference]:
        """Yield the differences of each expected key, missing ones first."""
        for key, value in wanted.items():
            if given.get(key, MISSING) is MISSING and not may_be_absent(value):
                yield self._problem(_joined_path(path, key), value, MISSING)
        for key, value in wanted.items():
            if given.get(key, MISSING) is not MISSING:
                yield from self.values(value, given[key], _joined_path(path, key))

    def values(self, expected: Any, actual: Any, path: str) -> Iterator[ValueDifference]:
        if isinstance(expected, Mapping) and isinstance(actual, Mapping):
            yield from self.extra({key: actual[key] for key in actual if key not in expected}, path)
            yield from self.entries(expected, actual, path)
            return
        parts = _parts(expected, actual)
        if parts is None:
            yield from self._whole(expected, actual, path)
            return
        for at, wanted, found in parts:
            for problem in self.values(wanted, found, _joined_path(path, at) if at else path):
                whole = problem.path == path  # report `optional(5)` as written, not 5
                yield replace(problem, expected=expected) if whole else problem

    def _whole(self, expected: Any, actual: Any, path: str) -> Iterator[ValueDifference]:
        if self.found and not is_plain(expected):
            return
        try:
            if not equal(expected, actual):
                yield self._problem(path, expected, actual)
        except PredicateFailed as error:
            yield self._problem(path, expected, actual, str(error))

    def _problem(self, path: str, expected: Any, actual: Any, failed: str | None = None) -> ValueDifference:
        self.found = True
        return ValueDifference(path=path, expected=expected, actual=actual, failed=failed)


def _parts(expected: Any, actual: Any) -> list[tuple[str, Any, Any]] | None:
    """Return the pairs of parts to compare, by index; None if the values are compared as a whole."""
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


MISSING: Final = _Missing()
"""Stands for a missing value; None is a value."""
_MOST_INDEX_DIGITS = 9


def arguments_hold(wanted: Mapping[str, Any], given: Mapping[str, Any], exact: bool = False) -> bool:
    """Return True if each expected argument has an equal value, or may be missing and is.

    Args:
        exact: True if no other arguments are allowed. A path covers the whole argument that contains it.

    Raises like `equal`.
    """
    if exact and not_expected(wanted, given):
        return False
    found = {key: argument(given, key) for key in wanted}
    if any(actual is MISSING and not may_be_absent(wanted[key]) for key, actual in found.items()):
        return False
    return all_hold(equal, ((wanted[key], actual) for key, actual in found.items() if actual is not MISSING))


def argument(given: Mapping[str, Any], key: str) -> Any:
    """Return the argument with this name, else the value at this path; MISSING if there is none."""
    if key in given:
        return given[key]
    return _value_at(given, key.split(".")) if isinstance(key, str) and "." in key else MISSING


def leading_keys(key: str) -> list[str]:
    """Return the key and, for a path, the keys that contain it, longest first: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def not_expected(wanted: Collection[str], given: Mapping[str, Any]) -> list[str]:
    """Return the arguments that no expected key names or leads into."""
    roots = {_root(given, key) for key in wanted}
    return [key for key in given if key not in roots]


def _root(given: Mapping[str, Any], key: Any) -> Any:
    if key in given or not isinstance(key, str) or "." not in key:
        return key
    parts = key.split(".")
    roots = [name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in given]
    through = (name for name in roots if _value_at({name: given[name]}, parts) is not MISSING)
    return next(through, roots[0] if roots else key)


def _value_at(value: Any, parts: list[str]) -> Any:
    """Return the value at a path. Names may contain dots, so the longest existing name is tried first."""
    if not parts:
        return value
    if isinstance(value, list | tuple):
        index = _index(parts[0])
        return _value_at(value[index], parts[1:]) if index is not None and index < len(value) else MISSING
    if not isinstance(value, Mapping):
        return MISSING
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name in value and (found := _value_at(value[name], parts[end:])) is not MISSING:
            return found
    number = _index(parts[0])  # keys of a state in memory may be numbers
    return _value_at(value[number], parts[1:]) if number is not None and number in value else MISSING


def _index(part: str) -> int | None:
    is_index = part.isascii() and part.isdigit() and len(part) <= _MOST_INDEX_DIGITS
    return int(part) if is_index else None
