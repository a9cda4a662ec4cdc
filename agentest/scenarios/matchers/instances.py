"""`instance(str)`: a value of a type, as JSON has types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin

from agentest.scenarios.matchers.comparison import Equal, Matcher
from agentest.scenarios.matchers.showing import shown
from agentest.support.spelling import did_you_mean

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
