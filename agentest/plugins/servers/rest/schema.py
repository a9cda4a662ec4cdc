"""The schemas of a document: the types of values, and the validation of requests and responses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache, cached_property, partial
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.exceptions import best_match
from jsonschema.validators import create

from agentest.plugins.servers.rest.document import Document, Node
from agentest.support.errors import ConfigError
from agentest.support.json_text import json_text
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout, has_match
from agentest.support.text import shortened

_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_FILE = "file"  # a type of Swagger 2.0
_TYPE_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    dict: "object",
}
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
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

    @cached_property
    def types(self) -> frozenset[str]:
        """Return the possible types of a value; empty for any type."""
        return frozenset(kind for form in self._forms for kind in _types(form.value))

    @cached_property
    def items(self) -> Schema | None:
        """Return the schema of a list's items, if it has one."""
        return self._first("items")

    def property(self, name: str) -> Schema | None:
        """Return the schema of a property, if it has one."""
        return self._first("properties", name)

    def _first(self, *keys: str) -> Schema | None:
        nodes = (self._document.child(form, *keys) for form in self._forms)
        return next((Schema(self._document, node) for node in nodes if node), None)

    @cached_property
    def properties(self) -> tuple[str, ...]:
        """Return the names of the properties."""
        nodes = (self._document.child(form, "properties") for form in self._forms)
        return tuple(dict.fromkeys(name for node in nodes for name, _ in self._document.children(node)))

    @cached_property
    def _forms(self) -> list[Node]:
        """The schema and all its alternatives: each reference, and what it leads to."""
        forms: dict[int, Node] = {}
        waiting = [self._node]
        while waiting:
            node = waiting.pop(0)
            target = self._document.follow(node)
            if isinstance(target.value, Mapping) and id(node.value) not in forms:
                forms |= {id(node.value): node, id(target.value): target}
                for word in _ALTERNATIVES:
                    waiting += self._document.items(self._document.child(target, word))
        return list(forms.values())

    def problems(self, value: Any, *where: str | int, answered: bool = False) -> list[SchemaViolation]:
        """Return the first violations of a value.

        In a response (`answered`), `writeOnly` properties may be missing; in a request, `readOnly` ones.
        """
        kind = _validator_class("writeOnly" if answered else "readOnly")
        validator = self._document.validator(self._node, partial(kind, format_checker=_FORMATS))
        try:
            return [
                SchemaViolation(at=(*where, *error.absolute_path), text=_worded(error))
                for each in islice(validator.iter_errors(value), _SHOWN_PROBLEMS)
                if (error := best_match([each]))
            ]
        except RecursionError:
            return [SchemaViolation(at=where, text="is nested too deeply")]
        except PatternTimeout as error:
            return [SchemaViolation(at=where, text=f"cannot be compared with a pattern: {error}")]


def _types(schema: Mapping[str, Any]) -> Iterator[str]:
    if schema.get("nullable") is True:
        yield "null"
    types = schema.get("type", [])
    yield from (
        "string" if each == _FILE else each for each in ([types] if isinstance(types, str) else types)
    )
    if not types:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        yield from (_TYPE_NAMES.get(type(value), "array") for value in values)
        yield from ["object"] * ("properties" in schema)


def _worded(error: Any) -> str:
    value, expected = shortened(json_text(error.instance), 60), error.validator_value
    match error.validator:
        case "type":
            kinds = " or ".join(sorted(_types(error.schema), key="null".__eq__))  # null last
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
def _validator_class(not_needed: str) -> Any:
    """Return the class of validators for schemas of all versions of OpenAPI.

    Args:
        not_needed: `readOnly` or `writeOnly`, for properties that may be missing.
    """
    checks: dict[str, _Check] = {
        **_CHECKS,
        **_bounds("minimum", "exclusiveMinimum"),
        **_bounds("maximum", "exclusiveMaximum"),
        "anyOf": partial(_alternatives, "anyOf"),
        "oneOf": partial(_alternatives, "oneOf"),
        "items": _items,
        "pattern": _pattern,
        "required": partial(_required, not_needed),
    }
    types = Draft202012Validator.TYPE_CHECKER.redefine(_FILE, lambda _, value: isinstance(value, str))
    make: Any = create  # without a meta-schema, `$id` is no base of references
    return make(
        {}, {word: partial(_unless_null, check) for word, check in checks.items()}, type_checker=types
    )


_Check = Callable[[Any, Any, Any, Any], Iterable[Any]]  # validator, value of the keyword, value, schema
_CHECKS: Mapping[str, _Check] = Draft202012Validator.VALIDATORS


def _unless_null(check: _Check, validator: Any, expected: Any, value: Any, schema: Any) -> Iterator[Any]:
    if value is not None or schema.get("nullable") is not True:
        yield from check(validator, expected, value, schema) or ()


def _bounds(bound: str, exclusive: str) -> dict[str, _Check]:
    """Return checks of a bound, which `exclusiveMinimum: true` makes exclusive."""

    def check(validator: Any, limit: Any, value: Any, schema: Any) -> Iterable[Any]:
        return _CHECKS[exclusive if schema.get(exclusive) is True else bound](validator, limit, value, schema)

    def check_exclusive(validator: Any, limit: Any, value: Any, schema: Any) -> Iterable[Any]:
        return () if isinstance(limit, bool) else _CHECKS[exclusive](validator, limit, value, schema)

    return {bound: check, exclusive: check_exclusive}


