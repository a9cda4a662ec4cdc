"""JSON Patch (RFC 6902): changes of a JSON value, written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
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


def patched(value: Any, patch: Any, copies: CopyLimit | None = None) -> Any:
    """Apply a patch and return the new value. The original does not change. Raises BadPatch.

    Unchanged parts are shared. `copies` limits copy operations (default: a limit for this patch alone).
    """
    if not isinstance(patch, list):
        raise BadPatch("a patch is a list of operations")
    patching = _Patching(value, copies or CopyLimit())
    try:
        for operation in patch:
            if not isinstance(operation, Mapping):
                raise BadPatch("an operation of a patch is an object")
            patching.apply(operation)
    except RecursionError:
        raise BadPatch("its values are nested too deeply") from None
    return patching.value


class _Patching:
    """A value during a patch. Only containers on the path to a change are copied, each once."""

    def __init__(self, value: Any, copies: CopyLimit) -> None:
        self.value = value
        self._own: dict[int, Any] = {}  # containers that belong to the new value only, by id
        self._copies = copies

    def apply(self, operation: Mapping[str, Any]) -> None:
        path = _path(operation, "path")
        match operation.get("op"):
            case "add":
                self._add(path, _value(operation))
            case "remove":
                self._remove(path)
            case "replace":
                self._remove(path)
                self._add(path, _value(operation))
            case "move":
                source = _path(operation, "from")
                moved = _value_at_path(self.value, source)
                self._remove(source)
                self._add(path, moved)
            case "copy":
                self._add(path, self._copy(_value_at_path(self.value, _path(operation, "from"))))
            case "test":
                if _value_at_path(self.value, path) != _value(operation):
                    raise BadPatch(f"the value at {operation['path']!r} is another one")
            case other:
                raise BadPatch(f"{other!r} is not an operation of a patch")

    def _copy(self, value: Any) -> Any:
        size, inner = 0, [value]
        while inner and size <= self._copies.left:
            part = inner.pop()
            size += _VALUE_OVERHEAD + (len(part) if isinstance(part, str) else 0)
            if isinstance(part, dict | list):
                inner += part.values() if isinstance(part, dict) else part
        self._copies.left -= size
        if self._copies.left < 0:
            raise BadPatch(f"the operations `copy` make more than {MOST_COPIED // 2**20} MB")
        return deepcopy(value)

    def _add(self, path: list[str], new: Any) -> None:
        if not path:
            self.value = new
            return
        parent, last = self._parent(path), path[-1]
        if isinstance(parent, list):
            parent.insert(len(parent) if last == "-" else _index(last, len(parent)), new)
        elif isinstance(parent, dict):
            parent[last] = new
        else:
            raise BadPatch(f"nothing can be put at {last!r}")

    def _remove(self, path: list[str]) -> None:
        if not path:
            self.value = None
            return
        _value_at_path(self.value, path)
        parent = self._parent(path)
        del parent[_index(path[-1], len(parent) - 1) if isinstance(parent, list) else path[-1]]

    def _parent(self, path: list[str]) -> Any:
        _value_at_path(self.value, path[:-1])
        at = self.value = self._owned(self.value)
        for step in path[:-1]:
            key = _index(step, len(at) - 1) if isinstance(at, list) else step
            at[key] = self._owned(at[key])
            at = at[key]
        return at

    def _owned(self, container: Any) -> Any:
        if id(container) in self._own or not isinstance(container, dict | list):
            return container
        mine = copy(container)
        self._own[id(mine)] = mine  # stored so that its id is not reused
        return mine


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
