"""The schemas of a document: the types of values, and the validation of requests and responses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache, cached_property
from itertools import islice
from typing import Any

from agentest.plugins.servers.rest.document import Document, Node
from agentest.support.errors import ConfigError
from agentest.support.json_text import json_text
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout, has_match
from agentest.support.text import shortened

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_TYPE_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 30
_SHOWN_PROBLEMS = 5
_MATCHED_CHARS = 10_000  # a `pattern` is not matched against longer texts, because that takes too long


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaViolation:
    """A violation in a request or a response."""

    at: tuple[str | int, ...]
    """Its location: `query`, `path`, `header`, `cookie` or `body`, followed by names and indices."""
    text: str

    def __str__(self) -> str:
        where, *rest = self.at
        name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest).lstrip(".")
        return f"{where} `{name}`: {self.text}" if name else f"{where}: {self.text}"


class Schema:
    """A schema at a location in the document."""

    def __init__(self, document: Document, node: Node) -> None:
        self._document = document
        self._node = node
        self._validators: dict[str, Any] = {}

    @cached_property
    def types(self) -> frozenset[str]:
        """Return the possible types of a value; empty for any type."""
        return frozenset(self._types(self._node, 0))

    @cached_property
    def items(self) -> Schema | None:
        """Return the schema of a list's items, if it has one."""
        return self._first("items")

    def property(self, name: str) -> Schema | None:
        """Return the schema of a property, if it has one."""
        return self._first("properties", name)

    def _first(self, *keys: str) -> Schema | None:
        return next((Schema(self._document, node) for node in self._found(self._node, *keys)), None)

    @cached_property
    def properties(self) -> tuple[str, ...]:
        """Return the names of the properties."""
        nodes = self._found(self._node, "properties")
        return tuple(dict.fromkeys(name for node in nodes for name, _ in self._document.children(node)))

    def problems(self, value: Any, *where: str | int, answered: bool = False) -> list[SchemaViolation]:
        """Return the first violations of a value.

        In a response (`answered`), `writeOnly` properties may be missing; in a request, `readOnly` ones.
        """
        not_needed = "writeOnly" if answered else "readOnly"
        if not_needed not in self._validators:
            kind, formats = _validator_class(not_needed)
            made = self._document.validator(self._node, kind=kind, format_checker=formats)
            self._validators[not_needed] = made
        validator = self._validators[not_needed]
        try:
            return [
                SchemaViolation(at=(*where, *error.absolute_path), text=_worded(error))
                for error in map(_closest_error, islice(validator.iter_errors(value), _SHOWN_PROBLEMS))
            ]
        except RecursionError:
            return [SchemaViolation(at=where, text="is nested too deeply")]
        except PatternTimeout as error:
            return [SchemaViolation(at=where, text=f"cannot be compared with a pattern: {error}")]

    def _types(self, node: Node, depth: int) -> Iterator[str]:
        node = self._document.follow(node)
        if depth > _MAX_DEPTH or not isinstance(node.value, Mapping):
            return
        types = node.value.get("type")
        if types is not None:
            yield from [types] if isinstance(types, str) else types
            return
        for value in node.value.get("enum", [node.value["const"]] if "const" in node.value else []):
            yield _TYPE_NAMES.get(type(value), "array")
        if "properties" in node.value:
            yield "object"
        for each in self._alternatives(node):
            yield from self._types(each, depth + 1)

    def _found(self, node: Node, *keys: str, depth: int = 0) -> Iterator[Node]:
        node = self._document.follow(node)
        if depth > _MAX_DEPTH or not isinstance(node.value, Mapping):
            return
        child = self._document.child(node, *keys)
        if child:
            yield child
        for each in self._alternatives(node):
            yield from self._found(each, *keys, depth=depth + 1)

    def _alternatives(self, node: Node) -> Iterator[Node]:
        for word in _ALTERNATIVES:
            yield from self._document.items(self._document.child(node, word))


def _closest_error(error: Any) -> Any:
    while error.context:
        deepest = max(
            error.context, key=lambda each: (len(each.path), each.validator not in ("type", "enum"))
        )
        others = [each for each in error.context if each.validator != "type" or each.path]
        if not others:
            return error
        error = deepest if deepest in others else others[0]
    return error


