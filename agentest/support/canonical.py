"""One text for a value, the same in every process: for comparing what two runs were made of."""

from __future__ import annotations

from collections.abc import Mapping, Set
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
    return _text(value, 0)


def _text(value: Any, depth: int) -> str:
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return repr(value.value if isinstance(value, Enum) else value)
    if depth > _MOST_DEEP:  # it may hold itself
        return "…"
    if isinstance(value, list | tuple):
        return f"[{','.join([_text(each, depth + 1) for each in value])}]"
    if isinstance(value, Mapping):
        items = sorted((_text(key, 0), _text(each, depth + 1)) for key, each in value.items())
        return f"{{{','.join([f'{key}:{text}' for key, text in items])}}}"
    if isinstance(value, Set):
        return f"{{{','.join(sorted(_text(each, 0) for each in value))}}}"
    return _other(value, depth)


def _other(value: Any, depth: int) -> str:
    if isinstance(value, Enum):
        return repr(value.value)
    return repr(value.as_posix()) if isinstance(value, PurePath) else _of_object(value, depth)


def _of_object(value: Any, depth: int) -> str:
    kind = value if isinstance(value, type) or hasattr(value, "__qualname__") else type(value)
    name = f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"
    if isinstance(value, BaseModel):
        return f"{name}{_text(dict(value), depth + 1)}"
    if is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        return f"{name}{_text(held, depth + 1)}"
    return f"{CODE}{name}"
