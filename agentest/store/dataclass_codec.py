"""Encode and decode dataclasses as JSON, based on their fields.

A field `agent_message` has the key `agentMessage`. The type of a field determines its JSON form; a `Layout`
has the exceptions. Unknown keys are ignored, and a key that an older version did not write gets the field's
default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from enum import Enum, IntEnum, StrEnum
from functools import partial
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from agentest.support.json_text import Json, plain
from agentest.support.lazy_dataclasses import dataclass

T = TypeVar("T")
Convert = Callable[[Any], Any] | None  # None leaves the value unchanged

_MILLISECONDS_DIGITS = 3
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_JSON_TYPES = (str, int, bool, NoneType, object)
"""Types whose values are their own JSON form. A field of type `object` contains JSON already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The exceptions to the default file format of a dataclass. Names are names of fields."""

    order: tuple[str, ...] = ()  # fields that come first, in this order; the others follow in their own order
    left_out: tuple[str, ...] = ()  # fields that are not stored. They must have a default.
    always: tuple[str, ...] | None = None
    """Fields that are written even if they have their default, besides `required`; None: all are."""
    required: tuple[str, ...] = ()  # fields with a default that every file has nevertheless
    flat: tuple[str, ...] = ()  # fields whose keys are merged into the object that has the field
    names: Mapping[str, str] = field(default_factory=dict)
    """Field → its key, if that is not the field's name in camelCase."""
    digits: Mapping[str, int] = field(default_factory=dict)
    """Field → the number of stored decimals. Fields named `…_ms` have three."""
    within: Mapping[type, Layout] = field(default_factory=dict)
    """Dataclass → its layout inside this one, if it differs."""
    derived: Callable[[Any], Json] | None = None  # returns more keys for a value, or replaces some
    completed: Callable[[Any, Mapping[str, Any]], Any] | None = None
    """Returns the decoded value with what `derived` wrote."""


class _Form(NamedTuple):
    write: Convert = None
    read: Convert = None


class Codecs:
    """The codecs of a file's dataclasses, created on first use.

    Args:
        layouts: the layouts of dataclasses with exceptions.
        outer: has the codecs of all dataclasses that are not in `layouts`; None for their default layout.
    """

    def __init__(self, layouts: Mapping[type, Layout], outer: Codecs | None = None) -> None:
        self._layouts = layouts
        self._outer = outer
        self._codecs: dict[type, Codec[Any]] = {}

    def of(self, cls: type[T]) -> Codec[T]:
        """Return the codec of a dataclass."""
        if known := self._codecs.get(cls):
            return known
        if self._outer and cls not in self._layouts:
            codec = self._codecs[cls] = self._outer.of(cls)
        else:
            layout = self._layouts.get(cls, Layout())
            codec = self._codecs[cls] = Codec(cls, layout)  # known at once: it may contain its own type
            codec.learn(Codecs(layout.within, self) if layout.within else self)
        return codec

    def write(self, value: object) -> Json:
        """Encode a dataclass instance in JSON types."""
        codec = self._codecs.get(type(value)) or self.of(type(value))
        return codec.write(value)

    def read(self, cls: type[T], data: Mapping[str, Any]) -> T:
        """Decode a value. The data is not validated here; that is the task of the schema."""
        return self.of(cls).read(data)

    def form(self, hint: Any) -> _Form:
        """Return the form of a type's values."""
        if hint in _JSON_TYPES:
            return _Form()
        if hint is Any:
            return _Form(plain)
        if hint is float:
            return _Form(_written_number, read_number)
        if get_origin(hint) in (Union, UnionType):
            return self._union(get_args(hint))
        if (kind := get_origin(hint)) in (tuple, frozenset, Sequence):
            items = get_args(hint)
            if kind is tuple and items[-1] is not ...:
                writes, reads = zip(*map(self.form, items), strict=True)
                return _Form(_item_by_item(list, writes), _item_by_item(tuple, reads))
            write, read = self.form(items[0])
            in_file, in_memory = (sorted, frozenset) if kind is frozenset else (list, tuple)
            return _Form(_each_item(in_file, write), _each_item(in_memory, read))
        if get_origin(hint) is Mapping:
            write, read = self.form(get_args(hint)[1])
            return _Form(_each_value(write), _each_value(read))
        if issubclass(hint, IntEnum):  # ordered numbers, by their names
            return _Form(lambda member: member.name.lower(), lambda name: hint[name.upper()])
        if issubclass(hint, Enum):
            return _Form(str.__str__ if issubclass(hint, StrEnum) else attrgetter("value"), hint)
        return _Form(self.write, partial(self.read, hint))  # its codec is created on first use

    def _union(self, hints: tuple[Any, ...]) -> _Form:
        others = [hint for hint in hints if hint is not NoneType]
        if len(others) == 1:
            form = self.form(others[0])
        elif all(map(is_dataclass, others)):
            form = _Form(self.write, partial(self._read_any_of, others))
        else:
            form = _Form(plain, _read_number_or_text) if float in others else _Form()
        return _Form(_unless_none(form.write), _unless_none(form.read)) if NoneType in hints else form

    def _read_any_of(self, hints: list[Any], data: Any) -> Any:
        for codec in map(self.of, hints):
            if codec.is_in(data):
                return codec.read(data)
        raise ValueError(f"expected a value of another form, not {data!r:.80}")


