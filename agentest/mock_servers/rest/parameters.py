"""The values of parameters: texts of a URL, as the JSON values that their schemas say they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentest.mock_servers.rest.operations import Parameter
from agentest.mock_servers.rest.schema import Schema

MISSING: Any = object()
_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_BETWEEN = {
    "form": ",",
    "simple": ",",
    "spaceDelimited": " ",
    "pipeDelimited": "|",
    "label": ",",
    "matrix": ",",
}
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}

Pairs = Sequence[tuple[str, str]]
"""Names and values of a query, a form or cookies, in their order."""


def value_of(parameter: Parameter, pairs: Pairs) -> Any:
    """The value of a parameter, or MISSING. Raises ValueError where its form cannot be read.

    Args:
        pairs: those of the parameter's place; of a path and of headers, one for each name.
    """
    schema, name = parameter.schema, parameter.name
    if parameter.style == "deepObject":
        return deep(name, schema, pairs)
    if _is_spread(parameter):
        return _spread(schema, pairs)
    texts = [value for key, value in pairs if key == name]
    if not texts:
        return MISSING
    if parameter.is_json:
        return json.loads(_only(texts))
    if parameter.explode and parameter.style == "form" and _is(schema, "array"):
        return _typed_all(texts, schema)
    text = _bare(parameter, _only(texts))
    if _is(schema, "array"):
        between = text.split(_separator(parameter)) if text else []
        return _typed_all([_after_name(parameter, each) for each in between], schema)
    if _is(schema, "object"):
        return _object(parameter, text)
    return typed(text, schema)


def names_of_query(parameter: Parameter) -> tuple[str, ...]:
    """The names by which a parameter stands in a query; that of a deep object is the beginning of them."""
    return parameter.schema.properties if _is_spread(parameter) else (parameter.name,)


def _is_spread(parameter: Parameter) -> bool:
    """Whether it is an object whose properties are parameters of their own."""
    told = parameter.explode and parameter.style == "form" and not parameter.is_json
    return told and _is(parameter.schema, "object")


def typed(text: str, schema: Schema | None) -> Any:
    """A text as the value that its schema says it is; the text itself where it can be none."""
    types = schema.types if schema else frozenset()
    if not types or "string" in types:
        return text
    if types & {"integer", "number"} and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        return _number(text)
    if "boolean" in types and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if "null" in types and text in ("", "null"):
        return None
    return text


def typed_field(texts: Sequence[str], schema: Schema | None) -> Any:
    """A field of a form as the value that its schema says it is."""
    if schema and _is(schema, "array"):
        return _typed_all(texts, schema)
    if schema and _is(schema, "object"):
        return _as_json(_only(texts))
    return typed(texts[0], schema) if len(texts) == 1 else list(texts)


def _number(text: str) -> Any:
    value = float(text)
    return text if value in (float("inf"), float("-inf")) else value


def _as_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is(schema: Schema, kind: str) -> bool:
    return kind in schema.types and "string" not in schema.types


def _only(texts: Sequence[str]) -> str:
    if len(texts) > 1:
        raise ValueError(f"is given {len(texts)} times, and is no list")
    return texts[0]


def _typed_all(texts: Sequence[str], schema: Schema) -> list[Any]:
    return [typed(text, schema.items) for text in texts]


def _separator(parameter: Parameter) -> str:
    if parameter.explode and parameter.style in ("label", "matrix"):
        return "." if parameter.style == "label" else ";"
    return _BETWEEN[parameter.style]


def _bare(parameter: Parameter, text: str) -> str:
    """The text of a path without what its style puts before it: `.` or `;name=`."""
    if parameter.style == "label":
        return text.removeprefix(".")
    if parameter.style == "matrix":
        bare = text.removeprefix(";")
        return bare if parameter.explode and _is(parameter.schema, "object") else _after_name(parameter, bare)
    return text


def _after_name(parameter: Parameter, text: str) -> str:
    return text.removeprefix(f"{parameter.name}=") if parameter.style == "matrix" else text


def _object(parameter: Parameter, text: str) -> dict[str, Any]:
    parts = text.split(_separator(parameter)) if text else []
    if parameter.explode:
        pairs = [part.partition("=")[::2] for part in parts]
    elif len(parts) % 2:
        raise ValueError(f"has {len(parts)} parts; names and values come in twos")
    else:
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
    return {name: typed(value, parameter.schema.property(name)) for name, value in pairs}


def _spread(schema: Schema, pairs: Pairs) -> Any:
    """The properties that the query has."""
    known = {key: [v for k, v in pairs if k == key] for key in schema.properties}
    made = {key: typed_field(texts, schema.property(key)) for key, texts in known.items() if texts}
    return made or MISSING


def deep(name: str, schema: Schema | None, pairs: Pairs) -> Any:
    """What `name[key]=value`, `name[key][inner]=value` and `name[]=value` say; MISSING: nothing.

    Raises ValueError.
    """
    texts: dict[str, Any] = {}
    for key, value in pairs:
        if key.startswith(f"{name}["):
            _put(texts, re.findall(r"\[([^\[\]]*)\]", key[len(name) :]), value)
    return _typed_deep(texts, schema) if texts else MISSING


def _put(into: dict[str, Any], keys: list[str], value: str) -> None:
    if not keys:
        raise ValueError("has a name with unequal brackets")
    for key in keys[:-1]:
        into = into.setdefault(key, {})
        if not isinstance(into, dict):
            raise ValueError(f"is both a value and an object at [{key}]")
    told = into.setdefault(keys[-1], [])
    if not isinstance(told, list):
        raise ValueError(f"is both a value and an object at [{keys[-1]}]")
    told.append(value)


def _typed_deep(texts: Any, schema: Schema | None) -> Any:
    if isinstance(texts, list):
        return typed_field(texts, schema)
    if schema and _is(schema, "array"):
        return _listed(texts, schema)
    return {key: _typed_deep(value, schema and schema.property(key)) for key, value in texts.items()}


def _listed(texts: Mapping[str, Any], schema: Schema) -> list[Any]:
    """`[]` has all texts of a list, `[0]` and `[1]` one each."""
    if texts.keys() == {""} and isinstance(texts[""], list):
        return _typed_all(texts[""], schema)
    if not all(key.isdecimal() for key in texts):
        raise ValueError(f"is a list, and has names in it: {', '.join(texts)}")
    return [_typed_deep(texts[key], schema.items) for key in sorted(texts, key=int)]
