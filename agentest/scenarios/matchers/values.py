"""The words that stand in the place of a value: `optional(5)`, `one_of("a", "b")`, `each(instance(int))`.

Each is a frozen value that prints itself as it was written. They work wherever a value is expected:
at any depth of arguments, in `result`, in states, and, those that are about text, in what is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentest.scenarios.matchers.comparison import Equal, Matcher, all_hold, any_holds, may_be_absent
from agentest.scenarios.matchers.showing import shown


@dataclass(frozen=True, slots=True, repr=False, eq=False)
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

    def parts(self, actual: Any) -> list[tuple[str, Any, Any]] | None:
        return [("", self.value, actual)]

    def __repr__(self) -> str:
        return f"optional({shown(self.value)})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
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

    def __reduce__(self) -> str:
        return "absent"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class OneOf(Matcher):
    """Equal to one of the `values`."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("one_of() needs at least one value")

    def holds(self, actual: Any, equal: Equal) -> bool:
        return any_holds(equal, ((value, actual) for value in self.values))

    @property
    def inner(self) -> tuple[Any, ...]:
        return self.values

    @property
    def may_be_absent(self) -> bool:
        return any(may_be_absent(value) for value in self.values)

    def __repr__(self) -> str:
        return f"one_of({', '.join(map(shown, self.values))})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Each(Matcher):
    """A list whose every item is equal to `value`."""

    value: Any

    def __post_init__(self) -> None:
        if may_be_absent(self.value):
            raise ValueError(f"each(…): {self!r} says nothing: {shown(self.value)} is for the value of a key")

    def holds(self, actual: Any, equal: Equal) -> bool:
        return isinstance(actual, list | tuple) and all_hold(equal, ((self.value, item) for item in actual))

    @property
    def inner(self) -> tuple[Any, ...]:
        return (self.value,)

    def parts(self, actual: Any) -> list[tuple[str, Any, Any]] | None:
        if not isinstance(actual, list | tuple):
            return None
        return [(str(at), self.value, item) for at, item in enumerate(actual)]

    def __repr__(self) -> str:
        return f"each({shown(self.value)})"


def optional(value: Any) -> Matcher:
    """A key that may be missing; where it is there, its value must be equal to `value`."""
    return Optional(value)


absent = Absent()
"""A key that must not be there."""


def one_of(*values: Any) -> Matcher:
    """A value that is equal to one of these. Raises ValueError where there is none, and for calls."""
    for value in values:
        if is_call(value):
            raise ValueError("one_of(…) is for values; for calls write any_of(call(…), call(…))")
    return OneOf(values)


def each(*values: Any) -> Matcher:
    """A list whose every item is equal to this one value; an empty list is one. Raises ValueError."""
    if len(values) != 1:
        raise ValueError(
            f"each(…) takes one value, which every item must be equal to, and was given {len(values)}; "
            "for several that will do write each(one_of(…))"
        )
    return Each(values[0])


def is_call(value: Any) -> bool:
    """Whether it stands for a call, and not for a value. (The room of calls is above this one.)"""
    kind = type(value)
    return kind.__module__ == "agentest.scenarios.calls" and kind.__name__ in _CALLS


_CALLS = ("ExpectedCall", "AnyOf", "CallOrder")
