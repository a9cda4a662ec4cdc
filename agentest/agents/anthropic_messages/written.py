"""What user and tools say, as messages of a request."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentest.agents.anthropic_messages.blocks import is_use
from agentest.agents.files import kind_of, no_form, web_address
from agentest.agents.reading import read_any, read_arguments
from agentest.domain.messages import AgentMessage, Attachment, Message, ToolRequest, ToolResult, UserText

_WHOM = "an agent that speaks Anthropic's Messages"

Written = dict[str, Any]
"""`{role, content}`, the content a text or a list of blocks."""


def written(messages: Sequence[Message]) -> list[Written]:
    """The messages in this form, not merged yet. Raises CannotSend for a file without a form here."""
    return [_written(message) for message in messages]


def as_received(blocks: Sequence[Mapping[str, Any]]) -> Written:
    """A message of the agent's, for further requests: a call's `input` must be an object there."""
    return {"role": "assistant", "content": [_with_object(block) for block in blocks]}


def merged(messages: Iterable[Mapping[str, Any]]) -> list[Written]:
    """The messages with roles that alternate, as the protocol wants it, and without empty ones."""
    result: list[Written] = []
    for message in messages:
        if not message["content"]:
            continue  # nothing was said: the agent had handed over
        if result and result[-1]["role"] == message["role"]:
            both = [*_blocks(result[-1]["content"]), *_blocks(message["content"])]
            result[-1] = {**result[-1], "content": both}
        else:
            result.append(dict(message))
    return result


def _written(message: Message) -> Written:
    if isinstance(message, UserText):
        return {"role": "user", "content": _content(message)}
    if isinstance(message, ToolResult):
        return {"role": "user", "content": [_result(message)]}
    return {"role": "assistant", "content": _said(message)}


def _said(message: AgentMessage) -> list[dict[str, Any]]:
    """A message that was never received in this protocol's form."""
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_use, message.tool_requests)]


def _use(request: ToolRequest) -> dict[str, Any]:
    given, problem = read_arguments(request.arguments)
    return {
        "type": "tool_use",
        "id": request.id,
        "name": request.name,
        "input": {} if problem else given,
    }


def _result(result: ToolResult) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": result.request_id, "content": result.text}
    return {**block, "is_error": True} if _has_failed(result.text) else block


def _has_failed(text: str) -> bool:
    """Whether a tool failed: what a mock that raises answers is `{"error": …}`."""
    value = read_any(text)
    return isinstance(value, dict) and value.keys() == {"error"} and bool(value["error"])


def _with_object(block: Mapping[str, Any]) -> Mapping[str, Any]:
    if is_use(block) and not isinstance(block.get("input"), Mapping):
        return {**block, "input": {}}
    return block


def _blocks(content: str | Sequence[Any]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _content(message: UserText) -> str | list[dict[str, Any]]:
    if not message.attachments:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_file, message.attachments)]


def _file(file: Attachment) -> dict[str, Any]:
    kind = kind_of(file)
    if kind.startswith("image/"):
        return {"type": "image", "source": _source(file, kind)}
    name = {"title": file.name} if file.name else {}
    if kind == "application/pdf":
        return {"type": "document", "source": _source(file, kind), **name}
    if kind.startswith("text/") and not file.uri:
        data = b64decode(file.base64).decode("utf-8", errors="replace")
        source = {"type": "text", "media_type": "text/plain", "data": data}
        return {"type": "document", "source": source, **name}
    raise no_form(file, _WHOM, "it takes images, PDFs and texts alone")


def _source(file: Attachment, kind: str) -> dict[str, str]:
    if file.uri:
        return {"type": "url", "url": web_address(file, _WHOM)}
    return {"type": "base64", "media_type": kind, "data": file.base64}
