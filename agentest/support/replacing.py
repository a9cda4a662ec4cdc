"""A faster `dataclasses.replace`, for values that are replaced many times in each conversation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from types import MemberDescriptorType
from typing import Any, TypeVar

_T = TypeVar("_T")
_Set = Callable[[Any, Any], None]
_Copier = tuple[Callable[[Any], Any], dict[str, _Set]]


def replace(value: _T, /, **changes: Any) -> _T:
    """Copy a dataclass instance with these fields changed, three times as fast as `dataclasses.replace`.

    For classes with slots only, `__init__` is not called, which takes most of the time. Raises TypeError for
    an unknown field.
    """
    kind: type = type(value)
    copier = _copier(kind)
    if copier is None:
        new: _T = dataclasses.replace(value, **changes)  # type: ignore[type-var]
        return new
    copy, setters = copier
    new = copy(value)
    for name, changed in changes.items():
        try:
            setters[name](new, changed)
        except KeyError:
            raise TypeError(f"{kind.__name__} has no field {name!r}") from None
    return new


@cache
def _copier(cls: type) -> _Copier | None:
    """Return functions that copy an instance and set its fields, even if it is frozen.

    None if the class's `__init__` may do more than set fields.
    """
    if not dataclasses.is_dataclass(cls) or hasattr(cls, "__post_init__"):
        return None
    fields = dataclasses.fields(cls)
    slots = {field.name: getattr(cls, field.name, None) for field in fields}
    setters: dict[str, _Set] = {
        name: slot.__set__ for name, slot in slots.items() if isinstance(slot, MemberDescriptorType)
    }
    if len(setters) < len(fields) or not all(field.init for field in fields):
        return None
    known: dict[str, Any] = {"new": object.__new__, "of": cls}
    known |= {f"set_{name}": each for name, each in setters.items()}
    lines = "".join(f"    set_{name}(copy, value.{name})\n" for name in setters)
    exec(f"def copied(value):\n    copy = new(of)\n{lines}    return copy\n", known)
    return known["copied"], setters
