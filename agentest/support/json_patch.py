"""JSON Patch (RFC 6902): changes of a JSON value, written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any


class BadPatch(ValueError):
    """A patch that is none, or that does not fit the value."""


def patched(value: Any, patch: Any) -> Any:
    """The value after all operations of a patch; the value itself stays as it is. Raises BadPatch."""
    if not isinstance(patch, list):
        raise BadPatch("a patch is a list of operations")
    value = deepcopy(value)
    for operation in patch:
        if not isinstance(operation, Mapping):
            raise BadPatch("an operation of a patch is an object")
        value = _applied(value, operation)
    return value


def _applied(value: Any, operation: Mapping[str, Any]) -> Any:
    path = _path(operation, "path")
    match operation.get("op"):
        case "add":
            return _added(value, path, _value(operation))
        case "remove":
            return _removed(value, path)
        case "replace":
            return _added(_removed(value, path), path, _value(operation))
        case "move":
            source = _path(operation, "from")
            moved = _found(value, source)
            return _added(_removed(value, source), path, moved)
        case "copy":
            return _added(value, path, deepcopy(_found(value, _path(operation, "from"))))
        case "test":
            if _found(value, path) != _value(operation):
                raise BadPatch(f"the value at {operation['path']!r} is another one")
            return value
    raise BadPatch(f"{operation.get('op')!r} is no operation of a patch")


def _path(operation: Mapping[str, Any], key: str) -> list[str]:
    """The steps of a JSON pointer."""
    pointer = operation.get(key)
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise BadPatch(f"`{key}` is {pointer!r:.100}, and must be a text that begins with a slash")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _value(operation: Mapping[str, Any]) -> Any:
    if "value" not in operation:
        raise BadPatch(f"{operation.get('op')!r} needs a `value`")
    return deepcopy(operation["value"])


def _found(value: Any, path: list[str]) -> Any:
    for step in path:
        if isinstance(value, list):
            value = value[_index(step, len(value) - 1)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise BadPatch(f"there is nothing at {step!r}")
    return value


def _index(step: str, highest: int) -> int:
    if not step.isascii() or not step.isdigit() or int(step) > highest:
        raise BadPatch(f"{step!r} is no position in the list")
    return int(step)


def _added(value: Any, path: list[str], new: Any) -> Any:
    if not path:
        return new
    parent, last = _found(value, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(last, len(parent)), new)
    elif isinstance(parent, dict):
        parent[last] = new
    else:
        raise BadPatch(f"nothing can be put at {last!r}")
    return value


def _removed(value: Any, path: list[str]) -> Any:
    if not path:
        return None
    _found(value, path)
    parent = _found(value, path[:-1])
    del parent[_index(path[-1], len(parent) - 1) if isinstance(parent, list) else path[-1]]
    return value
