"""`number("1,234")` and `approx(5, abs=0.1)`: numbers however they are written, or as near as is enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from agentest.scenarios.matchers.comparison import Equal, Matcher
from agentest.scenarios.matchers.numbers import number_of
from agentest.scenarios.matchers.showing import brief, shown
from agentest.scenarios.matchers.values import OneOf

Part = tuple[str, Any, Any]
_REL = Fraction(1, 10**6)
_ABS = Fraction(1, 10**12)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Approx(Matcher):
    """A number near `value`; where that is a list or dict of numbers, each of them is."""

    value: Any
    rel: float | None = None
    """As a share of the value. None: 1e-6; where `abs` is given, none."""
    abs: float | None = None
    """None: 1e-12."""

    def __post_init__(self) -> None:
        _check_value(self.value)
        for name in ("rel", "abs"):
            _check_tolerance(name, getattr(self, name))

    def holds(self, actual: Any, equal: Equal) -> bool:
        if _is_number(self.value):
            return _is_number(actual) and self.is_near(actual)
        parts = self.parts(actual)
        return parts is not None and all(equal(near, item) for _, near, item in parts)

    def is_near(self, actual: Any) -> bool:
        """Whether a number is near this one; the infinite is near itself alone, and `nan` near nothing."""
        wanted, found = number_of(self.value), number_of(actual)
        if wanted is None or found is None:
            return bool(self.value == actual)
        return math.inf in (self.rel, self.abs) or _distance(wanted, found) <= self._tolerance(wanted)

    def _tolerance(self, wanted: Fraction) -> Fraction:
        rel = number_of(self.rel) if self.rel is not None else _REL if self.abs is None else None
        least = _ABS if self.abs is None else number_of(self.abs)
        return max((rel or 0) * _distance(wanted, Fraction(0)), least or Fraction(0))

    def parts(self, actual: Any) -> list[Part] | None:
        pairs: list[Part] = []
        if isinstance(self.value, Mapping):
            if not isinstance(actual, Mapping) or self.value.keys() != actual.keys():
                return None
            pairs = [(str(key), item, actual[key]) for key, item in self.value.items()]
        elif isinstance(self.value, list | tuple):
            if not isinstance(actual, list | tuple) or len(self.value) != len(actual):
                return None
            pairs = [(str(i), *both) for i, both in enumerate(zip(self.value, actual, strict=True))]
        else:
            return None
        return [(at, Approx(item, self.rel, self.abs), found) for at, item, found in pairs]

    def __repr__(self) -> str:
        given = "".join(f", {n}={getattr(self, n)!r}" for n in ("rel", "abs") if getattr(self, n) is not None)
        return f"approx({shown(self.value)}{given})"


def _distance(one: Fraction, other: Fraction) -> Fraction:
    return one - other if one > other else other - one


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal | Fraction) and not isinstance(value, bool)


def _check_value(value: Any, depth: int = 0) -> None:
    if isinstance(value, Mapping | list | tuple) and depth < _MOST_DEPTH:
        for item in value.values() if isinstance(value, Mapping) else value:
            _check_value(item, depth + 1)
    elif not _is_number(value):
        hint = f"; for a text that is a number write number({value!r})" if number_of(value) else ""
        raise ValueError(
            f"approx(…) expects a number, or a list or dict of numbers, found {shown(value)}{hint}"
        )


_MOST_DEPTH = 20


def _check_tolerance(name: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"approx(…): {name} expects a number of at least 0, found {shown(value)}")


def approx(value: Any, rel: float | None = None, abs: float | None = None) -> Matcher:
    """A number near `value`, which may also be a list or dict of numbers: then each of them must be near.

    Args:
        rel: how far off it may be, as a share of the value: 1e-6 where neither is given.
        abs: how far off it may be; of both, the wider one counts.

    Raises ValueError for what is no number, and for a tolerance below 0.
    """
    return Approx(value, rel, abs)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Number(Matcher):
    """A number, or a text that is one, and equal to `value`, or to `approx(…)` or `one_of(…)` of numbers."""

    value: Any

    def __post_init__(self) -> None:
        _check_numbers(self.value)

    def holds(self, actual: Any, equal: Equal) -> bool:
        del equal
        found = number_of(actual)
        return found is not None and _is_equal(self.value, found)

    def __repr__(self) -> str:
        return f"number({shown(self.value)})"


def _is_equal(wanted: Any, found: Fraction) -> bool:
    if isinstance(wanted, OneOf):
        return any(_is_equal(value, found) for value in wanted.values)
    return wanted.is_near(found) if isinstance(wanted, Approx) else number_of(wanted) == found


def _check_numbers(value: Any) -> None:
    if isinstance(value, OneOf):
        for each in value.values:
            _check_numbers(each)
    elif isinstance(value, Approx) and not _is_number(value.value):
        found = brief(value)
        raise ValueError(f"number(…) expects one number, found {found}; write each(number(…)) for a list")
    elif not isinstance(value, Approx) and number_of(value) is None:
        raise ValueError(
            f'number(…) expects a number, or a text that is one ("1,234", "½"), found {shown(value)}'
        )


def number(value: Any) -> Matcher:
    """A number, or a text that is one, that equals `value`: `number(1234)` takes 1234.0, "1,234" and "1 234".

    `value` is a number, such a text, or `approx(…)` or `one_of(…)` of numbers. Exact: 0.1 equals "0.1".
    Raises ValueError for what is no number.
    """
    return Number(value)
