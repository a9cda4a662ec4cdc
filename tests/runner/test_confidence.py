"""Confidence of a scenario's and a run's figures, computed from their conversations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import (
    conversation,
    conversation_result,
    failing_conversation,
    failure,
    scenario_result,
    scored,
    turn_evaluation,
)

from agentest.domain.figures import intervals, pass_rate, run_pass_hat_k, run_pass_rate, scenario_pass_hat_k
from agentest.domain.results import CaseId, ConversationResult, Figure
from agentest.domain.transcript import Blame
from agentest.domain.verdict import averages
from agentest.support.statistics.intervals import wilson


def passing(count: int, failing: int = 0) -> list[ConversationResult]:
    """Conversations, `failing` of which fail."""
    return [
        *(conversation_result(f"p{n}") for n in range(count)),
        *(failing_conversation(f"f{n}") for n in range(failing)),
    ]


def errored(id: str = "e") -> ConversationResult:
    """A conversation that the user's model broke off."""
    return conversation_result(id, held=conversation(id, [], failure(Blame.MODEL)))


def test_a_scenario_whose_conversations_disagree() -> None:
    """If two of three pass, the rate has Wilson's interval, pass^k falls, and the scenario is flaky."""
    found = scenario_result(conversations=passing(2, 1))
    sure = wilson(2, 3)
    assert sure
    assert found.pass_rate == Figure(2 / 3, 3, sure.low, sure.high)
    assert scenario_pass_hat_k(found.pass_rate) == [pytest.approx(2 / 3), pytest.approx(1 / 3), 0.0]
    assert len(scenario_pass_hat_k(found.pass_rate, 2)) == 2
    assert found.flaky


@pytest.mark.parametrize(("count", "failing"), [(3, 0), (0, 3), (1, 0)])
def test_conversations_that_agree_are_not_flaky(count: int, failing: int) -> None:
    """If all pass or all fail, a scenario is not flaky, whatever its verdict."""
    assert not scenario_result(conversations=passing(count, failing)).flaky


def test_a_scenario_may_pass_and_be_flaky() -> None:
    """A scenario that meets its pass rate can still be flaky."""
    found = scenario_result(conversations=passing(3, 1), thresholds={"pass_rate": 0.5})
    assert (found.verdict.passed, found.flaky) == (True, True)


def test_unknown_conversations_do_not_count() -> None:
    """Errored and invalid conversations are not in n and do not make a scenario flaky."""
    invalid = replace(failing_conversation("i"), invalid="made up a booking")
    found = pass_rate([*passing(2), errored(), invalid])
    assert found
    assert (found.value, found.n) == (1.0, 2)
    assert pass_rate([errored(), invalid]) is None
    assert pass_rate([]) is None
    assert not scenario_result(conversations=[*passing(2), errored(), invalid]).flaky


def test_a_case_of_an_evaluation_set_has_no_pass_rate() -> None:
    """Its runs are averaged and do not pass individually; its averages have intervals."""
    found = scenario_result(conversations=passing(2, 1), case=CaseId("set", "case"))
    assert (found.pass_rate, found.flaky) == (None, False)
    assert found.intervals.keys() == found.averages.keys()


def judged(*values: float, metric: str = "helpfulness", id: str = "c") -> ConversationResult:
    """A conversation with one score per turn and no goal."""
    turns = [turn_evaluation(n, {metric: scored(value)}) for n, value in enumerate(values)]
    return conversation_result(id, turns, {})


def test_each_average_has_its_figure() -> None:
    """The value is the average, n the number of scores, and the interval one over conversations."""
    held = [judged(3, 3), judged(4, 4), judged(5, 5), replace(judged(1), invalid="made up a fact")]
    found = intervals(held, averages(held))["helpfulness"]
    assert (found.value, found.n) == (4.0, 6)
    assert found.low == pytest.approx(4 - 4.303 / 3**0.5)
    assert found.high == 5.0


def test_equal_scores_are_not_certain() -> None:
    """Three equal scores still have an interval; for a custom metric, whose scale is unknown, none."""
    held = [judged(5), judged(5), judged(5)]
    assert intervals(held, averages(held))["helpfulness"].low == pytest.approx(2.754, abs=1e-3)
    own = [judged(7, metric="politeness"), judged(7, metric="politeness")]
    assert intervals(own, averages(own)) == {"politeness": Figure(7.0, 2)}


def test_zeros_and_ones_are_a_rate() -> None:
    """Zeros and ones, one per conversation, have Wilson's interval, also for custom metrics."""
    goal = [conversation_result(str(n), [], {"goal_completion": scored(n % 2)}) for n in range(4)]
    own = [judged(n % 2, metric="solved") for n in range(4)]
    sure = wilson(2, 4)
    assert sure
    for held, name in ((goal, "goal_completion"), (own, "solved")):
        assert intervals(held, averages(held)) == {name: Figure(0.5, 4, sure.low, sure.high)}


def test_labels_have_no_figure() -> None:
    """A metric with labels has no average, so it has no interval."""
    held = [judged("no failure", metric="agent_behavior_failure")]  # type: ignore[arg-type]
    assert intervals(held, averages(held)) == {}


def test_the_rate_of_a_run() -> None:
    """A rate covers all conversations, clustered by scenario across agents."""
    good, bad = passing(6), passing(0, 6)
    differing = [scenario_result("a", good), scenario_result("b", bad), scenario_result("c", good)]
    alike = [scenario_result(name, passing(4, 2)) for name in "abc"]
    found, even = run_pass_rate(differing), run_pass_rate(alike)
    assert found
    assert even
    assert (found.value, found.n) == (even.value, even.n) == (pytest.approx(2 / 3), 18)
    assert found.low is not None
    assert even.low is not None
    assert found.low < even.low
    twice = [scenario_result("a", passing(3, 3), agent=agent) for agent in ("one", "two")]
    sure, both = wilson(6, 12), run_pass_rate(twice)
    assert sure
    assert both == Figure(0.5, 12, sure.low, sure.high)
    assert run_pass_rate([scenario_result("none", [errored()])]) is None


def test_pass_hat_k_of_a_run() -> None:
    """It is the mean over scenarios of several conversations, for every k that each of them has."""
    several = [scenario_result("a", passing(3)), scenario_result("b", passing(1, 1))]
    assert run_pass_hat_k([*several, scenario_result("script", passing(1))], 9) == {1: 0.75, 2: 0.5}
    assert run_pass_hat_k(several, 1) == {1: 0.75}
    assert run_pass_hat_k([scenario_result("script", passing(1))], 9) == {}
