"""Calls reported without arguments: anything that depends on arguments stays undecided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentest import call
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, ToolCall, call_text
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.trajectory.matcher import TrajectoryMatcher

PAID = ToolCall("pay", None, {"ok": True}, False, 0, ARGUMENTS_UNKNOWN, seen_by=SeenBy.AGENT)


@pytest.mark.parametrize(
    ("spec", "matched"),
    [
        ({"match_mode": "contains", "expected": ["pay"]}, True),
        ({"match_mode": "contains", "expected": [call("pay", amount=5)]}, None),
        ({"match_mode": "contains", "expected": [call("look", item="lamp")]}, False),
        ({"forbidden": ["pay"]}, False),
        ({"forbidden": [call("pay", amount=5)]}, None),
        ({"forbidden": [call("look", item="lamp")]}, True),
    ],
    ids=["name", "arguments", "another", "banned", "banned_arguments", "banned_another"],
)
def test_trajectories(spec: dict[str, Any], matched: bool | None) -> None:
    """Names are compared; if arguments matter, the result is errored (None)."""
    result = TrajectoryMatcher(parse_trajectory(spec)).match([PAID])
    assert result is not None
    if matched is None:
        assert result.error == "pay: the agent does not report its arguments"
    else:
        assert (result.matched, result.error) == (matched, None)


@pytest.mark.parametrize(
    ("forbidden", "matched"), [("pay", False), ("p*", False), (call("pay", amount=5), True)]
)
def test_a_call_with_unreadable_arguments_is_forbidden_by_its_name(forbidden: Any, matched: bool) -> None:
    result = TrajectoryMatcher(parse_trajectory({"forbidden": [forbidden]})).match(
        [replace(PAID, args="{broken", invalid_arguments=None)]
    )
    assert result is not None
    assert (result.matched, result.error) == (matched, None)


def test_the_text_of_a_call_without_arguments() -> None:
    assert call_text(PAID) == "pay(arguments not told)"
