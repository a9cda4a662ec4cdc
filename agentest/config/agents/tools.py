"""The agent's tools, as the configuration declares them for judges: names or full declarations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from agentest.config.fields import Section, check_json
from agentest.support.json_text import NotJson, check_plain, encode_on_one_line
from agentest.support.text import snake_keys

_IGNORED_KEYS = frozenset({"type", "strict", "title", "output_schema", "annotations", "icons", "_meta"})
"""Further keys of declarations for OpenAI, Anthropic and MCP. They do not help judges."""


class AgentTool(Section):
    """One tool. Unknown properties are None."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(check_json)] | None = None
    """A JSON Schema of the arguments."""

    @model_validator(mode="before")
    @classmethod
    def _in_any_form(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
            value = value["function"]
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(f"is {value!r:.80}; write a tool's name, or {{name, description, parameters}}")
        keys = snake_keys(value, {*cls.model_fields, "parameters", "input_schema", *_IGNORED_KEYS})
        if "parameters" not in keys and "input_schema" in keys:
            keys["parameters"] = keys.pop("input_schema")
        return {key: item for key, item in keys.items() if key not in _IGNORED_KEYS}


def format_tools(tools: Sequence[AgentTool] | None) -> str:
    """Format tools for judges, one per line: the plain name, or the declaration as JSON."""
    declarations = [tool.model_dump(exclude_none=True) for tool in tools or ()]
    return "\n".join(
        each["name"] if each.keys() == {"name"} else encode_on_one_line(each) for each in declarations
    )


_SCHEMAS = ("parameters", "input_schema", "inputSchema")


def system_text(messages: Any) -> str:
    """Return the text of the system messages, in order."""
    listed = messages if isinstance(messages, list) else ()
    system_messages = [
        each for each in listed if isinstance(each, Mapping) and each.get("role") in ("system", "developer")
    ]
    return join_texts(text_of(each.get("content")) for each in system_messages)


def text_of(content: Any) -> str:
    """Return the text of a message: a text, or a list of parts with texts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return join_texts(text for text in texts if isinstance(text, str))


def join_texts(texts: Iterable[str]) -> str:
    """Join non-empty texts with an empty line between them."""
    return "\n\n".join(text for text in texts if text.strip())


def tools_in(body: Any) -> tuple[AgentTool, ...]:
    """Return the tools that a request declares in OpenAI's or Anthropic's form."""
    declared = body.get("tools") if isinstance(body, Mapping) else None
    tools: dict[str, AgentTool] = {}
    for each in declared if isinstance(declared, list) else ():
        function = each.get("function") if isinstance(each, Mapping) else None
        declaration = function if isinstance(function, Mapping) else each
        if not isinstance(declaration, Mapping):
            continue
        name = declaration.get("name") or declaration.get("type")  # provider tools may have only a type
        if isinstance(name, str) and name:
            text = declaration.get("description")
            description = text if isinstance(text, str) else None
            tools[name] = AgentTool(name=name, description=description, parameters=_schema(declaration))
    return tuple(tools.values())


def _schema(declaration: Mapping[str, Any]) -> dict[str, Any] | None:
    schema = next((declaration[key] for key in _SCHEMAS if isinstance(declaration.get(key), Mapping)), None)
    if schema is None:
        return None
    try:
        check_plain(schema)
    except NotJson:
        return None
    return dict(schema)
