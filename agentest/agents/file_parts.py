"""The files of a user's message, in the forms that several protocols have in common."""

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
"""The audio that OpenAI's protocols have a part for; other audio goes as a file."""


def kind_of(file: Attachment) -> str:
    """The file's type without parameters, like `image/png`."""
    return file.mime_type.partition(";")[0].strip().lower()


def audio_format(file: Attachment) -> str | None:
    """`wav` or `mp3`; None for what is neither."""
    return _AUDIO.get(kind_of(file))


def name_of(file: Attachment) -> str:
    """The file's name; one made from its type where it has none."""
    return file.name or f"attachment.{kind_of(file).rpartition('/')[2] or 'bin'}"


def data_address(file: Attachment) -> str:
    """The file's bytes as an address."""
    return f"data:{file.mime_type};base64,{file.base64}"


def web_address(file: Attachment, whom: str) -> str:
    """The address of a file, or its bytes as one. Raises CannotSend for one that nobody else can open.

    Args:
        whom: what it is sent to, for the error: `a chat-completions agent`.
    """
    if not file.uri:
        return data_address(file)
    if urlsplit(file.uri).scheme not in ("http", "https", "data"):
        problem = "it can be sent addresses that begin with https://, http:// or data: alone"
        raise no_form(file, whom, problem)
    return file.uri


def no_form(file: Attachment, whom: str, why: str) -> CannotSend:
    """The error about a file that has no form in a protocol."""
    return CannotSend(
        f"{file.origin} has a part `{'file_data' if file.uri else 'inline_data'}` ({file.mime_type}"
        f"{f', {file.uri}' if file.uri else ''}) that cannot be sent to {whom}: {why}"
        + ("; write the file's bytes into the case, as `inline_data`" if file.uri else "")
    )
