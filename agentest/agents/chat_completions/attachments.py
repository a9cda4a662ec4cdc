"""A user's message with files as chat completions have it: a list of content parts."""

from __future__ import annotations

from typing import Any

from agentest.agents.files import audio_format, data_address, kind_of, name_of, no_form, web_address
from agentest.domain.messages import Attachment, UserText

_WHOM = "a chat-completions agent"


def content_of(message: UserText) -> str | list[dict[str, Any]]:
    """The `content` of the user's message: its text, or parts where files go with it.

    Raises CannotSend for a file that is only known by an address that no part can hold.
    """
    if not message.attachments:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_part, message.attachments)]


def _part(file: Attachment) -> dict[str, Any]:
    if kind_of(file).startswith("image/"):
        return {"type": "image_url", "image_url": {"url": web_address(file, _WHOM)}}
    if file.uri:
        raise no_form(file, _WHOM, "only images can be sent to it by their address")
    if form := audio_format(file):
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": form}}
    return {"type": "file", "file": {"filename": name_of(file), "file_data": data_address(file)}}
