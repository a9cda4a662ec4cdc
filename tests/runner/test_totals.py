"""Totals of a scenario, which remain when its conversations are released."""

from __future__ import annotations

from builders import (
    TIME,
    conversation,
    conversation_result,
    failing_conversation,
    failure,
    run_result,
    scenario_result,
    tool_call,
    turn,
    unfinished_turn,
)

from agentest.domain.figures import MAX_SLOWEST_TURNS, totals_of
from agentest.domain.results import SlowTurn, Totals
from agentest.domain.transcript import TimeSpent, Usage


def test_nothing() -> None:
    """A scenario without conversations has zero totals."""
    assert totals_of(()) == Totals()


def test_counts() -> None:
    """Conversations, passes, turns, calls, requests, retries and tokens are summed."""
    turns = [turn(0, tool_calls=(tool_call(), tool_call())), turn(1, requests=4, retries=2)]
    held = [conversation_result("c1", held=conversation("c1", turns)), failing_conversation("c2")]
    found = totals_of(held)
    assert (found.conversations, found.passed, found.turns, found.tool_calls) == (2, 1, 3, 2)
    assert (found.agent_calls, found.agent_retries) == (6, 2)
    assert found.agent_tokens == Usage(30, 15, 6)
    assert found.time == TIME + TIME


def test_each_conversation_is_read_once() -> None:
    """Those of a killed run are decoded when they are read."""
    held = [conversation_result("c1"), failing_conversation("c2")]
    assert totals_of(iter(held)) == totals_of(held)


def test_a_turn_without_a_reply_counts() -> None:
    """An unfinished turn counts with its calls and requests, and has no latency."""
    held = conversation("c1", [], failure(), unfinished_turn(0, "Book it.", tool_call()))
    found = totals_of([conversation_result("c1", held=held)])
    assert (found.passed, found.turns, found.tool_calls, found.agent_calls) == (0, 1, 1, 1)
    assert found.slowest == ()


def test_slowest_turns() -> None:
    """A few slowest turns are stored with their place, slowest first."""
    talks = [
        conversation_result(
            f"c{n}", held=conversation(f"c{n}", [turn(i, latency_ms=n + i) for i in range(4)])
        )
        for n in (10, 20)
    ]
    found = totals_of(talks).slowest
    assert len(found) == MAX_SLOWEST_TURNS
    assert found[:2] == (SlowTurn(23, "c20", 3), SlowTurn(22, "c20", 2))
    assert found[-1] == SlowTurn(13, "c10", 3)


def test_a_run_adds_its_scenarios() -> None:
    """A run's totals are the sums of its scenarios, and its slowest turns have their scenario."""
    slow = conversation_result("c2", held=conversation("c2", [turn(latency_ms=900.0)]))
    result = run_result(scenario_result("a"), scenario_result("b", [slow]))
    assert (result.conversations, result.agent_calls) == (2, 2)
    assert result.time == TIME + TIME
    assert [(s.name, t.latency_ms) for s, t in result.slowest_turns(2)] == [("b", 900.0), ("a", 120.5)]


def test_our_own_time_is_what_is_left() -> None:
    """Our own time is the unexplained rest, never negative even if clocks disagree."""
    assert TIME.own_ms == 78.0
    assert TimeSpent(10, agent_ms=11).own_ms == 0
