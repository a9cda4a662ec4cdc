"""Where calls or a state say whether the goal was reached, they decide, and the judge stands beside them."""

from __future__ import annotations

from typing import Any

import pytest

from agentest import scenario
from agentest.results import ScenarioResult, Status
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call

BOOKS = {"match_mode": "contains", "expected": ["book"]}
WITHIN = {"match_mode": "within", "expected": ["book"]}


def ran(goal: int, agent: list[Any], trajectory: Any = BOOKS, **options: Any) -> ScenarioResult:
    """A scenario whose judge gives the goal 1 or 0, under a configuration that wants all goals reached."""
    made = scenario(
        "books",
        goal="Book.",
        turns=["Book it."],
        trajectory=trajectory,
        tools={"book": {"ok": True}},
        **options,
    )
    model = ScriptedModel(scores={"goal_completion": goal})
    with ScriptedAgent(agent) as opened:
        result = run_scenarios([made], agent=opened, model=model, thresholds={"goal_completion": 1})
    return result.scenarios[0]


DOES, FAILS = [tool_call("book"), "Booked."], ["Booked."]


@pytest.mark.parametrize(
    ("goal", "agent", "options", "status", "warns"),
    [
        (1, DOES, {}, Status.PASSED, None),
        (0, DOES, {}, Status.PASSED, "the goal was not reached in books-1, though calls and state"),
        (1, FAILS, {}, Status.FAILED, "the goal was reached in books-1, though calls or state"),
        (0, FAILS, {}, Status.FAILED, None),
        (0, DOES, {"thresholds": {"goal_completion": 1}}, Status.FAILED, "though calls and state"),
        (0, DOES, {"trajectory": WITHIN}, Status.FAILED, None),
        (0, DOES, {"trajectory": {"max_calls": 3}}, Status.FAILED, None),
    ],
    ids=["both", "judge says no", "judge says yes", "neither", "own threshold", "may call", "limits calls"],
)
def test_a_required_call_decides(
    goal: int, agent: list[Any], options: Any, status: Status, warns: str | None
) -> None:
    """The configuration's threshold on the goal gives way to a required call, the scenario's own does not."""
    found = ran(goal, agent, **options)
    assert found.verdict.status is status
    assert len(found.warnings) == (warns is not None)
    if warns:
        assert warns in found.warnings[0]
        assert found.warnings[0].endswith(": scripted")
    without = "goal_completion" not in found.thresholds
    assert found.information == (("goal_completion",) if without else ())
    assert found.averages["goal_completion"] == goal
