"""Convert foreign values to JSON text that can be sent, and show values that are not JSON."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from operator import is_
from pathlib import PurePath
from typing import Any, NoReturn
from uuid import UUID

from pydantic import BaseModel
from pydantic_core import from_json, to_jsonable_python

_WRITTEN_BY_PYDANTIC = (date, time, timedelta, Decimal, UUID, PurePath)
_MAX_TEXT_DEPTH = 100  # texts in containers nested deeper than this are not checked
_MAX_DEPTH = 50  # nested containers beyond this depth are not converted
_MAX_VALUES = 1_000_000
_MAX_EXACT_FLOAT = 2**53


class NotJson(ValueError):
    """The value cannot be written as JSON. The message says why."""


def json_text(value: Any) -> str:
    """Convert the value to JSON. Raises NotJson.

    Values without a JSON form are written as pydantic does: dates, decimals, enums, sets, UUIDs, dataclasses,
    pydantic models.
    """
    with _not_json():
        try:
            return _dumped(value, _in_json_types)
        except TypeError:
            return _dumped(_with_text_keys(value), _in_json_types)


def check_plain(value: Any) -> None:
    """Raise NotJson for a value that is sent unchanged and is not JSON."""
    with _not_json():
        _dumped(value, _refused)


@contextmanager
def _not_json() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise NotJson("the value is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise NotJson(str(error)) from None


def _refused(value: Any) -> Any:
    raise TypeError(f"a {type(value).__name__} is not JSON-serialisable")


def _dumped(value: Any, default: Callable[[Any], Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=default)


def _in_json_types(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_text_keys({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, Enum):
        return _with_text_keys(value.value)
    if isinstance(value, set | frozenset):  # in the same order in every run: hashes of texts vary
        try:
            return sorted(value)
        except TypeError:
            return sorted(value, key=safe_repr)
    if isinstance(value, _WRITTEN_BY_PYDANTIC):
        return to_jsonable_python(value)
    return _refused(value)


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key(key): _with_text_keys(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(item) for item in value]
    return value


def _key(key: Any) -> Any:
    if isinstance(key, Enum):
        return _key(key.value)
    return to_jsonable_python(key) if isinstance(key, _WRITTEN_BY_PYDANTIC) else key


def copied(value: Any) -> Any:
    """Copy a JSON value. Foreign objects are shared, and values that are nested too deeply."""
    try:
        if isinstance(value, dict):
            return {key: copied(item) for key, item in value.items()}
        return [copied(item) for item in value] if isinstance(value, list) else value
    except RecursionError:
        return value


def safe_repr(value: Any) -> str:
    """Return the value's repr, or its type's name if repr fails or the value is nested too deeply."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - foreign code may raise anything, and this only describes a result
        return f"<{type(value).__name__}>"


def well_formed(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot represent, with U+FFFD.

    The halves of a pair are joined to a character, because streaming agents split pairs.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_value(value: Any, depth: int = 0) -> Any:
    """Make all texts in dicts and lists well-formed. Returns the same object if nothing changes."""
    if isinstance(value, str):
        return well_formed(value)
    if depth >= _MAX_TEXT_DEPTH or not isinstance(value, dict | list):
        return value
    before = [*value, *value.values()] if isinstance(value, dict) else value
    parts = [well_formed_value(part, depth + 1) for part in before]
    if all(map(is_, before, parts)):
        return value
    if isinstance(value, list):
        return parts
    return dict(zip(parts[: len(value)], parts[len(value) :], strict=True))


Json = dict[str, Any]
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def encoded(value: Any) -> bytes:
    """Encode a JSON value on one line."""
    text = _ENCODER.encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return well_formed(text).encode()


def encode_on_one_line(value: Any) -> str:
    """Encode a value as JSON without line separators, for readers that treat each line as a record.

    JSON itself leaves three characters unescaped that many readers treat as line ends. Values without a JSON
    form are written as their repr. Raises what `json.dumps` raises.
    """
    text = _LINE_ENCODER.encode(value)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def json_or_repr(value: Any) -> str:
    """Encode a value as `encode_on_one_line` does, or its repr if it cannot be encoded."""
    try:
        return encode_on_one_line(value)
    except (TypeError, ValueError, RecursionError):  # a Python agent's arguments need not be JSON
        return encode_on_one_line(safe_repr(value))


_LINE_ENCODER = json.JSONEncoder(ensure_ascii=False, default=safe_repr)
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def json_value(text: str | bytes, **how: Any) -> Any:
    """Parse JSON text. `how` is passed to `json.loads`. Raises ValueError with the problem."""
    try:
        return json.loads(text, **how)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise plainly(error) from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON like `json.loads`, several times faster. Raises ValueError or RecursionError."""
    try:
        return from_json(text, cache_strings="keys")
    except (ValueError, TypeError):  # Python accepts more: half surrogate pairs, deep nesting, encodings
        return json.loads(text)


def json_or(text: str | bytes, default: Any = None) -> Any:
    """Return the value of a JSON text, or `default` if it is not JSON."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError):
        return default


def plainly(error: ValueError) -> ValueError:
    """Return the error, with a clearer message for a number with too many digits."""
    if not str(error).startswith("Exceeds the limit"):
        return error
    return ValueError(f"a number has more than {sys.get_int_max_str_digits():,} digits; write it as a text")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"the number {digits} is too large")
    return value


