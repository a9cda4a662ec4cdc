"""Calls and answers of any sort as they can be recorded: values of JSON, and texts that are whole."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError
from agentest.support.json_text import NotJson, json_text, safe_repr, well_formed, well_formed_value

_SHOWN_CHARS = 80
_MAX_NAME_CHARS = 256


def recordable_call(call: ToolCall) -> ToolCall:
    """A call without broken characters."""
    return replace(
        call,
        name=well_formed(call.name),
        args=well_formed_value(call.args),
        result=well_formed_value(call.result),
        call_id=call.call_id and well_formed(call.call_id),
    )


def recordable(value: Any) -> Any:
    """A JSON value without broken characters; what is no JSON is kept as Python shows it."""
    return well_formed_value(_as_json(value))


def _as_json(value: Any) -> Any:
    try:
        return json.loads(json_text(value))
    except NotJson:
        return safe_repr(value)


def check_name(name: str) -> None:
    """Raise AgentError for a name that no tool has: they go into messages and reports as they are."""
    if len(name) > _MAX_NAME_CHARS:
        raise AgentError(
            f"the agent called a tool whose name has {len(name)} characters, more than {_MAX_NAME_CHARS}: "
            f"{name[:_SHOWN_CHARS]!r}…"
        )


def shown_args(args: Any) -> str:
    """The beginning of arguments, which may be anything, for a message."""
    try:
        text = json_text(args)
    except NotJson:
        text = repr(args)
    return text[:_SHOWN_CHARS]
