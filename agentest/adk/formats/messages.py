"""What a case's user sends: text and files. Whatever else a message holds is refused by its name."""

from __future__ import annotations

from dataclasses import fields

from agentest.adk.formats.model import Blob, Content, FileData, Part, text_of
from agentest.domain.messages import Attachment, UserText
from agentest.support.json_text import well_formed

MAX_BYTES = 20_000_000
"""Of all files of one message together."""

_SENT = {"text", "inline_data", "file_data"}
_ABOUT_TEXT = {"thought", "thought_signature"}
"""What says how a text came to be: no user sends it."""


def user_message(content: Content, invocation: str) -> UserText:
    """The message of a user. Raises ValueError, in a sentence, for what cannot be sent.

    A text that is there and empty is sent: how an agent takes it is worth a test.

    Args:
        invocation: its id, or its number in the conversation.
    """
    origin = f"user_content of invocation {invocation}"
    files = tuple(_attachment(part, origin) for part in content.parts or () if _is_file(part, origin))
    if not files and all(part.text is None for part in content.parts or ()):
        raise ValueError(f"{origin} has neither text nor a file; write what the user says as a part `text`")
    size = sum(file.size or 0 for file in files)
    if size > MAX_BYTES:
        raise ValueError(f"{origin} has files of {size:,} bytes, more than the {MAX_BYTES:,} that are sent")
    return UserText(text_of(content), files)


def _is_file(part: Part, origin: str) -> bool:
    """Whether the part is a file. Raises ValueError for one that is neither text nor file."""
    given = {field.name for field in fields(part) if getattr(part, field.name) is not None}
    others = sorted(given - _SENT - _ABOUT_TEXT)
    if others:
        raise ValueError(
            f"{origin} has a part `{others[0]}` that cannot be sent as a user's message; "
            "texts (`text`) and files (`inline_data`, `file_data`) can"
        )
    return bool(given & {"inline_data", "file_data"})


def _attachment(part: Part, origin: str) -> Attachment:
    if part.inline_data is not None and part.file_data is not None:
        raise ValueError(f"{origin} has a part with both `inline_data` and `file_data`; make two parts of it")
    if part.inline_data is not None:
        blob = part.inline_data
        return _file(blob, "inline_data", origin, base64=_given(blob.data, "inline_data", "data", origin))
    assert part.file_data is not None, "a part that is a file"
    uri = _given(part.file_data.file_uri, "file_data", "file_uri", origin)
    return _file(part.file_data, "file_data", origin, uri=well_formed(uri))


def _file(file: Blob | FileData, key: str, origin: str, *, base64: str = "", uri: str = "") -> Attachment:
    mime_type = _on_one_line(_given(file.mime_type, key, "mime_type", origin))
    name = _on_one_line(file.display_name or "")
    return Attachment(mime_type=mime_type, base64=base64, uri=uri, name=name, origin=origin)


def _given(value: str | None, key: str, name: str, origin: str) -> str:
    if not value:
        raise ValueError(f"{origin} has a part `{key}` without `{name}`; it cannot be sent")
    return value


def _on_one_line(text: str) -> str:
    return " ".join(well_formed(text).split())
