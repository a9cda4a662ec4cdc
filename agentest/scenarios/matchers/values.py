"""Matchers in place of a value: `optional(5)`, `one_of("a", "b")`, `each(instance(int))`, `text("Paris")`.

Each is a frozen value whose repr is its source. They work wherever a value is expected: at any depth of
arguments, in `result`, in states and, for those about text, in `says`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Number
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin
from unicodedata import category, normalize

from agentest.scenarios.matchers.comparison import (
    Equal,
    Matcher,
    all_pairs_hold,
    any_holds,
    equal,
    is_same,
    may_be_absent,
)
from agentest.scenarios.matchers.display import shown
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

_CALLS = ("ExpectedCall", "AnyOf", "CallOrder")
TYPE_NAMES: Final[Mapping[str, type]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "dict": dict,
    "list": list,
    "null": type(None),
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "object": dict,
    "array": list,
}
"""Type names in data: Python's names first, then those of JSON Schema."""
_PLAIN = frozenset({*TYPE_NAMES.values(), tuple, object})
_ZERO_WIDTH_SPACES = str.maketrans("", "", "\u200b\u2060\ufeff")
"""Zero-width white space, which `str.split` does not recognize."""
FLAGS = ("ignore_case", "ignore_space", "ignore_punctuation")  # differences that a text may ignore


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Optional(Matcher):
    """Missing, or equal to `value`."""

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
    """The key must be missing."""

    def holds(self, actual: Any, equal: Equal) -> bool:
        del actual, equal  # the key exists
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
    """A list in which every item equals `value`."""

    value: Any

    def __post_init__(self) -> None:
        if may_be_absent(self.value):
            raise ValueError(f"each(…): {self!r} says nothing: {shown(self.value)} is for the value of a key")

    def holds(self, actual: Any, equal: Equal) -> bool:
        return isinstance(actual, list | tuple) and all_pairs_hold(
            equal, ((self.value, item) for item in actual)
        )

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
    """Expect a key that may be missing; if it exists, its value must equal `value`."""
    return Optional(value)


absent = Absent()  # expect that a key is missing


def one_of(*values: Any) -> Matcher:
    """Expect a value that equals one of these. Raises ValueError for no values, and for calls."""
    for value in values:
        if is_call(value):
            raise ValueError("one_of(…) is for values; for calls write any_of(call(…), call(…))")
    return OneOf(values)


def each(*values: Any) -> Matcher:
    """Expect a list in which every item equals this value; an empty list is accepted. Raises ValueError."""
    if len(values) != 1:
        raise ValueError(
            f"each(…) takes one value, which every item must be equal to, and was given {len(values)}; "
            "for several that will do write each(one_of(…))"
        )
    return Each(values[0])


def is_call(value: Any) -> bool:
    """Return True if the value is an expected call. Compares names, because `calls` imports matchers."""
    kind = type(value)
    return kind.__module__ == "agentest.scenarios.trajectory" and kind.__name__ in _CALLS


