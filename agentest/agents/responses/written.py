"""What user and tools say, as items of a request's `input`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentest.agents.files import audio_format, data_address, kind_of, name_of, web_address
from agentest.agents.responses.calls import Item, call_item, output_item
from agentest.domain.messages import Attachment, Message, ToolResult, UserText

_WHOM = "an agent that speaks Responses"


def written(messages: Sequence[Message], calls: Mapping[str, Item]) -> list[dict[str, Any]]:
    """The messages as items. Raises CannotSend for a file without a form here.

    Args:
        calls: the calls as they came, by id: their outputs have the same kind.
    """
    return [item for message in messages for item in _items(message, calls)]


def _items(message: Message, calls: Mapping[str, Item]) -> list[dict[str, Any]]:
    if isinstance(message, UserText):
        return [{"role": "user", "content": _content(message)}]
    if isinstance(message, ToolResult):
        return [output_item(message, calls.get(message.request_id))]
    said = [{"role": "assistant", "content": message.text}] if message.text else []
    return [*said, *map(call_item, message.tool_requests)]


def _content(message: UserText) -> str | list[dict[str, Any]]:
    if not message.attachments:
        return message.text
    text = [{"type": "input_text", "text": message.text}] if message.text else []
    return [*text, *map(_part, message.attachments)]


def _part(file: Attachment) -> dict[str, Any]:
    if kind_of(file).startswith("image/"):
        return {"type": "input_image", "detail": "auto", "image_url": web_address(file, _WHOM)}
    if file.uri:
        return {"type": "input_file", "file_url": web_address(file, _WHOM)}
    if form := audio_format(file):
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": form}}
    return {"type": "input_file", "filename": name_of(file), "file_data": data_address(file)}
