"""A user's message with files as chat completions have it: a list of content parts."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from agentest.errors import CannotSend
from agentest.messages import Attachment, UserText

_AUDIO = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""The audio that has a part of its own; other audio goes as a file."""


def content_of(message: UserText) -> str | list[dict[str, Any]]:
    """The `content` of the user's message: its text, or parts where files go with it.

    Raises CannotSend for a file that is only known by an address that no part can hold.
    """
    if not message.attachments:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_part, message.attachments)]


def _part(file: Attachment) -> dict[str, Any]:
    kind = file.mime_type.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return {"type": "image_url", "image_url": {"url": _image_address(file)}}
    if file.uri:
        raise _no_form(file, "only images can be sent to it by their address")
    if kind in _AUDIO:
        return {"type": "input_audio", "input_audio": {"data": file.base64, "format": _AUDIO[kind]}}
    name = file.name or f"attachment.{kind.rpartition('/')[2] or 'bin'}"
    return {"type": "file", "file": {"filename": name, "file_data": _data_address(file)}}


def _image_address(file: Attachment) -> str:
    if not file.uri:
        return _data_address(file)
    if urlsplit(file.uri).scheme not in ("http", "https", "data"):
        raise _no_form(file, "it can be sent addresses that begin with https://, http:// or data: alone")
    return file.uri


def _data_address(file: Attachment) -> str:
    return f"data:{file.mime_type};base64,{file.base64}"


def _no_form(file: Attachment, why: str) -> CannotSend:
    return CannotSend(
        f"{file.origin} has a part `file_data` ({file.mime_type}, {file.uri}) that cannot be sent to a "
        f"chat-completions agent: {why}; write the file's bytes into the case, as `inline_data`"
    )
