"""Convert a user's files to the message parts that several protocols share."""

from __future__ import annotations

from urllib.parse import urlsplit

from agentest.domain.messages import Attachment
from agentest.support.errors import CannotSend

_AUDIO = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""Audio types that OpenAI's protocols support as audio parts. Other audio is sent as a file."""


def kind_of(file: Attachment) -> str:
    """Return the file's media type without parameters, such as `image/png`."""
    return file.mime_type.partition(";")[0].strip().lower()


def audio_format(file: Attachment) -> str | None:
    """Return `wav` or `mp3`, or None for other types."""
    return _AUDIO.get(kind_of(file))


def name_of(file: Attachment) -> str:
    """Return the file's name, or one made from its type."""
    return file.name or f"attachment.{kind_of(file).rpartition('/')[2] or 'bin'}"


def data_address(file: Attachment) -> str:
    """Return the file's bytes as a data: URL."""
    return f"data:{file.mime_type};base64,{file.base64}"


def web_address(file: Attachment, whom: str) -> str:
    """Return the file's URL, or its bytes as a data: URL. Raises CannotSend for a URL others cannot open.

    `whom` is the recipient, for the error: `a chat-completions agent`.
    """
    if not file.uri:
        return data_address(file)
    if urlsplit(file.uri).scheme not in ("http", "https", "data"):
        problem = "it can be sent addresses that begin with https://, http:// or data: alone"
        raise unsupported_file(file, whom, problem)
    return file.uri


def unsupported_file(file: Attachment, whom: str, why: str) -> CannotSend:
    """Return the error for a file that a protocol cannot carry."""
    return CannotSend(
        f"{file.origin} has a part `{'file_data' if file.uri else 'inline_data'}` ({file.mime_type}"
        f"{f', {file.uri}' if file.uri else ''}) that cannot be sent to {whom}: {why}"
        + ("; write the file's bytes into the case, as `inline_data`" if file.uri else "")
    )