def type_named(name: Any) -> type:
    """Return the type with this name in data. Raises ValueError for any other name."""
    if isinstance(name, str) and name in TYPE_NAMES:
        return TYPE_NAMES[name]
    raise ValueError(f"{name!r} is not a type; {did_you_mean(str(name), TYPE_NAMES)}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Instance(Matcher):
    """A value of one of the `types`. A bool is not an int; an int is a float, as in JSON."""

    types: tuple[type, ...]

    def holds(self, actual: Any, _: Equal) -> bool:
        return any(_is_instance(actual, wanted) for wanted in self.types)

    @property
    def is_plain(self) -> bool:
        return _PLAIN.issuperset(self.types)

    @property
    def names(self) -> list[str]:
        """Names of the types in data. Raises ValueError for a type without one."""
        names = {kind: name for name, kind in reversed(list(TYPE_NAMES.items()))}
        for wanted in self.types:
            if wanted not in names:
                raise ValueError(f"the type {wanted.__name__} has no name in data")
        return [names[wanted] for wanted in self.types]

    def __repr__(self) -> str:
        return f"instance({', '.join('None' if t is type(None) else t.__name__ for t in self.types)})"


def _is_instance(actual: Any, wanted: type) -> bool:
    if isinstance(actual, bool):
        return wanted is bool or (not issubclass(wanted, Number) and isinstance(actual, wanted))
    if wanted is float:
        return isinstance(actual, int | float)
    if wanted is list or wanted is tuple:  # a list equals a tuple, as in comparisons
        return isinstance(actual, list | tuple)
    return isinstance(actual, Mapping) if wanted is dict else isinstance(actual, wanted)


def instance(*types: Any) -> Matcher:
    """Expect a value of one of these types: `instance(str)`, `instance(int, None)`. Raises ValueError."""
    if not types:
        raise ValueError("instance(…) needs a type, like instance(str)")
    return Instance(tuple(kind for wanted in types for kind in _types(wanted)))


def _types(wanted: Any) -> Iterator[type]:
    if get_origin(wanted) in (UnionType, Union):
        for each in get_args(wanted):
            yield from _types(each)
    elif wanted is None:
        yield type(None)
    elif isinstance(wanted, type) and get_origin(wanted) is None and wanted is not Any:
        yield wanted
    else:
        raise ValueError(f"instance(…) expects a type, found {shown(wanted)}; {_instance_hint(wanted)}")


def _instance_hint(wanted: Any) -> str:
    if wanted is Any:
        return "for any value write instance(object)"
    if get_origin(wanted) is not None:
        return "for items of a list write each(instance(…)), for values of a dict write the dict"
    if isinstance(wanted, str) and wanted in TYPE_NAMES:
        return f"write instance({TYPE_NAMES[wanted].__name__})"
    return f"for a value like it write instance({type(wanted).__name__})"


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Text(Matcher):
    """A text that equals `value`, optionally ignoring case, white space and punctuation."""

    value: str
    ignore_case: bool = False
    ignore_space: bool = False
    ignore_punctuation: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
            hint = f"; for a number write number({self.value!r})" if is_number else ""
            raise ValueError(f"text(…) expects a text, found {shown(self.value)}{hint}")
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                value_text = shown(getattr(self, name))
                raise ValueError(f"text(…): {name} is True or False, found {value_text}")

    def holds(self, actual: Any, _: Equal) -> bool:
        return isinstance(actual, str) and self.plain(actual) == self.plain(self.value)

    def is_in(self, text: str) -> bool:
        """Return True if the value is part of a longer text.

        A value of only ignored characters would be part of any text, so it is searched unchanged.
        """
        plain = self.plain(self.value)
        return plain in self.plain(text) if plain else self.value in text

    def plain(self, text: str) -> str:
        """Return a text without ignored differences."""
        if self.ignore_punctuation:
            text = "".join(sign for sign in text if not category(sign).startswith("P"))
        if self.ignore_space:
            text = "".join(text.translate(_ZERO_WIDTH_SPACES).split())
        return normalize("NFC", normalize("NFD", text).casefold()) if self.ignore_case else text

    def __repr__(self) -> str:
        flags = "".join(f", {name}=True" for name in FLAGS if getattr(self, name))
        return f"text({self.value!r}{flags})"


def text(
    value: str, *, ignore_case: bool = False, ignore_space: bool = False, ignore_punctuation: bool = False
) -> Matcher:
    """Expect a text that equals `value`. Raises ValueError for anything but a text.

    Args:
        ignore_case: `Paris` equals `PARIS`, `straße` equals `STRASSE`.
        ignore_space: ignore all white space: `New York` equals `NewYork`.
        ignore_punctuation: ignore Unicode punctuation, `. , - _ ' " / ( )`, but no currency or arithmetic
            signs: `April 1, 2024` equals `April 1 2024`.
    """
    return Text(value, ignore_case, ignore_space, ignore_punctuation)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class DataMatcher(Matcher):
    """A matcher written as a dict of data; also accepts the dict itself, such as `{"text": "hi"}`."""

    word: Any  # a matcher, a compiled pattern or, for `{exactly: …}`, the plain value
    literal: Mapping[str, Any]

    def holds(self, actual: Any, equal: Equal) -> bool:
        is_itself = isinstance(actual, Mapping) and equal(self.literal, actual)
        return is_itself or equal(self.word, actual)

    @property
    def inner(self) -> tuple[Any, ...]:
        return (self.word,)

    @property
    def may_be_absent(self) -> bool:
        return may_be_absent(self.word)

    def parts(self, actual: Any) -> list[tuple[str, Any, Any]] | None:
        return [("", self.word, actual)]

    def says_same(self, other: Any) -> bool:
        if isinstance(other, DataMatcher):
            return is_same(self.word, other.word)
        return is_same(self.word, other) or is_same(self.literal, other)

    def __eq__(self, other: object) -> bool:
        return is_same(self, other) or (not isinstance(other, Matcher) and equal(self, other))

    def __hash__(self) -> int:
        try:
            return hash(self.word)
        except TypeError:  # a plain value, which may be a dict
            return 0

    def __repr__(self) -> str:
        return shown(self.word)
