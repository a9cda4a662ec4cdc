"""The words that stand in the place of a value: `optional(5)`, `one_of("a", "b")`, `number(5)`.

Each is a frozen value that prints itself as it was written. They work wherever a value is expected:
at any depth of arguments, in `result`, in states, and, those that are about text, in what is said.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agentest.matchers.showing import shown

Equal = Callable[[Any, Any], bool]
"""`comparison.equal`: whether an expected value, or matcher, and an actual one are equal."""


class Matcher(ABC):
    """What decides by itself whether a value is as expected."""

    __slots__ = ()

    @abstractmethod
    def holds(self, actual: Any, equal: Equal) -> bool:
        """Whether a value that is there is as expected. `equal` compares what it holds."""

    @property
    def inner(self) -> tuple[Any, ...]:
        """The expected values that it holds, which may be matchers themselves."""
        return ()

    @property
    def may_be_absent(self) -> bool:
        """Whether the key of which it is the value may be missing."""
        return False


@dataclass(frozen=True, slots=True, repr=False)
class Optional(Matcher):
    """Absent, or equal to `value`."""

    value: Any

    def holds(self, actual: Any, equal: Equal) -> bool:
        return equal(self.value, actual)

    @property
    def inner(self) -> tuple[Any, ...]:
        return (self.value,)

    @property
    def may_be_absent(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"optional({shown(self.value)})"


@dataclass(frozen=True, slots=True, repr=False)
class Absent(Matcher):
    """The key must not be there."""

    def holds(self, actual: Any, equal: Equal) -> bool:
        del actual, equal  # it is there
        return False

    @property
    def may_be_absent(self) -> bool:
        return True

    def __repr__(self) -> str:
        return "absent"


@dataclass(frozen=True, slots=True, repr=False)
class OneOf(Matcher):
    """Equal to one of the `values`."""

    values: tuple[Any, ...]

    def holds(self, actual: Any, equal: Equal) -> bool:
        return any(equal(value, actual) for value in self.values)

    @property
    def inner(self) -> tuple[Any, ...]:
        return self.values

    @property
    def may_be_absent(self) -> bool:
        return any(may_be_absent(value) for value in self.values)

    def __repr__(self) -> str:
        return f"one_of({', '.join(map(shown, self.values))})"


def may_be_absent(expected: Any) -> bool:
    """Whether the key of an expected value may be missing."""
    return isinstance(expected, Matcher) and expected.may_be_absent


def optional(value: Any) -> Optional:
    """A key that may be missing; where it is there, its value must be equal to `value`."""
    return Optional(value)


absent = Absent()
"""A key that must not be there."""


def one_of(*values: Any) -> OneOf:
    """A value that is equal to one of these. Raises ValueError where there is none."""
    if not values:
        raise ValueError("one_of() needs at least one value")
    return OneOf(values)
