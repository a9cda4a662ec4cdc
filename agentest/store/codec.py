"""One writer and one reader for every dataclass that is stored: both are derived from its fields.

A field `agent_message` has the key `agentMessage`. How a value is written follows from the type of its field;
a `Layout` says what does not. What is written can be read back; unknown keys are ignored, and a key that an
older version did not write gets the field's default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from enum import Enum, IntEnum
from functools import partial
from types import NoneType, UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from agentest.support.json_text import Json, plain

T = TypeVar("T")

_MILLISECONDS_DIGITS = 3
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_AS_THEY_ARE = (str, int, bool, NoneType, object)
"""Types whose values are their own JSON form. A field of type `object` holds JSON already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the fields of a dataclass do not say about its form in a file. All names are names of fields."""

    order: tuple[str, ...] = ()
    """Fields that are written first, in this order; the others follow in their own."""
    left_out: tuple[str, ...] = ()
    """Fields that are not stored: they must have a default."""
    only_if_set: tuple[str, ...] = ()
    """Fields that are written only where they differ from their default."""
    flat: tuple[str, ...] = ()
    """Fields whose keys stand among those of the value that has the field."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Field → its key, where that is not the field's name in camelCase."""
    digits: Mapping[str, int] = field(default_factory=dict)
    """Field → the decimals that are kept. Fields named `…_ms` keep three."""
    older: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    """Field → what turns the form that an older version wrote into today's."""


Convert = Callable[[Any], Any] | None
"""None: the value stays as it is."""


@dataclass(frozen=True, slots=True)
class _Form:
    """How a value of one type is written and read."""

    write: Convert = None
    read: Convert = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A field and its form."""

    name: str
    key: str
    write: Convert
    read: Convert
    unwritten: Any
    """The value that is not written; MISSING where every value is."""


@dataclass(frozen=True, slots=True)
class _FlatMember:
    """A field whose value's keys stand among those of its owner."""

    name: str
    codec: Codec[Any]


class Codecs:
    """The codecs of a file: one for each dataclass that is in it, made when it is needed first.

    Args:
        layouts: those of the dataclasses that need one.
    """

    def __init__(self, layouts: Mapping[type, Layout]) -> None:
        self._layouts = layouts
        self._codecs: dict[type, Codec[Any]] = {}

    def of(self, cls: type[T]) -> Codec[T]:
        """The codec of a dataclass."""
        if cls not in self._codecs:
            codec = self._codecs[cls] = Codec(cls)
            codec.learn(self._layouts.get(cls, Layout()), self)  # it may hold values of its own type
        return self._codecs[cls]

    def write(self, value: object) -> Json:
        """A dataclass instance in JSON types."""
        return self.of(type(value)).write(value)

    def read(self, cls: type[T], data: Mapping[str, Any]) -> T:
        """The value that was written. The data is not checked here: the schema says what it must be."""
        return self.of(cls).read(data)

    def key(self, cls: type, name: str) -> str:
        """The key of a field."""
        return self.of(cls).key(name)

    def form(self, hint: Any) -> _Form:
        """The form of the values of a type."""
        if hint in _AS_THEY_ARE:
            return _Form()
        if hint is Any:
            return _Form(plain)
        if hint is float:
            return _Form(_written_number, _read_number)
        if get_origin(hint) in (Union, UnionType):
            return self._union(get_args(hint))
        if get_origin(hint):
            return self._container(hint)
        return _enum(hint) if issubclass(hint, Enum) else _form_of(self.of(hint))

    def _container(self, hint: Any) -> _Form:
        if get_origin(hint) is tuple:
            item = self.form(get_args(hint)[0])
            return _Form(partial(_list, item.write), partial(_tuple, item.read))
        if get_origin(hint) is Mapping:
            item = self.form(get_args(hint)[1])
            return _Form(partial(_dict, item.write), partial(_dict, item.read))
        raise TypeError(f"{hint} has no form in a file")

    def _union(self, hints: tuple[Any, ...]) -> _Form:
        others = [hint for hint in hints if hint is not NoneType]
        form = self._any_of(others) if len(others) > 1 else self.form(others[0])
        return _Form(_unless_none(form.write), _unless_none(form.read)) if NoneType in hints else form

    def _any_of(self, hints: list[Any]) -> _Form:
        if all(map(is_dataclass, hints)):
            codecs = [self.of(hint) for hint in hints]
            return _Form(self.write, lambda data: _codec_for(codecs, data).read(data))
        return _Form(plain, _read_number) if float in hints else _Form()


