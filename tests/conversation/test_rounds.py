"""Rounds: which message of a turn requested a call."""

from __future__ import annotations

from typing import Any

from agentest import scenario
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.mocks.calls import CallRecord
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call


def rounds(calls: Any) -> list[tuple[str, int | None]]:
    return [(call.name, call.round) for call in calls]


def test_rounds_of_requested_calls() -> None:
    """Calls of one message share a round, and each turn starts with round 0."""
    script: list[Any] = [[tool_call("a"), tool_call("b")], tool_call("a"), "one", tool_call("b"), "two"]
    one = scenario("rounds", turns=["first", "second"], tools={"a": 1, "b": 2})
    with ScriptedAgent(script) as agent:
        [held] = run_scenarios([one], agent=agent, model=ScriptedModel()).scenarios[0].conversations
    turns = held.conversation.turns
    assert [rounds(turn.tool_calls) for turn in turns] == [[("a", 0), ("b", 0), ("a", 1)], [("b", 0)]]


def test_rounds_are_merged() -> None:
    """A call reported by two sources gets its round from the one that knows it."""
    record = CallRecord()
    record.begin(ToolCall("a", {}, 1, True, 0, seen_by=SeenBy.MOCK_SERVER))
    record.observe([ToolCall("a", {}, None, False, 0, seen_by=SeenBy.AGENT, round=2)])
    assert rounds(record.calls) == [("a", 2)]
