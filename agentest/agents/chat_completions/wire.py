"""The messages of a conversation in OpenAI's form, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.chat_completions.attachments import content_of
from agentest.agents.reading import arguments_text, shown
from agentest.domain.messages import AgentMessage, Message, ToolRequest, ToolResult, UserText
from agentest.support.errors import AgentError

WireMessage = dict[str, Any]
"""A chat-completions message as it is sent."""

_NOT_SAID = ("thinking", "redacted_thinking", "reasoning", "tool_use", "tool_call")
"""Parts of a `content` that are no part of the reply's text."""


def to_wire(messages: Sequence[Message]) -> list[WireMessage]:
    """The messages as chat completions have them. They belong to the caller, who may change them."""
    return [_written(message) for message in messages]


def _written(message: Message) -> WireMessage:
    if isinstance(message, UserText):
        return {"role": "user", "content": content_of(message)}
    if isinstance(message, ToolResult):
        return {"role": "tool", "tool_call_id": message.request_id, "content": message.text}
    if not message.tool_requests:
        return {"role": "assistant", "content": message.text}
    calls = [_written_request(request) for request in message.tool_requests]
    return {"role": "assistant", "content": message.text, "tool_calls": calls}


def _written_request(request: ToolRequest) -> dict[str, Any]:
    function = {"name": request.name, "arguments": request.arguments}
    return {"id": request.id, "type": "function", "function": function}


def from_wire(message: Any) -> AgentMessage:
    """What an assistant message says. Raises AgentError that says what is wrong with it."""
    if not isinstance(message, Mapping):
        raise AgentError(f"the agent's `message` is not an object: {shown(message)}")
    requests = read_tool_requests(message.get("tool_calls"))
    return AgentMessage(read_text(message), requests)


def read_text(message: Mapping[str, Any]) -> str | None:
    """The text of a message or of a streamed piece of one; a refusal is text, too."""
    text = _content(message.get("content"))
    if text is None and isinstance(message.get("refusal"), str):
        return str(message["refusal"])
    return text


def _content(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_part(part) for part in content)
    raise AgentError(f"the agent's `content` is neither text, a list of parts nor null: {shown(content)}")


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise AgentError(f"a part of the agent's `content` is not an object: {shown(part)}")
    text = part.get("text", part.get("refusal"))
    if isinstance(text, str):
        return text
    kind = part.get("type")
    if kind in _NOT_SAID:
        return ""
    if kind in ("text", "output_text"):
        raise AgentError(f"a text part of the agent's `content` has no text: {shown(part)}")
    return f"[{kind if isinstance(kind, str) else 'unknown part'}]"


def read_tool_requests(calls: Any) -> tuple[ToolRequest, ...]:
    """The requests in the `tool_calls` of a message. Raises AgentError."""
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise AgentError(f"the agent's `tool_calls` is not a list: {shown(calls)}")
    return tuple(_tool_request(call) for call in calls)


def _tool_request(call: Any) -> ToolRequest:
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise AgentError(f"a tool call of the agent has no function name: {shown(call)}")
    identifier = call.get("id")
    return ToolRequest(
        identifier if isinstance(identifier, str) else "", name, arguments_text(function.get("arguments"))
    )
