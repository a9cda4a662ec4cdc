"""The agent's tools, as the configuration declares them for judges: names or full declarations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, field_validator, model_validator

from agentest.config.fields import Section, check_json
from agentest.support.json_text import NotJson, check_plain, encode_on_one_line
from agentest.support.text import snake_keys

_SCHEMA_KEYS = ("parameters", "input_schema")
_IGNORED_KEYS = frozenset({"type", "strict", "title", "output_schema", "annotations", "icons", "_meta"})
"""Further keys of declarations for OpenAI, Anthropic and MCP. They do not help judges."""


class AgentTool(Section):
    """One tool. Unknown properties are None."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON Schema of the arguments."""

    @model_validator(mode="before")
    @classmethod
    def _in_any_form(cls, value: Any) -> Any:
        """Accept a plain name, or a declaration in the form of OpenAI, Anthropic or MCP."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
            value = value["function"]
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"is {value!r:.80}; write a tool's name, or {{name, description, parameters}}")
        keys = snake_keys(value, {*cls.model_fields, *_SCHEMA_KEYS, *_IGNORED_KEYS})
        if "parameters" not in keys and "input_schema" in keys:
            keys["parameters"] = keys.pop("input_schema")
        return {key: item for key, item in keys.items() if key not in _IGNORED_KEYS}

    @field_validator("parameters")
    @classmethod
    def _plain(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        check_json(value or {})
        return value


def format_tools(tools: Sequence[AgentTool] | None) -> str:
    """Format tools for judges, one per line: the plain name, or the declaration as JSON."""
    return "\n".join(map(_format_tool, tools or ()))


def _format_tool(tool: AgentTool) -> str:
    declaration = tool.model_dump(exclude_none=True)
    return tool.name if declaration.keys() == {"name"} else encode_on_one_line(declaration)


_SYSTEM_ROLES = ("system", "developer")
_SCHEMAS = ("parameters", "input_schema", "inputSchema")


def system_text(messages: Any) -> str:
    """Return the text of the system messages, in order."""
    listed = messages if isinstance(messages, list) else ()
    system_messages = [
        each for each in listed if isinstance(each, Mapping) and each.get("role") in _SYSTEM_ROLES
    ]
    return join_texts(text_of(each.get("content")) for each in system_messages)


def text_of(content: Any) -> str:
    """Return the text of a message: a text, or a list of parts with texts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return join_texts(part if isinstance(part, str) else _text_of_part(part) for part in parts)


def _text_of_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""


def join_texts(texts: Iterable[str]) -> str:
    """Join non-empty texts with an empty line between them."""
    return "\n\n".join(text for text in texts if text.strip())


def tools_in(body: Any) -> tuple[AgentTool, ...]:
    """Return the tools that a request declares in OpenAI's or Anthropic's form."""
    declared = body.get("tools") if isinstance(body, Mapping) else None
    tools = {tool.name: tool for tool in _tools(declared if isinstance(declared, list) else ())}
    return tuple(tools.values())


def _tools(declared: Iterable[Any]) -> Iterator[AgentTool]:
    for each in declared:
        if not isinstance(each, Mapping):
            continue
        function = each.get("function")
        declaration = function if isinstance(function, Mapping) else each
        name = declaration.get("name") or declaration.get("type")  # provider tools may have only a type
        if isinstance(name, str) and name:
            yield AgentTool(name=name, description=_text(declaration), parameters=_schema(declaration))


def _text(declaration: Mapping[str, Any]) -> str | None:
    description = declaration.get("description")
    return description if isinstance(description, str) else None


def _schema(declaration: Mapping[str, Any]) -> dict[str, Any] | None:
    schema = next((declaration[key] for key in _SCHEMAS if isinstance(declaration.get(key), Mapping)), None)
    if schema is None:
        return None
    try:
        check_plain(schema)
    except NotJson:
        return None
    return dict(schema)
