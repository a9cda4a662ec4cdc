"""What is sent to an AG-UI agent: messages and tools in its form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from agentest.domain.messages import AgentMessage, Attachment, Message, ToolResult, ToolSpec, UserText
from agentest.support.errors import CannotSend

Wire = dict[str, Any]
"""A message, a tool call or an event as JSON has it."""

_MEDIA = ("image", "audio", "video")


def new_id() -> str:
    """An id that no message of any run had before: servers that keep threads replace what has the same."""
    return uuid4().hex


def written(message: Message) -> Wire:
    """A message with an id of its own. Raises CannotSend for a file that has no form."""
    if isinstance(message, UserText):
        return {"id": new_id(), "role": "user", "content": _content(message)}
    if isinstance(message, ToolResult):
        return {"id": new_id(), "role": "tool", "toolCallId": message.request_id, "content": message.text}
    return _of_the_agent(message)


def _of_the_agent(message: AgentMessage) -> Wire:
    calls = [call(r.id, r.name, r.arguments) for r in message.tool_requests]
    wire: Wire = {"id": new_id(), "role": "assistant", "content": message.text or ""}
    return {**wire, "toolCalls": calls} if calls else wire


def call(identifier: str, name: str, arguments: str) -> Wire:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def with_ids(messages: Sequence[Wire]) -> list[Wire]:
    """Messages of the user's own configuration, each with an id."""
    return [message if message.get("id") else {"id": new_id(), **message} for message in messages]


def declared(spec: ToolSpec) -> Wire:
    return {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}


def _content(message: UserText) -> str | list[Wire]:
    if not message.attachments:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_part, message.attachments)]


def _part(file: Attachment) -> Wire:
    kind = file.mime_type.partition("/")[0].lower()
    part = kind if kind in _MEDIA else "document"
    if not file.uri:
        return {"type": part, "source": {"type": "data", "value": file.base64, "mimeType": file.mime_type}}
    if not file.uri.startswith(("http://", "https://")):
        raise CannotSend(
            f"{file.origin} has a part `file_data` ({file.mime_type}, {file.uri}) that cannot be sent to an "
            "AG-UI agent: it takes addresses that begin with https:// or http:// alone; write the file's "
            "bytes into the case, as `inline_data`"
        )
    return {"type": part, "source": {"type": "url", "value": file.uri, "mimeType": file.mime_type}}
