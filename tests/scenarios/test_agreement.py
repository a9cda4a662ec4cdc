"""Parts of a scenario that contradict each other: both are named before any conversation is held."""

from __future__ import annotations

from typing import Any

import pytest

from agentest import ScenarioError, any_of, before, call, never_after, number, optional, scenario

HELD = {"expected": ["a", "b"], "match_mode": "contains"}
IN_TURN = {"user_message": "Hi.", "trajectory": {"expected": ["a"]}, "expect": {"says": "yes"}}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"expect": [{"says": "not refunded"}, {"never_says": "refund"}]}, "expect.says: what must be said, exp"),
    (
        {"expect": {"says": number(5), "never_says": number(5)}},
        "expect.says: what must be said, expect.never",
    ),
    (
        {"turns": [IN_TURN], "expect": {"never_says": "yes"}},
        "turns[0].expect.says: what must be said, expect",
    ),
    ({"expect": [{"says": "x", "in_turn": -1}, {"never_says": "x", "in_turn": 1}]}, "expect.says: what must"),
    ({"trajectory": {"max_turns": 1}}, "trajectory.max_turns: is 1, but the script has 2 turns"),
    (
        {"turns": None, "goal": "g", "trajectory": {"max_turns": 0}},
        "trajectory.max_turns: is 0, but a conver",
    ),
    (
        {"turns": None, "goal": "g", "trajectory": {"max_turns": 2}, "expect": {"says": "x", "in_turn": 2}},
        "expect.in_turn: is 2, but `trajectory.max_turns` is 2",
    ),
    (
        {"turns": None, "goal": "g", "user_tools": {"look": 1}, "trajectory": {"forbidden": ["look"]}},
        "trajectory: look is one of the `user_tools`, whose calls no trajectory sees; say by",
    ),
    (
        {"trajectory": [HELD, {"forbidden": ["b"]}]},
        "trajectory.expected: b is expected, but `trajectory.forb",
    ),
    (
        {"trajectory": [HELD, {"name": "n", "max_calls": 1}]},
        "has 2 calls, but `trajectory 'n'.max_calls` is 1",
    ),
    (
        {"trajectory": [HELD, {"max_calls_per_tool": {"a": 0}}]},
        "a is expected, but `trajectory.max_calls_per_",
    ),
    (
        {"trajectory": [HELD, {"expected": ["a"]}]},
        "b is expected, but `trajectory` expects no call of it, and",
    ),
    (
        {"trajectory": {**HELD, "expected_writes": ["a"], "reads": ["get"]}},
        "`trajectory 'writes'` expects no",
    ),
    (
        {"turns": [IN_TURN], "trajectory": {"forbidden": ["a"]}},
        "turns[0].trajectory.expected: a is expected,",
    ),
    (
        {"trajectory": {"expected": ["b", "a", before("a", "b")]}},
        "trajectory.before: a before b, but none is",
    ),
    (
        {"trajectory": {"expected": ["b"], "before": ["a", "b"]}},
        "trajectory.before: a before b, but none is in",
    ),
    (
        {"trajectory": {"expected": ["b", "a", never_after("a", "b")]}},
        "trajectory.never_after: a never after",
    ),
]


@pytest.mark.parametrize(("options", "said"), CONTRADICTIONS, ids=[said for _, said in CONTRADICTIONS])
def test_contradictions_are_named(options: dict[str, Any], said: str) -> None:
    """What no conversation could meet is an error that names both keys."""
    with pytest.raises(ScenarioError) as error:
        scenario("s", **{"turns": ["Hi.", "Bye."], **options})
    assert said in str(error.value)


AGREEMENTS: list[dict[str, Any]] = [
    {"expect": [{"says": "refund"}, {"never_says": "not refunded"}]},
    {"expect": [{"says": "x", "in_turn": 0}, {"never_says": "x", "in_turn": 1}]},
    {"turns": [IN_TURN, "Bye."], "expect": {"never_says": "yes", "in_turn": 1}},
    {"trajectory": {"max_turns": 2}},
    {"trajectory": [HELD, {"forbidden": [call("b", x=1)]}]},
    {"trajectory": [HELD, {"expected": ["a"], "reads": ["b"]}]},
    {"trajectory": [HELD, {"expected": ["a"], "ignore_failed": True}]},
    {"trajectory": [HELD, {"expected": [any_of("a", "b"), "?"]}]},
    {"trajectory": [{"expected": ["a"], "match_mode": "within"}, {"forbidden": ["a"]}]},
    {"trajectory": [HELD, {"max_calls": 1, "ignore_failed": True}]},
    {"trajectory": {"expected": ["b"], "before": ["a", "b"], "reads": ["a"]}},
    {"trajectory": {"expected": ["*", "b"], "before": ["a", "b"]}},
    {"trajectory": {"expected": ["b", "a"], "before": ["a", "b"], "match_mode": "unordered"}},
    {"trajectory": {"expected": [call("b", x=optional(1)), "a", before("a", call("b", x=1))]}},
    {"trajectory": {"expected": ["a", "b", "a", before("a", "b")]}},
    {"turns": None, "goal": "g", "user_tools": {"look": 1}, "trajectory": {"forbidden": ["loo?"]}},
]


@pytest.mark.parametrize("options", AGREEMENTS, ids=[str(at) for at in range(len(AGREEMENTS))])
def test_what_can_be_is_none(options: dict[str, Any]) -> None:
    """What a conversation may meet, if only in one way, is let be."""
    assert scenario("s", **{"turns": ["Hi.", "Bye."], **options})