STRICT: dict[str, Any] = {"parse_constant": _no_constant, "parse_float": _finite}
"""For `json.loads`: reject NaN, Infinity and 1e999, which Python accepts as JSON."""


def parse_untrusted_json(text: str | bytes) -> Any:
    """Parse JSON from an untrusted sender. Raises ValueError or RecursionError.

    A parsed value takes a hundred times its encoded size and blocks everything while it is built, so texts
    with too many values are refused.
    """
    if len(text) > _MAX_VALUES:
        marks: tuple[Any, ...] = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
        if sum(text.count(mark) for mark in marks) > _MAX_VALUES:
            raise ValueError(f"it has more than {_MAX_VALUES:,} values")
    return json.loads(text, **STRICT)


def json_document(value: Json) -> str:
    """Return the text of a JSON file: indented and well-formed, with a newline at the end."""
    return well_formed(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)) + "\n"


_SCALARS = frozenset({str, int, bool, type(None)})
_CONTAINERS = (dict, list, tuple, set, frozenset, Mapping)  # in the order of the type checks


def plain(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Convert any value from an agent's handler to JSON types.

    Values without a JSON form become text: non-finite numbers (`NaN`, `Infinity`) and foreign objects. Values
    below 50 levels, and cycles, become `…`.
    """
    if type(value) in _SCALARS or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if not isinstance(value, _CONTAINERS):
        return str(value)
    if id(value) in inside or len(inside) >= _MAX_DEPTH:
        return "…"
    inside = (*inside, id(value))
    if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 - takes half the time for most values
        return {str(key): plain(item, inside) for key, item in value.items()}
    return [plain(item, inside) for item in value]


class _Foreign(Exception): ...


class _OnlyBuiltins(pickle.Pickler):
    def reducer_override(self, value: Any) -> NoReturn:
        # Called for everything that is not exactly a text, number, dict, list, tuple, set or None.
        raise _Foreign(type(value))


def builtin_bytes(value: Any) -> bytes | None:
    """Return the value for `pickle.loads`, which creates a deep copy of it.

    None if it contains a type that is not built in, whose own code defines what a copy is, or is nested too
    deeply.
    """
    buffer = io.BytesIO()
    try:
        _OnlyBuiltins(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    except (_Foreign, RecursionError):
        return None
    return buffer.getvalue()


def fast_copy(value: Any) -> Any:
    """Deep copy a value of built-in types quickly; otherwise copy like `copied`, sharing foreign objects."""
    data = builtin_bytes(value)
    return copied(value) if data is None else pickle.loads(data)


class BuiltinState(dict[str, Any]):
    """A state of built-in types. Its deep copies are read from bytes, ten times faster than usual.

    Suites with hundreds of scenarios start each conversation with the same state of several megabytes.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(pickle.loads(data))
        self._data = data

    def __deepcopy__(self, memo: object) -> dict[str, Any]:
        copy: dict[str, Any] = pickle.loads(self._data)
        return copy

    def __reduce__(self) -> tuple[type[BuiltinState], tuple[bytes]]:
        return BuiltinState, (self._data,)


_MAX_CANONICAL_DEPTH = 40
CODE = "code "
"""Prefix of the text for a function or an object, which is its name, because its behavior is in a file."""


def canonical(value: Any) -> str:
    """Return a stable text for a value. Functions and unknown objects appear by name, never by address."""
    return _text(value, 0)


def _text(value: Any, depth: int) -> str:
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return repr(value.value if isinstance(value, Enum) else value)
    if depth > _MAX_CANONICAL_DEPTH:  # it may contain itself
        return "…"
    if isinstance(value, list | tuple):
        return f"[{','.join([_text(each, depth + 1) for each in value])}]"
    if isinstance(value, Mapping):
        items = sorted((_text(key, 0), _text(each, depth + 1)) for key, each in value.items())
        return f"{{{','.join([f'{key}:{text}' for key, text in items])}}}"
    if isinstance(value, Set):
        return f"{{{','.join(sorted(_text(each, 0) for each in value))}}}"
    if isinstance(value, Enum):
        return repr(value.value)
    if isinstance(value, PurePath):
        return repr(value.as_posix())
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    name = f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"
    if isinstance(value, BaseModel):
        return f"{name}{_text(dict(value), depth + 1)}"
    if is_dataclass(value) and not isinstance(value, type):
        contents = {field.name: getattr(value, field.name) for field in fields(value)}
        return f"{name}{_text(contents, depth + 1)}"
    return f"{CODE}{name}"


def named_texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a JSON value, after the key of the object that it is in."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_texts(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from named_texts(item, name)


def leaves(value: Any, path: str | None = None) -> Iterator[tuple[str, Any]]:
    """Yield path and value of everything in a JSON value that is neither an object nor a list."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path or ''}[{index}]")
    elif path is not None:
        yield path, value


def with_integers(value: Any) -> Any:
    """Return JSON in which whole numbers are integers: 2.0 becomes 2, wherever a float is exact."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _MAX_EXACT_FLOAT:
        return int(value)
    if isinstance(value, Mapping):
        return {key: with_integers(item) for key, item in value.items()}
    return [with_integers(item) for item in value] if isinstance(value, list) else value
