"""Contradictory parts of a scenario: both are named before any conversation runs."""

from __future__ import annotations

from typing import Any

import pytest

from agentest import ScenarioError, before, number, scenario

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
    (
        {"turns": None, "goal": "g", "user_tools": {"look": 1}, "trajectory": {"forbidden": ["look"]}},
        "trajectory: look is one of the `user_tools`, whose calls are in no trajectory; use",
    ),
]


@pytest.mark.parametrize(("options", "said"), CONTRADICTIONS, ids=[said for _, said in CONTRADICTIONS])
def test_contradictory_options_are_refused(options: dict[str, Any], said: str) -> None:
    """An expectation that no conversation could meet is an error that names both keys."""
    with pytest.raises(ScenarioError) as error:
        scenario("s", **{"turns": ["Hi.", "Bye."], **options})
    assert said in str(error.value)


AGREEMENTS: list[dict[str, Any]] = [
    {"expect": [{"says": "refund"}, {"never_says": "not refunded"}]},
    {"expect": [{"says": "x", "in_turn": 0}, {"never_says": "x", "in_turn": 1}]},
    {"turns": [IN_TURN, "Bye."], "expect": {"never_says": "yes", "in_turn": 1}},
    {"trajectory": {"max_turns": 2}},
    {"trajectory": {"max_turns": 1}},
    {"trajectory": [{"expected": ["a"]}, {"forbidden": ["a"]}]},
    {"trajectory": {"expected": ["b", "a", before("a", "b")], "max_calls": 1}},
    {"trajectory": {"before": [["a", "b"], ["b", "a"]], "expected": ["a"], "max_calls_per_tool": 0}},
    {"turns": None, "goal": "g", "user_tools": {"look": 1}, "trajectory": {"forbidden": ["loo?"]}},
]


@pytest.mark.parametrize("options", AGREEMENTS, ids=[str(at) for at in range(len(AGREEMENTS))])
def test_options_that_can_be_met_are_accepted(options: dict[str, Any]) -> None:
    """Options that some conversation could meet are accepted, even if most conversations fail them."""
    assert scenario("s", **{"turns": ["Hi.", "Bye."], **options})
