"""The goal decides, whatever calls and states show; warnings about goals and expected outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from agentest import scenario
from agentest.domain.end_reason import Ending
from agentest.domain.results import (
    CheckResult,
    ConversationResult,
    GoalOutcome,
    ScenarioResult,
    Score,
    Status,
    TrajectoryResult,
    TurnEvaluation,
)
from agentest.domain.transcript import Conversation, Turn
from agentest.runner.run_summary import disagreements
from agentest.store.codec import CODECS
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call

BOOKS = {"match_mode": "contains", "expected": ["book"]}
WITHIN = {"match_mode": "within", "expected": ["book"]}


def ran(
    goal: int, agent: list[Any], trajectory: Any = BOOKS, threshold: float | None = None, **options: Any
) -> ScenarioResult:
    """Run a scenario whose judge scores the goal 1 or 0, with or without a threshold on it."""
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
        thresholds = {} if threshold is None else {"goal_completion": threshold}
        result = run_scenarios([made], agent=opened, model=model, thresholds=thresholds, strict=False)
    return result.scenarios[0]


DOES, FAILS = [tool_call("book"), "Booked."], ["Booked."]


@pytest.mark.parametrize(
    ("goal", "agent", "options", "status", "warns"),
    [
        (1, DOES, {}, Status.PASSED, None),
        (0, DOES, {}, Status.FAILED, "the goal was not reached in books-1, but the required calls"),
        (1, FAILS, {}, Status.FAILED, "the goal was reached in books-1, but the required calls"),
        (0, FAILS, {}, Status.FAILED, None),
        (0, DOES, {"trajectory": WITHIN}, Status.FAILED, None),
        (0, DOES, {"trajectory": {"max_calls": 3}}, Status.FAILED, None),
    ],
    ids=["both", "judge says no", "judge says yes", "neither", "may call", "limits calls"],
)
@pytest.mark.parametrize("threshold", [None, 1])
def test_a_missed_goal_fails_whatever_the_calls_say(
    goal: int, agent: list[Any], options: Any, status: Status, warns: str | None, threshold: float | None
) -> None:
    """Matching calls change neither the default nor a configured threshold; they only add a warning."""
    found = ran(goal, agent, threshold=threshold, **options)
    assert found.verdict.status is status
    assert found.totals.passed == (status is Status.PASSED)
    assert len(found.warnings) == (warns is not None)
    if warns:
        assert warns in found.warnings[0]
        assert found.warnings[0].endswith(": scripted")
    assert found.averages["goal_completion"] == goal


def test_a_met_threshold_forgives_missed_goals() -> None:
    """Only the threshold decides; the conversation still counts as not passed."""
    found = ran(0, DOES, threshold=0)
    assert found.verdict.status is Status.PASSED
    assert found.totals.passed == 0
    assert found.pass_rate is not None
    assert found.pass_rate.value == 0


def judged(
    outcome: GoalOutcome | None, *, state: CheckResult | None = None, **more: Any
) -> ConversationResult:
    turns = (TurnEvaluation(0, checks=(state,)),) if state else ()
    metrics = {"goal_completion": Score(outcome.value_of_goal, "Why.", outcome=outcome)} if outcome else {}
    return ConversationResult(
        Conversation("s-1", (Turn(0, "hi", "hello"),), Ending.SCRIPT), turns, metrics, **more
    )


def check(*, passed: bool, error: str | None = None, name: str = "final_session_state") -> CheckResult:
    return CheckResult(check=name, passed=passed, summary="paid is true", error=error)


BY_STATE = scenario("s", turns=["hi"], final_session_state={"paid": True})
REACHED, RIGHTLY, MISSED = GoalOutcome.REACHED, GoalOutcome.RIGHTLY_NOT_REACHED, GoalOutcome.NOT_REACHED


@pytest.mark.parametrize(
    ("found", "warns"),
    [
        (judged(MISSED, state=check(passed=True)), "not reached in s-1, but"),
        (judged(REACHED, state=check(passed=False)), "reached in s-1, but"),
        (judged(RIGHTLY, state=check(passed=True)), None),
        (judged(RIGHTLY, state=check(passed=False)), None),
        (judged(MISSED, state=check(passed=False)), None),
        (judged(REACHED, state=check(passed=False, error="no state")), None),
        (judged(REACHED, trajectory=TrajectoryResult(matched=False, summary="too many")), None),
        (judged(None, state=check(passed=False)), None),
    ],
)
def test_goal_and_calls_disagree(found: ConversationResult, warns: str | None) -> None:
    """Only if both are known and differ; a correct refusal is not a disagreement."""
    warnings = disagreements(BY_STATE, [found])
    assert [warns in text for text in warnings if warns] == ([True] if warns else [])
    assert bool(warnings) is (warns is not None)


def test_an_outcome_without_a_goal_has_its_threshold() -> None:
    """The configuration's threshold on the goal applies to a script with only an expected outcome."""
    by_outcome = scenario("s", turns=["hi"], expected_outcome="It is refused.")
    with ScriptedAgent(["no"]) as agent:
        run = run_scenarios([by_outcome], agent=agent, thresholds={"goal_completion": 1, "helpfulness": 4})
    assert dict(run.scenarios[0].thresholds) == {"goal_completion": 1}


