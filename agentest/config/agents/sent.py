"""What the requests to an agent tell it beforehand: its instructions and its tools, where `body` has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agentest.config.agents.tools import AgentTool
from agentest.support.json_text import NotJson, check_plain

_OF_SYSTEM = ("system", "developer")
_SCHEMAS = ("parameters", "input_schema", "inputSchema")


def system_text(messages: Any) -> str:
    """What the messages of the system say, in the order in which they are sent."""
    found = messages if isinstance(messages, list) else ()
    said = [each for each in found if isinstance(each, Mapping) and each.get("role") in _OF_SYSTEM]
    return joined(text_of(each.get("content")) for each in said)


def text_of(content: Any) -> str:
    """The text of a message: a text, or a list of parts that have one each."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return joined(part if isinstance(part, str) else _text_of_part(part) for part in parts)


def _text_of_part(part: Any) -> str:
    text = part.get("text") if isinstance(part, Mapping) else None
    return text if isinstance(text, str) else ""


def joined(texts: Iterable[str]) -> str:
    """The texts that say something, with an empty line between them."""
    return "\n\n".join(text for text in texts if text.strip())


def tools_in(body: Any) -> tuple[AgentTool, ...]:
    """The tools that a request declares, in OpenAI's or Anthropic's form; others are left out."""
    declared = body.get("tools") if isinstance(body, Mapping) else None
    found = {tool.name: tool for tool in _tools(declared if isinstance(declared, list) else ())}
    return tuple(found.values())


def _tools(declared: Iterable[Any]) -> Iterator[AgentTool]:
    for each in declared:
        if not isinstance(each, Mapping):
            continue
        function = each.get("function")
        told = function if isinstance(function, Mapping) else each
        name = told.get("name") or told.get("type")  # tools that run at the provider may have a type alone
        if isinstance(name, str) and name:
            yield AgentTool(name=name, description=_text(told), parameters=_schema(told))


def _text(told: Mapping[str, Any]) -> str | None:
    description = told.get("description")
    return description if isinstance(description, str) else None


def _schema(told: Mapping[str, Any]) -> dict[str, Any] | None:
    schema = next((told[key] for key in _SCHEMAS if isinstance(told.get(key), Mapping)), None)
    if schema is None:
        return None
    try:
        check_plain(schema)
    except NotJson:
        return None
    return dict(schema)
