"""Derive the parameters of a mock from the real tool's declaration, else from its recorded calls."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentest.authoring.recorded_calls import RecordedTool
from agentest.scenarios.python_formatting import literal
from agentest.support.lazy_dataclasses import dataclass

_RESERVED_NAMES = frozenset({"args", "ctx", "__debug__", "RuntimeError", "HttpResponse"})
"""Names that have another meaning in a mock."""
_IN_PYTHON = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list[Any]",
    "object": "dict[str, Any]",
    "null": "None",
}
_BY_KIND: tuple[tuple[type, str], ...] = (
    (bool, "bool"),  # before int, because a bool is an int
    (str, "str"),
    (int, "int"),
    (float, "float"),
    (dict, "dict[str, Any]"),
    (list, "list[Any]"),
)
_MOST_CHOICES = 8
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class MockParameter:
    """One parameter of a mock."""

    name: str
    type: str
    default: str | None = None
    """Default value as Python source; None for a required parameter."""

    @property
    def source(self) -> str:
        return f"{self.name}: {self.type}" + (f" = {self.default}" if self.default is not None else "")


def parameters(tool: RecordedTool) -> tuple[MockParameter, ...] | None:
    """Return the parameters, required ones first; None if the arguments cannot be Python parameters.

    The types accept every recorded call, even if it contradicts the declaration.
    """
    properties = _properties(tool.parameters)
    seen = dict.fromkeys(key for args in tool.arguments for key in args)
    names = [*properties, *(name for name in seen if name not in properties)]
    if not names or not all(map(is_parameter, names)):
        return None
    if len({name.casefold() for name in names}) < len(names):
        return None
    made = [_parameter(name, tool, properties.get(name)) for name in names]
    known = [each for each in made if each]
    if len(known) < len(made):
        return None
    return tuple(sorted(known, key=lambda each: each.default is not None))


def is_parameter(name: str) -> bool:
    """Return True if a mock can have a parameter of this name, and receive it by name."""
    plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return plain and not name.startswith("_") and name not in _RESERVED_NAMES


def _properties(schema: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    properties = (schema or {}).get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(name): each if isinstance(each, Mapping) else {} for name, each in properties.items()}


def _parameter(name: str, tool: RecordedTool, declared: Mapping[str, Any] | None) -> MockParameter | None:
    values = [args[name] for args in tool.arguments if name in args]
    missing = len(values) < len(tool.arguments)
    required = (tool.parameters or {}).get("required") or ()
    if missing and any(value is None for value in values):
        return None  # absent and null would be indistinguishable
    types = _declared_types(declared) if declared is not None else []
    types = _with_recorded_types(types, values) if "Any" not in types else ["Any"]
    if not missing and (declared is None or name in required):
        return MockParameter(name=name, type=_union(types))
    default = _default(declared)
    # If answers depend on arguments, an absent argument must differ from every value.
    if default is not None and not (missing and len(tool.cases) > 1):
        return MockParameter(name=name, type=_union(types), default=default)
    return MockParameter(name=name, type=_union([*types, "None"]), default="None")


def _default(declared: Mapping[str, Any] | None) -> str | None:
    value = (declared or {}).get("default")
    if isinstance(value, str):
        return literal(value)
    return repr(value) if isinstance(value, _PLAIN) else None


def _declared_types(schema: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema allows; Any if the schema is complex."""
    choices: Any = schema.get("enum")
    few = isinstance(choices, list) and 0 < len(choices) <= _MOST_CHOICES
    if few and all(isinstance(each, str) for each in choices):
        return [f"Literal[{', '.join(map(literal, choices))}]"]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            types = [t for each in schema[key] if isinstance(each, Mapping) for t in _declared_types(each)]
            return types or ["Any"]
    declared = schema.get("type")
    names = declared if isinstance(declared, list) else [declared]
    if names == ["array"]:
        items = schema.get("items")
        return [f"list[{_union(_declared_types(items) if isinstance(items, Mapping) else ['Any'])}]"]
    return [_IN_PYTHON.get(name, "Any") if isinstance(name, str) else "Any" for name in names]


def _with_recorded_types(types: list[str], values: Iterable[Any]) -> list[str]:
    """Add the types of recorded values that the given types do not cover."""
    known = list(types)
    for value in values:
        if not any(_accepts(each, value) for each in known):
            known.append(_type_of(value))
    return [name for name in known if not (name == "int" and "float" in known)]


def _accepts(name: str, value: Any) -> bool:
    if name.startswith("Literal["):
        return isinstance(value, str) and literal(value) in name
    recorded_type = _type_of(value)
    if name.startswith("list["):
        return recorded_type == "list[Any]" and (
            name == recorded_type or all(_accepts(name[5:-1], each) for each in value)
        )
    return name == recorded_type or (name == "float" and recorded_type == "int")


def _type_of(value: Any) -> str:
    if value is None:
        return "None"
    return next(name for kind, name in _BY_KIND if isinstance(value, kind))


def _union(types: Iterable[str]) -> str:
    unique = list(dict.fromkeys(types))
    if "Any" in unique or not unique:
        return "Any"
    return " | ".join(sorted(unique, key=lambda name: name == "None"))


def names_used(known: Iterable[MockParameter]) -> Iterator[str]:
    """Yield the names from `typing` that the parameters' types need."""
    for each in known:
        for name in ("Any", "Literal"):
            if name in each.type:
                yield name
