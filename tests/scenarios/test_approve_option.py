"""The option `approve`, and how trajectories and stores treat calls that wait for approval."""

from __future__ import annotations

from typing import Any

import pytest

from agentest import scenario
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import ToolCall, waiting
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.store.codec import CODECS
from agentest.store.dataclass_codec import Codecs
from agentest.support.errors import ScenarioError
from agentest.trajectory.call_facts import CallView
from agentest.trajectory.matcher import TrajectoryMatcher


@pytest.mark.parametrize(
    ("approve", "said"),
    [("yes", "true, false, or a dict"), ({}, "at least one tool"), ({"pay": "yes"}, "approve.pay")],
)
def test_the_answer_is_checked(approve: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        scenario("s", turns=["Pay"], approve=approve)
    with pytest.raises(ScenarioError, match=said):
        scenario("s", turns=[{"user_message": "Pay", "approve": approve}])


PAID = ToolCall("pay", {}, None, False, 0, seen_by=SeenBy.AGENT)


DENIED = ToolCall("pay", {}, "ok", False, 0, seen_by=SeenBy.AGENT, approval=Approval.DENIED)


@pytest.mark.parametrize(
    ("spec", "call", "of_turn", "said"),
    [
        ({"expected": ["pay"]}, waiting(PAID), False, "pay waits for the user's approval (call 1)"),
        ({"expected": []}, waiting(PAID), False, "unexpected calls were made: pay"),
        ({"expected": []}, waiting(PAID), True, None),
        ({"max_calls": 0}, waiting(PAID), False, "1 call was made, at most 0"),
        ({"max_calls_per_tool": {"pay": 0}}, waiting(PAID), True, "pay was called 1 time"),
        ({"expected": [{"name": "pay", "result": "ok"}]}, waiting(PAID), False, "pay"),
        ({"expected": [{"name": "pay", "result": "ok"}]}, DENIED, False, "pay"),
        ({"expected": ["pay"]}, DENIED, False, None),
        ({"forbidden": ["pay"]}, DENIED, False, "forbidden calls were made: pay"),
        ({"expected": [], "ignore_failed": True}, waiting(PAID), False, "unexpected calls were made: pay"),
    ],
)
def test_trajectories(spec: Any, call: ToolCall, of_turn: bool, said: str | None) -> None:
    """A waiting call counts for bans and limits and meets no expectation; a denied one has no result."""
    found = TrajectoryMatcher(parse_trajectory(spec)).match([call], 1, CallView(of_turn=of_turn))
    assert found is not None
    assert (found.matched, found.error) == (said is None, None)
    assert said is None or said in found.summary


def test_how_it_is_stored() -> None:
    """The state of the approval is stored with the call, only if the agent requested one."""
    codecs: Codecs = CODECS
    stored = codecs.write(waiting(PAID))
    assert stored["approval"] == "pending"
    assert codecs.read(ToolCall, stored) == waiting(PAID)
    assert "approval" not in codecs.write(PAID)
