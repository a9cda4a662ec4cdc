"""The result of `tools/call`: content that clients read, made of what a mock answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentest.support.json_text import json_text

_READY_KEYS = frozenset({"content", "structuredContent", "isError", "_meta"})
_PARTS = frozenset({"text", "image", "audio", "resource", "resource_link"})


def is_ready(result: Any) -> bool:
    """Whether a mock has answered with MCP's own form: a list `content` of typed parts."""
    if not isinstance(result, Mapping) or not result.keys() <= _READY_KEYS:
        return False
    parts = result.get("content")
    return isinstance(parts, list) and bool(parts) and all(map(_is_part, parts))


def _is_part(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _PARTS


def answered(result: Any, structured: Any = None) -> dict[str, Any]:
    """The result of a call that was answered.

    Args:
        structured: the `structuredContent`, where the tool promises one.
    """
    if is_ready(result):
        return {"isError": False, **result}
    text = result if isinstance(result, str) else json_text(result)
    told = {} if structured is None else {"structuredContent": structured}
    return {"content": [{"type": "text", "text": text}], **told, "isError": False}


def failed(message: str) -> dict[str, Any]:
    """The result of a call that failed: the model reads it, as it reads the error of any tool."""
    return {"content": [{"type": "text", "text": message}], "isError": True}


def value_of(result: Mapping[str, Any]) -> Any:
    """What a real tool answered, as it is recorded: the value itself, where the content is nothing else."""
    if result.get("structuredContent") is not None:
        return result["structuredContent"]
    parts = result.get("content")
    if not isinstance(parts, list) or len(parts) != 1 or not _is_text(parts[0]):
        return parts
    try:
        return json.loads(parts[0]["text"])
    except (ValueError, RecursionError):
        return parts[0]["text"]


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
