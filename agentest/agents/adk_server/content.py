"""A user's message as ADK has it."""

from __future__ import annotations

from typing import Any

from agentest.domain.messages import Attachment, UserText


def user_content(message: UserText) -> dict[str, Any]:
    """The message as a `Content`, in camelCase, which ADK for Python and for TypeScript both read."""
    text = [{"text": message.text}] if message.text or not message.attachments else []
    return {"role": "user", "parts": [*text, *map(_part, message.attachments)]}


def _part(file: Attachment) -> dict[str, Any]:
    name = {"displayName": file.name} if file.name else {}
    if file.uri:
        return {"fileData": {"mimeType": file.mime_type, "fileUri": file.uri, **name}}
    return {"inlineData": {"mimeType": file.mime_type, "data": file.base64, **name}}
