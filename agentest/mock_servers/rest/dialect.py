"""Schemas of OpenAPI 3.0 and Swagger 2.0 in the words of JSON Schema 2020-12, which 3.1 has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMED = frozenset(
    [
        "properties",
        "patternProperties",
        "definitions",
        "$defs",
        "dependentSchemas",
        "schemas",
        "parameters",
        "responses",
        "requestBodies",
        "headers",
        "paths",
        "pathItems",
        "callbacks",
        "content",
        "securitySchemes",
    ]
)
"""Keys whose values are mappings from names of the user's."""
NO_SCHEMAS = frozenset({"example", "examples", "default", "enum", "const"})
"""Keys whose values are data, in which nothing is to be read."""
_BOUNDS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}


def as_json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of any of the dialects; whatever else stands in a document stays as it is."""
    made = {key: value for key, value in schema.items() if key != "$id"}
    for exclusive, bound in _BOUNDS.items():
        if isinstance(made.get(exclusive), bool) and (made.pop(exclusive) and bound in made):
            made[exclusive] = made.pop(bound)
    if made.get("type") == "file":
        made["type"] = "string"
    return _nullable(made) if made.pop("nullable", None) is True else made


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, and null beside it."""
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]}
    made = {**schema, "type": [kind, "null"]}
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        made["enum"] = [*schema["enum"], None]
    return made
