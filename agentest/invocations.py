"""A turn as ADK's invocation, in its JSON form: for results and for exported evaluation sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.transcript import ToolCall, Turn


def turn_invocation(turn: Turn, invocation_id: str = "") -> dict[str, Any]:
    """What happened in the turn, camelCase."""
    return {
        "invocationId": invocation_id,
        "userContent": _content(turn.user_message, "user"),
        "finalResponse": _content(turn.agent_message, "model"),
        "intermediateData": {
            "toolUses": [_call(call, n) for n, call in enumerate(turn.tool_calls)],
            "toolResponses": [_response(call, n) for n, call in enumerate(turn.tool_calls)],
            "intermediateResponses": [[r.author, [{"text": r.text}]] for r in turn.remarks],
        },
    }


def _content(text: str, role: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"text": text}]}


def _call(call: ToolCall, n: int) -> dict[str, Any]:
    # What the agent sent in place of arguments has no form in ADK: told under a key of its own.
    args = dict(call.args) if isinstance(call.args, Mapping) else {"invalid_arguments": call.args}
    return {"id": f"call-{n}", "name": call.name, "args": args}


def _response(call: ToolCall, n: int) -> dict[str, Any]:
    # A response is an object in ADK, and anything else stands under `result` there too.
    response = dict(call.result) if isinstance(call.result, Mapping) else {"result": call.result}
    return {"id": f"call-{n}", "name": call.name, "response": response}