class Codec(Generic[T]):
    """Writes and reads one dataclass."""

    def __init__(self, cls: type[T]) -> None:
        self._cls = cls
        self._members: list[_Member | _FlatMember] = []
        self._needed: set[str] = set()

    def learn(self, layout: Layout, codecs: Codecs) -> None:
        """Find out how the fields are written and read."""
        hints = get_type_hints(self._cls)
        stored = [each for each in fields(self._cls) if each.name not in layout.left_out]  # type: ignore[arg-type]
        first = {name: place for place, name in enumerate(layout.order)}
        stored.sort(key=lambda each: first.get(each.name, len(first)))
        self._members = [
            _FlatMember(each.name, codecs.of(_without_none(hints[each.name])))
            if each.name in layout.flat
            else _member(each, codecs.form(hints[each.name]), layout)
            for each in stored
        ]
        for each, member in zip(stored, self._members, strict=True):
            if each.default is MISSING and each.default_factory is MISSING:
                self._needed |= member.codec._needed if isinstance(member, _FlatMember) else {member.key}

    @property
    def keys(self) -> dict[str, bool]:
        """Every key that is written, and whether it always is."""
        keys: dict[str, bool] = {}
        for member in self._members:
            if isinstance(member, _FlatMember):
                keys |= member.codec.keys
            else:
                keys[member.key] = member.unwritten is MISSING
        return keys

    def key(self, name: str) -> str:
        """The key of a field."""
        return next(m.key for m in self._members if isinstance(m, _Member) and m.name == name)

    def write(self, value: T) -> Json:
        """The value in JSON types."""
        data: Json = {}
        for member in self._members:
            content = getattr(value, member.name)
            if isinstance(member, _FlatMember):
                if content is not None:
                    data.update(member.codec.write(content))
            elif member.unwritten is MISSING or content != member.unwritten:
                data[member.key] = content if member.write is None else member.write(content)
        return data

    def read(self, data: Mapping[str, Any]) -> T:
        """The value that was written."""
        values = {}
        for member in self._members:
            if isinstance(member, _FlatMember):
                if member.codec.is_in(data):
                    values[member.name] = member.codec.read(data)
            elif member.key in data:
                content = data[member.key]
                values[member.name] = content if member.read is None else member.read(content)
        return self._cls(**values)

    def is_in(self, data: Mapping[str, Any]) -> bool:
        """Whether the data holds such a value: each key that has no default."""
        return all(key in data for key in self._needed)


def _member(each: Field[Any], form: _Form, layout: Layout) -> _Member:
    digits = layout.digits.get(each.name, _MILLISECONDS_DIGITS if each.name.endswith("_ms") else None)
    write = form.write if digits is None else partial(_rounded, digits)
    older = layout.older.get(each.name)
    read = form.read
    if older:
        read = partial(_read_older, older, form.read)
    default = each.default_factory() if each.default_factory is not MISSING else each.default
    return _Member(
        name=each.name,
        key=layout.names.get(each.name, _camel_case(each.name)),
        write=write,
        read=read,
        unwritten=default if each.name in layout.only_if_set else MISSING,
    )


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _without_none(hint: Any) -> Any:
    """The one type of an optional value."""
    return next((each for each in get_args(hint) if each is not NoneType), hint)


def _codec_for(codecs: list[Codec[Any]], data: Mapping[str, Any]) -> Codec[Any]:
    return next(codec for codec in codecs if codec.is_in(data))


def _form_of(codec: Codec[Any]) -> _Form:
    return _Form(codec.write, codec.read)


def _enum(cls: type[Enum]) -> _Form:
    """Members by their value; those that are ordered numbers by their name in lower case."""
    if issubclass(cls, IntEnum):
        return _Form(lambda member: member.name.lower(), lambda name: cls[name.upper()])
    return _Form(lambda member: member.value, cls)


def _unless_none(convert: Convert) -> Convert:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _list(convert: Convert, values: Any) -> list[Any]:
    return list(values) if convert is None else [convert(value) for value in values]


def _tuple(convert: Convert, values: Any) -> tuple[Any, ...]:
    return tuple(values) if convert is None else tuple([convert(value) for value in values])


def _dict(convert: Convert, values: Mapping[str, Any]) -> Json:
    return dict(values) if convert is None else {key: convert(value) for key, value in values.items()}


def _rounded(digits: int, value: float | None) -> float | None:
    return None if value is None else round(value, digits)


def _written_number(value: float) -> float | str:
    """The number, or its name where JSON has no form for it."""
    return value if math.isfinite(value) else json.dumps(value)


def _read_number(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value


def _read_older(older: Callable[[Any], Any], read: Convert, data: Any) -> Any:
    data = older(data)
    return data if read is None else read(data)
