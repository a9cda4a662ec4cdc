"""Mocks described as tools: name, description and the JSON Schema of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel, PydanticInvalidForJsonSchema, PydanticUserError

from agentest.domain.messages import ToolSpec
from agentest.mocks.binding import BoundFunction, Mock, MockSequence
from agentest.support.json_text import NotJson, check_plain

ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object", "additionalProperties": True}
"""The schema of a tool of which no arguments are known."""
_SCHEMAS: WeakKeyDictionary[type[BaseModel], Mapping[str, Any]] = WeakKeyDictionary()
"""What was worked out of the arguments' model of each mock: every conversation asks for it."""
_NOTHING_KNOWN: Mapping[str, ToolSpec] = {}


def tool_specs(
    tools: Mapping[str, Mock], known: Mapping[str, ToolSpec] = _NOTHING_KNOWN
) -> tuple[ToolSpec, ...]:
    """The mocks as tools, in order; `known` (by name) are descriptions that win over what a mock tells."""
    return tuple(known.get(name) or _spec(name, mock) for name, mock in tools.items())


def any_tool(name: str) -> ToolSpec:
    """A tool of which the name alone is known."""
    return ToolSpec(name=name, description="", parameters=ANY_ARGUMENTS)


def _spec(name: str, mock: Mock) -> ToolSpec:
    function = _function(mock)
    if function is None:
        return any_tool(name)
    return ToolSpec(name=name, description=_description(function), parameters=_parameters(function))


def _function(mock: Mock) -> BoundFunction | None:
    """The function that shows what a call looks like; of a sequence the first one."""
    steps = mock.steps if isinstance(mock, MockSequence) else (mock,)
    return next((step for step in steps if isinstance(step, BoundFunction)), None)


def _description(bound: BoundFunction) -> str:
    return (inspect.getdoc(bound.function) or "") if inspect.isroutine(bound.function) else ""


def _parameters(bound: BoundFunction) -> Mapping[str, Any]:
    """The schema of the arguments that the function is bound to; any, where it takes them as they come."""
    if bound.model is None:
        return ANY_ARGUMENTS
    if bound.model not in _SCHEMAS:
        _SCHEMAS[bound.model] = _schema(bound.model, inspect.signature(bound.function).parameters)
    return _SCHEMAS[bound.model]


def _schema(model: type[BaseModel], parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, Any]:
    try:
        schema = model.model_json_schema()
    except (PydanticInvalidForJsonSchema, PydanticUserError):
        return ANY_ARGUMENTS  # a type of the user's own, which has no form in JSON Schema
    properties = {
        name: _with_default(value, parameters[name]) for name, value in schema.get("properties", {}).items()
    }
    return {**{key: value for key, value in schema.items() if key != "title"}, "properties": properties}


def _with_default(schema: Mapping[str, Any], parameter: inspect.Parameter) -> dict[str, Any]:
    """The schema of one parameter, with the function's own default where JSON can write it."""
    kept = {key: value for key, value in schema.items() if key not in ("title", "default")}
    if parameter.default is inspect.Parameter.empty:
        return kept
    try:
        check_plain(parameter.default)
    except NotJson:
        return kept
    return {**kept, "default": parameter.default}
