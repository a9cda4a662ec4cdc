"""Rounds of calls, as the answers of protocols report them."""

from __future__ import annotations

from typing import Any

from agentest.plugins.protocols.adk_server.client import read_run
from agentest.plugins.protocols.langgraph.messages import calls_of


def rounds(calls: Any) -> list[tuple[str, int | None]]:
    return [(call.name, call.round) for call in calls]


def test_calls_that_answers_tell_of() -> None:
    """Calls of one event of ADK's, and of one message of LangGraph's, are of one round."""

    def event(*names: str) -> dict[str, Any]:
        parts = [{"functionCall": {"name": name, "args": {}}} for name in names]
        return {"author": "agent", "content": {"parts": parts}}

    told = [event("a", "b"), {"author": "agent", "content": {"parts": [{"text": "hm"}]}}, event("c")]
    assert rounds(read_run(told, 0)[0].observed) == [("a", 0), ("b", 0), ("c", 1)]

    def message(*names: str) -> dict[str, Any]:
        return {"type": "ai", "tool_calls": [{"name": name, "args": {}, "id": name} for name in names]}

    said = [message("a", "b"), {"type": "ai", "content": "hm"}, message("c")]
    assert rounds(calls_of(said, 0, {})) == [("a", 0), ("b", 0), ("c", 1)]
