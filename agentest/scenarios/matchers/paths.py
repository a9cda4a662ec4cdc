"""The arguments of a call against those expected, whose keys may be paths into them: `amount.value`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from agentest.scenarios.matchers.comparison import all_hold, equal, may_be_absent


class _Missing:
    def __repr__(self) -> str:
        return "not given"


MISSING: Final = _Missing()
"""What stands for a value that is not there: None is one."""
_MOST_INDEX_DIGITS = 9


def arguments_hold(wanted: Mapping[str, Any], given: Mapping[str, Any], exact: bool = False) -> bool:
    """Whether the arguments are as expected: each key has an equal value, or may be missing and is.

    Args:
        exact: whether there may be no others. A path accounts for the whole argument that it leads into.

    Raises as `equal`.
    """
    if exact and not_expected(wanted, given):
        return False
    found = {key: argument(given, key) for key in wanted}
    if any(actual is MISSING and not may_be_absent(wanted[key]) for key, actual in found.items()):
        return False
    return all_hold(equal, ((wanted[key], actual) for key, actual in found.items() if actual is not MISSING))


def argument(given: Mapping[str, Any], key: str) -> Any:
    """The argument of that name, or else the value at that path; MISSING where there is none."""
    if key in given:
        return given[key]
    return _at(given, key.split(".")) if isinstance(key, str) and "." in key else MISSING


def steps_of(key: str) -> list[str]:
    """The key, and the keys that lead to it where it is a path, the longest first: `a.b.c`, `a.b`, `a`."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def not_expected(wanted: Collection[str], given: Mapping[str, Any]) -> list[str]:
    """The arguments that no expected key names or leads into."""
    roots = {_root(given, key) for key in wanted}
    return [key for key in given if key not in roots]


def _root(given: Mapping[str, Any], key: Any) -> Any:
    if key in given or not isinstance(key, str) or "." not in key:
        return key
    parts = key.split(".")
    roots = [name for end in range(len(parts), 0, -1) if (name := ".".join(parts[:end])) in given]
    through = (name for name in roots if _at({name: given[name]}, parts) is not MISSING)
    return next(through, roots[0] if roots else key)


def _at(value: Any, parts: list[str]) -> Any:
    """The value at a path. Names may have dots themselves: the longest one that is there is tried first."""
    if not parts:
        return value
    if isinstance(value, list | tuple):
        index = _index(parts[0])
        return _at(value[index], parts[1:]) if index is not None and index < len(value) else MISSING
    if not isinstance(value, Mapping):
        return MISSING
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        if name in value and (found := _at(value[name], parts[end:])) is not MISSING:
            return found
    number = _index(parts[0])  # of a state in memory, whose keys may be numbers
    return _at(value[number], parts[1:]) if number is not None and number in value else MISSING


def _index(part: str) -> int | None:
    is_index = part.isascii() and part.isdigit() and len(part) <= _MOST_INDEX_DIGITS
    return int(part) if is_index else None
