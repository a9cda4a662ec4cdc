"""The JSON Schema of an answer, in the subset that strict structured output takes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict

UNDESCRIBED = ConfigDict(defer_build=True, json_schema_extra=lambda schema: schema.pop("description", None))
"""The settings of an answer whose docstring is for us: it would be sent to the model as a `description`."""


@lru_cache(maxsize=256)  # some shapes are made for one request
def answer_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of an answer in the subset that strict structured output takes."""
    schema = answer.model_json_schema()
    _tighten(schema)
    return schema


def _tighten(schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    schema.pop("title", None)
    schema.pop("default", None)
    # What these hold are names of the answer's own, not keywords: a field may be called `default`.
    for named in ("properties", "$defs"):
        for inner in schema.get(named, {}).values():
            _tighten(inner)
    for keyword in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"):
        value = schema.get(keyword)
        for inner in value if isinstance(value, list) else [value]:
            _tighten(inner)
    if "properties" in schema:
        schema["additionalProperties"] = False
        schema["required"] = list(schema["properties"])
