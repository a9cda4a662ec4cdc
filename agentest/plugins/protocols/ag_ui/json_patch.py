"""JSON Patch (RFC 6902): changes of a JSON value, written as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

from agentest.support.lazy_dataclasses import dataclass

MOST_COPIED = 10 * 1024 * 1024
_VALUE_OVERHEAD = 20  # size of a value in addition to its characters


class BadPatch(ValueError):
    """A patch is malformed or does not fit the value."""


@dataclass(slots=True)
class CopyLimit:
    """Remaining characters for `copy` operations, because repeated copies could exhaust memory."""

    left: int = MOST_COPIED

    def take(self, value: Any) -> Any:
        """Return a value that is copied. Raises BadPatch if it exceeds the limit."""
        self.left -= _size(value)
        if self.left < 0:
            raise BadPatch(f"the operations `copy` make more than {MOST_COPIED // 2**20} MB")
        return value


def patched(value: Any, patch: Any, copies: CopyLimit | None = None) -> Any:
    """Apply a patch and return the new value. The original does not change. Raises BadPatch.

    Containers on the path to a change are copied; all other parts are shared, also by copied values.
    `copies` limits copy operations (default: a limit for this patch alone).
    """
    if not isinstance(patch, list):
        raise BadPatch("a patch is a list of operations")
    copies = copies or CopyLimit()
    try:
        for operation in patch:
            if not isinstance(operation, Mapping):
                raise BadPatch("an operation of a patch is an object")
            value = _applied(value, operation, copies)
    except RecursionError:
        raise BadPatch("its values are nested too deeply") from None
    return value


def _applied(value: Any, operation: Mapping[str, Any], copies: CopyLimit) -> Any:
    path = _path(operation, "path")
    match operation.get("op"):
        case "add":
            return _with(value, path, _value(operation))
        case "remove":
            return _without(value, path)
        case "replace":
            return _with(_without(value, path), path, _value(operation))
        case "move":
            source = _path(operation, "from")
            return _with(_without(value, source), path, _value_at_path(value, source))
        case "copy":
            source = _path(operation, "from")
            return _with(value, path, copies.take(_value_at_path(value, source)))
        case "test":
            if _value_at_path(value, path) != _value(operation):
                raise BadPatch(f"the value at {operation['path']!r} is another one")
            return value
        case other:
            raise BadPatch(f"{other!r} is not an operation of a patch")


def _size(value: Any) -> int:
    if isinstance(value, dict | list):
        return _VALUE_OVERHEAD + sum(map(_size, value.values() if isinstance(value, dict) else value))
    return _VALUE_OVERHEAD + (len(value) if isinstance(value, str) else 0)


def _with(value: Any, path: list[str], new: Any) -> Any:
    def add(parent: Any, last: str) -> None:
        if isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else _index(last, len(parent)), new)
        elif isinstance(parent, dict):
            parent[last] = new
        else:
            raise BadPatch(f"nothing can be put at {last!r}")

    return _changed(value, path, add) if path else new


def _without(value: Any, path: list[str]) -> Any:
    def remove(parent: Any, last: str) -> None:
        _value_at_path(parent, [last])
        del parent[_index(last, len(parent) - 1) if isinstance(parent, list) else last]

    return _changed(value, path, remove) if path else None


def _changed(value: Any, path: list[str], change: Callable[[Any, str], None]) -> Any:
    """Return a copy of a container, whose inner container at the end of the path is changed."""
    changed, step = copy(value), path[0]
    if len(path) == 1:
        change(changed, step)
        return changed
    inner = _changed(_value_at_path(value, [step]), path[1:], change)
    changed[int(step) if isinstance(changed, list) else step] = inner
    return changed


def _path(operation: Mapping[str, Any], key: str) -> list[str]:
    pointer = operation.get(key)
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise BadPatch(f"`{key}` is {pointer!r:.100}, and must be a text that begins with a slash")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _value(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise BadPatch(f"{operation.get('op')!r} needs a `value`")
    return operation["value"]


def _value_at_path(value: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(value, list):
            value = value[_index(step, len(value) - 1)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise BadPatch(f"there is nothing at {step!r}")
    return value


def _index(step: str, highest: int) -> int:
    if not step.isascii() or not step.isdigit() or len(step) > 9 or int(step) > highest:
        raise BadPatch(f"{step!r} is not a position in the list")
    return int(step)
