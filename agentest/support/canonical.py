"""One text for a value, the same in every process: for comparing what two runs were made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel

_MOST_DEEP = 40
CODE = "code "
"""Begins what stands for a function or an object: its name, as what it does is in a file."""


def canonical(value: Any) -> str:
    """The text of a value. Functions and unknown objects are their names, never their addresses."""
    return "".join(_texts(value, 0))


def _texts(value: Any, depth: int) -> Iterator[str]:
    if depth > _MOST_DEEP:  # it may hold itself
        yield "…"
    elif isinstance(value, Enum):
        yield repr(value.value)
    elif value is None or isinstance(value, str | int | float | bool | bytes):
        yield repr(value)
    elif isinstance(value, PurePath):
        yield repr(value.as_posix())
    elif isinstance(value, Mapping):
        items = sorted((canonical(key), "".join(_texts(each, depth + 1))) for key, each in value.items())
        yield "{" + ",".join(f"{key}:{text}" for key, text in items) + "}"
    elif isinstance(value, Set):
        yield "{" + ",".join(sorted(map(canonical, value))) + "}"
    elif isinstance(value, list | tuple):
        yield "[" + ",".join("".join(_texts(each, depth + 1)) for each in value) + "]"
    else:
        yield from _of_object(value, depth)


def _of_object(value: Any, depth: int) -> Iterator[str]:
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    name = f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"
    held: dict[str, Any] | None = None
    if isinstance(value, BaseModel):
        held = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
    if held is None:
        yield f"{CODE}{name}"
    else:
        yield name
        yield from _texts(held, depth + 1)
