"""A turn as ADK's invocation, in its JSON form: for results and for exported evaluation sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.domain.transcript import ToolCall, Turn


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
    # What the agent sent in place of arguments has no form in ADK: it has a key of its own.
    args = dict(call.args) if isinstance(call.args, Mapping) else {"invalid_arguments": call.args}
    return {"id": f"call-{n}", "name": call.name, "args": args}


def _response(call: ToolCall, n: int) -> dict[str, Any]:
    return {"id": f"call-{n}", "name": call.name, "response": _wrapped(call.result)}


def _wrapped(result: Any) -> dict[str, Any]:
    """A tool's result as ADK keeps it: an object, and anything else under `result`."""
    if isinstance(result, Mapping) and not _is_wrapping(result):
        return dict(result)
    return {"result": result}


def unwrapped(response: Mapping[str, Any]) -> Any:
    """What the tool itself answered: a text, where ADK keeps `{"result": text}`."""
    return response["result"] if _is_wrapping(response) else response


def _is_wrapping(value: Mapping[str, Any]) -> bool:
    """Whether an object may stand for a result that is none. An object under `result` is a tool's own, unless
    it would be taken for such a one itself."""
    if value.keys() != {"result"}:
        return False
    inner = value["result"]
    return not isinstance(inner, Mapping) or _is_wrapping(inner)
