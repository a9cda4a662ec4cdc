"""The words that stand in the place of a value: `optional(5)`, `one_of("a", "b")`, `each(instance(int))`.

Each is a frozen value that prints itself as it was written. They work wherever a value is expected:
at any depth of arguments, in `result`, in states, and, those that are about text, in what is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin
from unicodedata import category, normalize

from agentest.scenarios.matchers.comparison import (
    Equal,
    Matcher,
    all_hold,
    any_holds,
    equal,
    is_same,
    may_be_absent,
)
from agentest.scenarios.matchers.display import shown
from agentest.support.spelling import did_you_mean


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
"""The types as data names them: Python's names first, then those of JSON Schema."""
_PLAIN = frozenset({*TYPE_NAMES.values(), tuple, object})


def type_named(name: Any) -> type:
    """The type that data names. Raises ValueError for any other name."""
    if isinstance(name, str) and name in TYPE_NAMES:
        return TYPE_NAMES[name]
    raise ValueError(f"{name!r} is no type; {did_you_mean(str(name), TYPE_NAMES)}")


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Instance(Matcher):
    """A value of one of the `types`. A bool is no int; an int is a float, as JSON has one type of number."""

    types: tuple[type, ...]

    def holds(self, actual: Any, equal: Equal) -> bool:
        del equal
        return any(_is_instance(actual, wanted) for wanted in self.types)

    @property
    def is_plain(self) -> bool:
        return _PLAIN.issuperset(self.types)

    @property
    def names(self) -> list[str]:
        """The types as data names them. Raises ValueError for one that data has no name for."""
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
    if wanted is list or wanted is tuple:  # as in comparisons, where either equals the other
        return isinstance(actual, list | tuple)
    return isinstance(actual, Mapping) if wanted is dict else isinstance(actual, wanted)


def instance(*types: Any) -> Matcher:
    """A value of one of these types: `instance(str)`, `instance(int, None)`. Raises ValueError."""
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
        raise ValueError(f"instance(…) expects a type, found {shown(wanted)}; {_instead(wanted)}")


def _instead(wanted: Any) -> str:
    if wanted is Any:
        return "for any value write instance(object)"
    if get_origin(wanted) is not None:
        return "for what is in a list write each(instance(…)), for what is in a dict the dict itself"
    if isinstance(wanted, str) and wanted in TYPE_NAMES:
        return f"write instance({TYPE_NAMES[wanted].__name__})"
    return f"for a value like it write instance({type(wanted).__name__})"


_UNSEEN = str.maketrans("", "", "\u200b\u2060\ufeff")
"""White space without any width, which `str.split` does not know."""
FLAGS = ("ignore_case", "ignore_space", "ignore_punctuation")
"""What may make no difference."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Text(Matcher):
    """A text that is equal to `value`, but for letter case, white space and punctuation where asked."""

    value: str
    ignore_case: bool = False
    ignore_space: bool = False
    ignore_punctuation: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.value, str):
            raise ValueError(f"text(…) expects a text, found {shown(self.value)}{_texts_instead(self.value)}")
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                found = shown(getattr(self, name))
                raise ValueError(f"text(…): {name} is True or False, found {found}")

    def holds(self, actual: Any, equal: Equal) -> bool:
        del equal
        return isinstance(actual, str) and self.plain(actual) == self.plain(self.value)

    def is_in(self, text: str) -> bool:
        """Whether the value is a part of a longer text.

        A value of nothing but what makes no difference would be a part of any: it is looked for as it is.
        """
        plain = self.plain(self.value)
        return plain in self.plain(text) if plain else self.value in text

    def plain(self, text: str) -> str:
        """A text without what makes no difference."""
        if self.ignore_punctuation:
            text = "".join(sign for sign in text if not category(sign).startswith("P"))
        if self.ignore_space:
            text = "".join(text.translate(_UNSEEN).split())
        return normalize("NFC", normalize("NFD", text).casefold()) if self.ignore_case else text

    def __repr__(self) -> str:
        flags = "".join(f", {name}=True" for name in FLAGS if getattr(self, name))
        return f"text({self.value!r}{flags})"


def _texts_instead(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"; for a number write number({value!r})"
    return ""


def text(
    value: str, *, ignore_case: bool = False, ignore_space: bool = False, ignore_punctuation: bool = False
) -> Matcher:
    """A text that is equal to `value`. Raises ValueError for anything but a text.

    Args:
        ignore_case: `Paris` equals `PARIS`, `straße` equals `STRASSE`.
        ignore_space: white space makes no difference at all: `New York` equals `NewYork`.
        ignore_punctuation: no punctuation makes a difference: `April 1, 2024` equals `April 1 2024`. That is
            what Unicode calls so: `. , - _ ' " / ( )`, but no currency and no sign of arithmetic.
    """
    return Text(value, ignore_case, ignore_space, ignore_punctuation)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Form(Matcher):
    """What a dict of data stands for, or that dict itself: an argument can be `{"text": "hi"}`, too."""

    word: Any
    """A matcher, a compiled pattern or, of `{exactly: …}`, the value as it is."""
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
        if isinstance(other, Form):
            return is_same(self.word, other.word)
        return is_same(self.word, other) or is_same(self.literal, other)

    def __eq__(self, other: object) -> bool:
        return is_same(self, other) or (not isinstance(other, Matcher) and equal(self, other))

    def __hash__(self) -> int:
        try:
            return hash(self.word)
        except TypeError:  # a value as it is, which may be a dict
            return 0

    def __repr__(self) -> str:
        return shown(self.word)