def _worded(error: Any) -> str:
    value, expected = shortened(json_text(error.instance), 60), error.validator_value
    match error.validator:
        case "type":
            kinds = expected if isinstance(expected, str) else " or ".join(expected)
            return f"is {value}, expected {kinds}"
        case "enum":
            return f"is {value}, expected one of {shortened(json_text(expected), 200)}"
        case "format":
            return f"is {value}, which is not a {expected}"
        case "pattern":
            return f"is {value}, which does not match {shortened(str(expected), 100)}"
        case "anyOf" | "oneOf":
            return f"is {value}, which fits none of the {len(expected)} forms, or more than one"
    return shortened(error.message, 200)


@cache
def _validator_class(not_needed: str) -> tuple[Any, Any]:
    from jsonschema import Draft202012Validator, FormatChecker, ValidationError
    from jsonschema.validators import extend

    def pattern(_: Any, expected: str, value: Any, __: Any) -> Iterator[ValidationError]:
        if not isinstance(value, str) or len(value) > _MATCHED_CHARS:
            return
        try:
            compiled = re.compile(expected)
        except (re.error, RecursionError, OverflowError):
            return  # a pattern in JavaScript's syntax cannot be checked
        if not has_match(compiled, value):
            yield ValidationError(f"{value!r} does not match {expected!r}")

    def required(_: Any, names: list[str], value: Any, schema: Any) -> Iterator[ValidationError]:
        known = schema.get("properties", {})
        if isinstance(value, Mapping):
            missing = [name for name in names if name not in value and not marked(known.get(name))]
            if missing:
                yield ValidationError(f"lacks {', '.join(f'`{name}`' for name in missing)}")

    def marked(schema: Any) -> bool:
        return isinstance(schema, Mapping) and schema.get(not_needed) is True

    def is_time(value: Any) -> bool:
        if isinstance(value, str):
            datetime.fromisoformat(value)
            return "T" in value.upper()
        return True

    formats = FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
    formats.checkers = {**formats.checkers, "date-time": (is_time, ValueError)}
    make: Any = extend
    return make(Draft202012Validator, {"pattern": pattern, "required": required}), formats


def check_schema(document: Document, node: Node, visited: set[int]) -> None:
    """Raise ConfigError if a schema, or one that it refers to, is invalid. `visited` has the checked ones."""
    waiting = [node]
    while waiting:
        each = document.follow(waiting.pop())
        if id(each.value) in visited or isinstance(each.value, bool):
            continue
        visited.add(id(each.value))
        if not isinstance(each.value, Mapping):
            raise each.error(f"expected a schema, found {type(each.value).__name__}")
        _check_words(each)
        waiting += _inside(document, each)


def _check_words(node: Node) -> None:
    def error(key: str, problem: str) -> ConfigError:
        return Node(node.file, (*node.at, key), None).error(problem)

    value = node.value
    types = value.get("type", [])
    for kind in types if isinstance(types, list) else [types]:
        if kind not in _TYPES:
            raise error("type", f"there is no type {kind!r}; expected one of {', '.join(_TYPES)}")
    for key, expected in (("required", list), ("enum", list), ("properties", dict)):
        if not isinstance(value.get(key, expected()), expected):
            kind = "a list" if expected is list else "keys and values"
            raise error(key, f"expected {kind}, found {type(value[key]).__name__}")
    for key in value:
        is_number = isinstance(value[key], int | float) and not isinstance(value[key], bool)
        if _NUMBER.fullmatch(key) and not is_number:
            raise error(key, f"expected a number, found {value[key]!r}")
    if not isinstance(value.get("pattern", ""), str):
        raise error("pattern", "expected a text")


_NUMBER = re.compile(r"exclusive(Min|Max)imum|minimum|maximum|multipleOf|(min|max)(Length|Items|Properties)")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def _inside(document: Document, node: Node) -> Iterator[Node]:
    for key in _BY_NAME:
        for _, each in document.children(document.child(node, key)):
            yield each
    for key in _LISTS:
        yield from document.items(document.child(node, key))
    for key in _ONE:
        child = document.child(node, key)
        if child:
            yield child