@pytest.mark.parametrize(
    ("goal", "metrics", "status"),
    [(0, None, Status.FAILED), (1, None, Status.PASSED), (0, ["helpfulness"], Status.FAILED)],
    ids=["missed", "came about", "missed, metric not named"],
)
def test_an_expected_outcome_decides(goal: int, metrics: list[str] | None, status: Status) -> None:
    """It is judged even if `metrics` omits the goal, because it defines success."""
    made = scenario("refused", turns=["hi"], expected_outcome="It is refused.", metrics=metrics)
    model = ScriptedModel(scores={"goal_completion": goal})
    with ScriptedAgent(["no"]) as agent:
        [found] = run_scenarios([made], agent=agent, model=model).scenarios
    assert found.verdict.status is status


def test_an_expected_outcome_without_a_model_is_errored() -> None:
    """No model can judge it, so the scenario does not pass, and no rate counts the conversation."""
    made = scenario("refused", turns=["hi"], expected_outcome="It is refused.")
    with ScriptedAgent(["no"]) as agent:
        [found] = run_scenarios([made], agent=agent).scenarios
    assert found.verdict.status is Status.ERRORED
    assert (
        "the scenario has an `expected_outcome`, but no model configured" in found.verdict.reasons[0].message
    )
    assert found.pass_rate is None


@pytest.mark.parametrize(
    ("options", "settings", "warning"),
    [
        ({"thresholds": {"goal_completion": 0}}, {}, None),
        (
            {"metrics": ["helpfulness", "goal_completion"]},
            {"thresholds": {"goal_completion": 0}},
            "no `goal`",
        ),
    ],
    ids=["threshold", "no goal"],
)
def test_an_unjudged_outcome_is_a_warning(
    options: dict[str, Any], settings: dict[str, Any], warning: str | None
) -> None:
    """A scenario that describes its outcome has a warning if no judge evaluates it."""
    made = scenario("s", turns=["hi"], expected_outcome="It is refused.", **options)
    model = ScriptedModel(scores={"goal_completion": "not reached"})
    with ScriptedAgent([tool_call("x"), "no"]) as agent:
        found = run_scenarios([made], agent=agent, model=model, unmocked_tools="passthrough", **settings)
    [result] = found.scenarios
    told = [text for text in result.warnings if "decide," not in text]
    assert [warning in text for text in told if warning] == ([True] if warning else [])
    assert bool(told) is (warning is not None)


@pytest.mark.parametrize(
    ("agent", "options", "warns"),
    [
        (["no"], {"metrics": ["tool_call_behavior_failure"]}, True),
        (["no"], {"metrics": ["tool_call_behavior_failure"], "tools": {"x": 1}}, False),
        ([tool_call("x"), "no"], {"metrics": ["tool_call_behavior_failure"]}, False),
        (["no"], {"metrics": ["helpfulness"]}, False),
        (["no"], {}, False),
    ],
    ids=["named", "tool known", "call seen", "another", "by default"],
)
def test_a_named_metric_judged_in_no_turn_is_a_warning(
    agent: list[Any], options: dict[str, Any], warns: bool
) -> None:
    """If `metrics` names the metric of tool calls and no tool is known, a warning says so."""
    made = scenario("s", goal="g", turns=["hi"], **options)
    with ScriptedAgent(agent) as opened:
        found = run_scenarios([made], agent=opened, model=ScriptedModel(), unmocked_tools="passthrough")
    told = found.scenarios[0].warnings
    assert ["judged in no turn" in text for text in told] == ([True] if warns else [])


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_goal_that_is_left_open_errors_the_scenario(threshold: float | None) -> None:
    """A script that ends while the agent rightly waits proves nothing, and the results say so."""
    thresholds = {} if threshold is None else {"goal_completion": threshold}
    made = scenario("s", goal="Book.", turns=["Book it."], thresholds=thresholds)
    model = ScriptedModel(scores={"goal_completion": "left open"})
    with ScriptedAgent(["For which day?"]) as agent:
        result = run_scenarios([made], agent=agent, model=model)
    [found] = result.scenarios
    assert found.verdict.status is Status.ERRORED
    assert "goal_completion" not in found.averages
    assert any(
        "left open: the script ended while the agent was waiting" in each.message
        for each in found.verdict.reasons
    )
    written = CODECS.write(found.conversations[0])
    assert written["evaluation"]["goalCompletion"]["outcome"] == "left open"
    assert CODECS.read(ConversationResult, written).metrics == found.conversations[0].metrics


def test_a_scenario_can_expect_that_its_goal_is_left_open() -> None:
    """The judge is told that waiting may be the expected outcome, and then answers that it came about."""
    made = scenario("s", turns=["Book it."], expected_outcome="The agent asks for the day, and waits.")
    model = ScriptedModel(scores={"goal_completion": "reached"})
    with ScriptedAgent(["For which day?"]) as agent:
        result = run_scenarios([made], agent=agent, model=model)
    assert result.scenarios[0].verdict.status is Status.PASSED
    [request] = model.requests
    asked = "\n".join(message["content"] for message in request.messages)
    assert "An expected outcome may be that the assistant asks or waits: then that is the goal." in asked
    assert "The test ended it: its script has no further message." in asked