class Codec(Generic[T]):
    """Encodes and decodes one dataclass."""

    def __init__(self, cls: type[T], layout: Layout) -> None:
        self._cls = cls
        self._layout = layout
        self._keys: dict[str, str] = {}  # field → key, in the order of the file
        self._writers: list[tuple[str, Convert, Any]] = []
        """Key, encoder, and the value that is not written, in the order of `_keys`."""
        self._readers: list[tuple[str, str, Convert]] = []
        self._flat: list[tuple[str, Codec[Any], bool]] = []  # field, codec, and whether its keys come first
        self.needed: set[str] = set()  # the keys that every such value has

    def learn(self, codecs: Codecs) -> None:
        """Determine how the fields are encoded and decoded."""
        layout, hints = self._layout, get_type_hints(self._cls)
        stored = [each for each in fields(self._cls) if each.name not in layout.left_out]  # type: ignore[arg-type]
        first = {name: position for position, name in enumerate(layout.order)}
        for each in sorted(stored, key=lambda each: first.get(each.name, len(first))):
            hint = hints[each.name]
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.name in layout.flat:
                inner = codecs.of(next((arg for arg in get_args(hint) if arg is not NoneType), hint))
                self._flat.append((each.name, inner, not self._keys))
                self.needed |= inner.needed if default is MISSING else set()
            else:
                self._learn_field(each, codecs.form(hint), default)
        names = tuple(self._keys)
        get = attrgetter(*names) if names else lambda _: ()
        self._values: Callable[[Any], Any] = get if len(names) != 1 else lambda value: (get(value),)

    def _learn_field(self, each: Field[Any], form: _Form, default: Any) -> None:
        layout = self._layout
        key = self._keys[each.name] = layout.names.get(each.name, _camel_case(each.name))
        digits = layout.digits.get(each.name, _MILLISECONDS_DIGITS if each.name.endswith("_ms") else None)
        write = form.write if digits is None else partial(round, ndigits=digits)
        is_always_written = layout.always is None or each.name in (*layout.required, *layout.always)
        self._writers.append((key, write, MISSING if is_always_written else default))
        self._readers.append((each.name, key, form.read))
        if default is MISSING or each.name in layout.required:
            self.needed.add(key)

    @property
    def keys(self) -> set[str]:
        """Return the keys of all fields."""
        return {*self._keys.values(), *(key for _, codec, _ in self._flat for key in codec.keys)}

    def write(self, value: T) -> Json:
        """Encode the value in JSON types."""
        data: Json = {}
        for (key, write, unwritten), content in zip(self._writers, self._values(value), strict=True):
            if unwritten is MISSING or (content is not unwritten and content != unwritten):
                data[key] = content if write is None or content is None else write(content)
        for name, codec, first in self._flat:
            if (content := getattr(value, name)) is not None:
                data = codec.write(content) | data if first else data | codec.write(content)
        if self._layout.derived:
            data |= self._layout.derived(value)
        return data

    def read(self, data: Mapping[str, Any]) -> T:
        """Decode a value. Raises LookupError, TypeError, ValueError or AttributeError if it is not one."""
        if type(data) is not dict and not isinstance(data, Mapping):  # the second takes longer
            raise TypeError(f"expected an object, not {data!r:.80}")
        if not self.needed <= data.keys():
            raise LookupError(f"it has no {' and no '.join(sorted(self.needed - data.keys()))}")
        values, key = {}, ""
        try:
            for name, key, read in self._readers:
                if key in data:
                    values[name] = data[key] if read is None else read(data[key])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"{key}: {error}") from None
        for name, codec, _ in self._flat:
            if self.needed >= codec.needed or codec.is_in(data):
                values[name] = codec.read(data)
        value = self._cls(**values)
        return self._layout.completed(value, data) if self._layout.completed else value

    def is_in(self, data: Mapping[str, Any]) -> bool:
        """True if the data contains such a value, that is, each key without a default."""
        return self.needed <= data.keys()


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _each_item(kind: Callable[[Any], Any], convert: Convert) -> Callable[[Any], Any]:
    return kind if convert is None else lambda values: kind(map(convert, values))


def _item_by_item(kind: type, converts: Sequence[Convert]) -> Callable[[Any], Any]:
    return lambda values: kind(c(v) if c else v for c, v in zip(converts, values, strict=True))


def _each_value(convert: Convert) -> Callable[[Mapping[str, Any]], Json]:
    if convert is None:
        return dict
    return lambda values: {key: convert(value) for key, value in values.items()}


def _unless_none(convert: Convert) -> Convert:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _written_number(value: float) -> float | str:
    return value if math.isfinite(value) else json.dumps(value)


def read_number(value: Any) -> float:
    """Return the number, also for the name of one. Raises TypeError."""
    if type(value) is float or isinstance(value, int):
        return value
    if not isinstance(value, str) or value not in _NOT_FINITE:
        raise TypeError(f"expected a number, not {value!r:.80}")
    return _NOT_FINITE[value]


def _read_number_or_text(value: Any) -> Any:
    return _NOT_FINITE.get(value, value) if isinstance(value, str) else value