def _alternatives(word: str, validator: Any, forms: Any, value: Any, schema: Any) -> Iterable[Any]:
    """Check the form that the discriminator's property names, or else each form."""
    rule = schema.get("discriminator")
    key = str(rule.get("propertyName")) if isinstance(rule, Mapping) else ""
    name = value.get(key) if key and isinstance(value, Mapping) else None
    if isinstance(name, str):
        refs = {str(form["$ref"]): form for form in forms if isinstance(form, Mapping) and "$ref" in form}
        ends = {ref.rpartition("/")[2]: form for ref, form in refs.items()}
        given = rule.get("mapping")
        mapping = given if isinstance(given, Mapping) else {}
        target = str(mapping.get(name, name))
        chosen = ends.get(target) or (refs.get(target) if name in mapping else None)
        if chosen is not None:
            return validator.descend(value, chosen)  # type: ignore[no-any-return]
        if name not in mapping and len(refs) == len(forms):
            known = list(mapping or ends)
            return [ValidationError("", path=[key], validator="enum", validator_value=known, instance=name)]
    return _CHECKS[word](validator, forms, value, schema)


def _items(validator: Any, expected: Any, value: Any, schema: Any) -> Iterable[Any]:
    # A list has a schema for each place, as in the drafts before 2020-12.
    return _CHECKS["prefixItems" if isinstance(expected, list) else "items"](
        validator, expected, value, schema
    )


def _pattern(_: Any, expected: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if not isinstance(value, str) or len(value) > _MATCHED_CHARS:
        return
    literal = re.fullmatch(r"/(\^.*|.*\$)/([dgimsuvy]*)", expected, re.S)  # of JavaScript, with its flags
    try:
        compiled = (
            re.compile(literal[1], re.I if "i" in literal[2] else 0) if literal else re.compile(expected)
        )
    except (re.error, RecursionError, OverflowError):
        return  # a pattern in JavaScript's syntax cannot be checked
    if not has_match(compiled, value):
        yield ValidationError(f"{value!r} does not match {expected!r}")


def _required(not_needed: str, _: Any, names: Any, value: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(value, Mapping) and isinstance(names, list):
        known = schema.get("properties", {})
        marked = {
            name for name, each in known.items() if isinstance(each, Mapping) and each.get(not_needed) is True
        }
        missing = [name for name in names if name not in value and name not in marked]
        if missing:
            yield ValidationError(f"lacks {', '.join(f'`{name}`' for name in missing)}")


def _is_time(value: Any) -> bool:
    if isinstance(value, str):
        datetime.fromisoformat(value)
        return "T" in value.upper()
    return True


_FORMATS = FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
_FORMATS.checkers = {**_FORMATS.checkers, "date-time": (_is_time, ValueError)}


def check_schema(document: Document, node: Node, visited: set[int]) -> None:
    """Raise ConfigError if a schema, or one that it refers to, is invalid. `visited` has the checked ones."""
    waiting = [node]
    while waiting:
        each = document.follow(waiting.pop())
        if id(each.value) in visited or isinstance(each.value, bool):
            continue
        if not isinstance(each.value, dict):
            raise each.error(f"expected a schema, found {type(each.value).__name__}")
        _check_words(each)
        document.has_patterns = document.has_patterns or "pattern" in each.value
        for key in _BY_NAME:
            if isinstance(each.value.get(key), Mapping) and isinstance(each.value[key].get("$ref"), str):
                # One reference stands for all properties, which JSON Schema does not have. Those that
                # replace it are relative, because agents may read the document from our server.
                named = document.children(document.child(each, key))
                each.value[key] = {name: {"$ref": child.uri.removeprefix(each.file)} for name, child in named}
        waiting += _inside(document, each)
        visited.add(id(each.value))


def _check_words(node: Node) -> None:
    def error(key: str, problem: str) -> ConfigError:
        return Node(node.file, (*node.at, key), None).error(problem)

    value = node.value
    types = value.get("type", [])
    for kind in types if isinstance(types, list) else [types]:
        if kind not in (*_TYPES, _FILE):
            raise error("type", f"there is no type {kind!r}; expected one of {', '.join(_TYPES)}")
    # `required: true` and `exclusiveMinimum: true` are words of older drafts.
    for key, expected in (("required", (list, bool)), ("enum", (list,)), ("properties", (dict,))):
        if key in value and not isinstance(value[key], expected):
            kind = "a list" if list in expected else "keys and values"
            raise error(key, f"expected {kind}, found {type(value[key]).__name__}")
    for key in value:
        is_number = isinstance(value[key], int | float)
        is_flag = isinstance(value[key], bool) and not key.startswith("exclusive")
        if _NUMBER.fullmatch(key) and (is_flag or not is_number):
            raise error(key, f"expected a number, found {value[key]!r}")
    if "$dynamicRef" in value:
        raise error("$dynamicRef", "is not supported; write `$ref` with a path: #/components/schemas/Order")
    if not isinstance(value.get("pattern", ""), str):
        raise error("pattern", "expected a text")


_NUMBER = re.compile(r"exclusive(Min|Max)imum|minimum|maximum|multipleOf|(min|max)(Length|Items|Properties)")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ONE = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def _inside(document: Document, node: Node) -> Iterator[Node]:
    for key in _BY_NAME:
        for _, each in document.children(document.child(node, key)):
            yield each
    for key in (*_LISTS, *_ONE):
        child = document.child(node, key)
        if child and key in _LISTS and (key not in _ONE or isinstance(child.value, list)):
            yield from document.items(child)
        elif child:
            yield child
