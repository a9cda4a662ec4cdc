"""Calls that an agent tells of and that ran no tool: its framework refused them, or a server of ours did."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentest.domain.transcript import ToolCall, arguments_untold
from agentest.mock_servers.port import REFUSED
from agentest.support.json_schema import schema_validator
from agentest.support.json_text import NotJson, json_text

_FRAMEWORKS_WORDS = re.compile(
    r"validation errors? for|field required|input should be|invalid_type|is a required property"
    r"|is not of type|additional properties are not allowed|mandatory input parameters"
    r"|invalid (?:input|arguments|tool call|tool parameters)|did not match (?:expected )?schema"
    r"|does not match (?:expected )?schema|unknown tool|no such tool|not a valid tool|tool \S+ not found"
    r"|unexpected keyword argument|fix the errors and try again",
    re.IGNORECASE,
)
"""How frameworks say that they refused a call: of pydantic-ai, LangGraph, google-adk, the AI SDK, FastMCP and
the libraries by which they check arguments."""
_OPENS_WRONG = re.compile(
    r"error|invalid|unknown tool|no such tool|not found|not a valid|not match|unexpected", re.IGNORECASE
)
_OPENING_CHARS = 100
"""Within which a refusal says that it is one: what a tool answers may have a framework's words as well."""
_SOUNDS_WRONG = re.compile(r"error|invalid|required|missing|expected|fail|not allowed", re.IGNORECASE)
_SHOWN_CHARS = 4000


def refused_by_us(call: ToolCall) -> str | None:
    """What a mock server told the agent in place of an answer, as the agent tells it; None: it told none."""
    text = _text(call)
    at = text.find(REFUSED)
    return text[at:].splitlines()[0].rstrip('"}] ') if at >= 0 else None


def refused_by_framework(call: ToolCall, parameters: Mapping[str, Any]) -> bool:
    """Whether a framework seems to have refused a call before any tool ran: its arguments do not fit.

    Args:
        parameters: the JSON Schema of the tool's arguments, as far as we know it.
    """
    text = _text(call)
    opens_wrong = call.error is not None or _OPENS_WRONG.search(text[:_OPENING_CHARS])
    if opens_wrong and _FRAMEWORKS_WORDS.search(text):
        return True
    if arguments_untold(call):
        return False  # whether they fit is not known
    sounds_wrong = call.error is not None or call.result is None or _SOUNDS_WRONG.search(text) is not None
    return sounds_wrong and not _fits(call.args, parameters)


def _text(call: ToolCall) -> str:
    """What the agent tells of the answer, as text."""
    result = call.result
    if not isinstance(result, str):
        try:
            result = json_text(result)
        except NotJson:
            result = repr(result)
    return f"{call.error or ''} {result}"[:_SHOWN_CHARS]


def _fits(args: Any, parameters: Mapping[str, Any]) -> bool:
    try:
        return bool(schema_validator(parameters, lambda *_: True).is_valid(args))
    except Exception:  # noqa: BLE001 - a schema with errors, of which jsonschema raises many: nothing is known
        return True
