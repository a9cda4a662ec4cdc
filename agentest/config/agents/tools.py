"""The tools that an agent has, as the configuration tells them for judges: names, or whole declarations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator, model_validator

from agentest.config.fields import Section, check_json
from agentest.support.json_text import on_one_line
from agentest.support.spelling import snake_keys

_SCHEMA_KEYS = ("parameters", "input_schema")
_OF_OTHERS = frozenset({"type", "strict", "title", "output_schema", "annotations", "icons", "_meta"})
"""What declarations for OpenAI, Anthropic and MCP have besides; it tells judges nothing."""


class AgentTool(Section):
    """One tool. What is not known of it is None."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments."""

    @model_validator(mode="before")
    @classmethod
    def _in_any_form(cls, value: Any) -> Any:
        """A name alone, or a declaration as it is written for OpenAI, Anthropic or MCP."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
            value = value["function"]
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"is {value!r:.80}; write a tool's name, or {{name, description, parameters}}")
        told = snake_keys(value, {*cls.model_fields, *_SCHEMA_KEYS, *_OF_OTHERS})
        if "parameters" not in told and "input_schema" in told:
            told["parameters"] = told.pop("input_schema")
        return {key: item for key, item in told.items() if key not in _OF_OTHERS}

    @field_validator("parameters")
    @classmethod
    def _plain(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        check_json(value or {})
        return value


def tools_shown(tools: Sequence[AgentTool] | None) -> str:
    """The tools for judges, a line each: the name alone, or the declaration as JSON."""
    return "\n".join(map(_shown, tools or ()))


def _shown(tool: AgentTool) -> str:
    told = tool.model_dump(exclude_none=True)
    return tool.name if told.keys() == {"name"} else on_one_line(told)
