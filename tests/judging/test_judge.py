"""Calling a model for a metric: samples, spread, invalid answers (contract, section 6)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import scenario
from agentest.domain.metrics import BUILTIN, NO_FAILURE
from agentest.domain.results import (
    CriterionOutcome,
    Evidence,
    GoalOutcome,
    MetricResult,
    Score,
    Severity,
    Status,
    Unscored,
)
from agentest.judging.answers import ANSWERS, CriterionAnswer, criterion_result, score_of
from agentest.judging.judge import Judge
from agentest.judging.judge_input import JudgeQuestion
from agentest.models.admission import LocalGate
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.circuit import Places
from agentest.models.port import CallKey, ChatRequest, Ledger, TransientError
from agentest.models.structured_output import StructuredModel, Unreadable, answer_schema, read
from agentest.scenarios.model import Criterion
from agentest.support.errors import ModelUnavailable
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call

KEY = CallKey("judge", "s", 1, 0)
DOWN = object()
"""As an answer: the model cannot be reached."""


def ask(model: ScriptedModel, metric: str, samples: int = 1) -> MetricResult:
    answers = LiveModel(model, Ledger(), LocalGate("m", Places(8)), patience=RetryPolicy(retries=0))
    return judged(Judge(StructuredModel(answers), samples), metric)


def judged(judge: Judge, metric: str) -> MetricResult:
    question = JudgeQuestion(metric)
    answers = anyio.run(judge.ask, [question], ("context",), KEY)[question]
    return (
        score_of(metric, answers.usable, answers.requested) if answers.usable else Unscored(answers.problem)
    )


def answering(values: Sequence[Any]) -> ScriptedModel:
    """A model that answers sample n with the n-th value."""

    def answer(request: ChatRequest) -> dict[str, Any]:
        value = values[request.key.sample]
        if value is DOWN:
            raise TransientError("503: down")
        return {"reason": f"sample {request.key.sample}", "value": value}

    return ScriptedModel(answer=answer)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 3, 5]).flatmap(lambda n: st.lists(st.integers(1, 5), min_size=n, max_size=n)))
def test_numbers_take_the_median_and_keep_the_spread(values: list[int]) -> None:
    """The value is the median, the reason comes from a sample with that value, and all samples are stored."""
    result = ask(answering(values), "helpfulness", len(values))
    assert isinstance(result, Score)
    assert result.value == median(values)
    assert values[int(result.reason.removeprefix("sample "))] == result.value
    assert result.samples == (tuple(values) if len(values) > 1 else ())


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([3, 5]).flatmap(
        lambda n: st.lists(
            st.sampled_from(list(BUILTIN["agent_behavior_failure"].labels)[:3]), min_size=n, max_size=n
        )
    )
)
def test_labels_take_the_majority(values: list[str]) -> None:
    """The value is the label of the majority, and all samples are stored."""
    result = ask(answering(values), "agent_behavior_failure", len(values))
    assert isinstance(result, Score)
    assert result.samples == tuple(values)
    for label in set(values):
        assert 2 * values.count(label) <= len(values) or result.value == label


def behavior(*answers: dict[str, Any]) -> Score:
    """The behavior score of a turn for these answers."""
    read = [ANSWERS["agent_behavior_failure"].model_validate({"reason": "r", **each}) for each in answers]
    score = score_of("agent_behavior_failure", read, len(read))
    assert isinstance(score, Score)
    return score


def labelled(*values: str) -> Score:
    return behavior(*({"value": value} for value in values))


def test_judges_agree_first_on_whether_it_failed() -> None:
    """If most samples saw a failure but disagree on which, the turn fails with the worse label."""
    assert labelled(NO_FAILURE, "repetition", "unsafe state").value in ("repetition", "unsafe state")
    assert labelled(NO_FAILURE, NO_FAILURE, "unsafe state").value == NO_FAILURE


def test_a_label_that_half_of_the_failing_answers_name_is_dropped() -> None:
    """A second label needs more than half of them."""
    answers = [{"labels": ["repetition"]}, {"labels": ["repetition", "unsafe state"]}]
    assert behavior(*answers).labels == ("repetition",)
    assert behavior(*answers, answers[1]).labels == ("unsafe state", "repetition")


def test_a_turn_may_fail_in_several_ways() -> None:
    """All valid labels are stored, the worst is the value, and unknown labels are dropped."""
    score = behavior({"value": "repetition", "labels": ["repetition", "false information", "rude"]})
    assert score.value == "false information"
    assert score.labels == ("false information", "repetition")
    assert labelled("repetition").labels == ("repetition",)
    assert labelled(NO_FAILURE).labels == ()


def test_no_failure_with_an_unknown_label_is_refused() -> None:
    """`no failure` together with an unknown label is refused, so it never counts as a pass."""
    with pytest.raises(ValueError, match="names other failures than"):
        behavior({"value": NO_FAILURE, "labels": ["Unsafe Action"]})
    for labels in ([NO_FAILURE], [], ["none"], None):
        assert behavior({"value": NO_FAILURE, "labels": labels}).value == NO_FAILURE


def test_a_severe_grade_without_a_label_is_refused() -> None:
    """An answer graded critical or high without a label is refused; a low grade means no failure."""
    for severity in ("critical", "high"):
        with pytest.raises(ValueError, match=f"names no label, but the severity '{severity}'"):
            behavior({"labels": [], "severity": severity})
    for careless in ("medium", "low", "none", None):
        assert behavior({"labels": [], "severity": careless}).value == NO_FAILURE
    assert behavior({"labels": ["repetition"], "severity": "critical"}).severity is Severity.CRITICAL


def read_labels(**given: Any) -> list[str]:
    answer = ANSWERS["agent_behavior_failure"]
    labels: list[str] = read(json.dumps({"reason": "r", **given}), answer).labels  # type: ignore[attr-defined]
    return labels


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        ({"labels": []}, []),
        ({"labels": ["none"]}, []),
        ({"labels": ["no failure"]}, []),
        ({"labels": ["repetition", "unsafe action"]}, ["unsafe action", "repetition"]),
        ({"labels": "repetition"}, ["repetition"]),
        ({"value": None, "labels": ["repetition"]}, ["repetition"]),
        ({"value": "no failure"}, []),
        ({"value": "no failure", "labels": []}, []),
        ({"value": "no failure", "labels": ["none", ""]}, []),
        ({"value": "repetition"}, ["repetition"]),
        ({"value": "repetition", "labels": []}, ["repetition"]),
        ({"value": "repetition", "labels": ["unsafe action"]}, ["unsafe action", "repetition"]),
        ({"value": "repetition", "labels": ["rude", 7]}, ["repetition"]),
    ],
)
def test_labels_are_read_in_both_forms(given: dict[str, Any], labels: list[str]) -> None:
    """The list of labels is the answer, and an empty one is `no failure`; the old form also has a value."""
    assert read_labels(**given) == labels


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"labels": None},
        {"labels": 7},
        {"labels": ["rude"]},
        {"labels": [""]},
        {"labels": [7]},
        {"labels": [None]},
        {"labels": ""},
        {"labels": {"repetition": True}},
        {"labels": ["no failure", "repetition"]},
        {"labels": [["repetition"]]},
        {"value": None},
        {"value": "rude"},
        {"value": "rude", "labels": ["repetition"]},
        {"value": ["repetition"]},
        {"value": {"a": 1}, "labels": []},
        {"value": 0, "labels": []},
        {"value": False, "labels": []},
        {"value": "no failure", "labels": ["repetition"]},
        {"value": "no failure", "labels": ["rude"]},
    ],
)
def test_ambiguous_labels_are_refused(given: dict[str, Any]) -> None:
    """An ambiguous answer is refused and never counts as no failure."""
    with pytest.raises(Unreadable):
        read_labels(**given)


def test_labels_have_one_form_in_the_schema() -> None:
    """The schema has only the list of failure labels."""
    for name in ("agent_behavior_failure", "tool_call_behavior_failure"):
        schema = answer_schema(ANSWERS[name])
        evidence = ["evidence"] if name == "agent_behavior_failure" else []
        assert list(schema["properties"]) == ["reason", *evidence, "labels", "severity"]
        assert schema["properties"]["labels"]["items"]["enum"] == list(BUILTIN[name].labels)[1:]


def test_the_evidence_of_a_falsehood() -> None:
    """A false statement stores whether it is contradicted or unsupported; other labels have no evidence."""
    false = {"value": "false information", "labels": ["false information"]}
    assert behavior({**false, "evidence": "unsupported"}).evidence is Evidence.UNSUPPORTED
    assert behavior({**false, "evidence": "supported"}).evidence is None
    assert behavior(false).evidence is None
    assert behavior({"value": "repetition", "evidence": "contradicted"}).evidence is None
    worse = {"value": "unsafe action", "labels": ["false information"], "evidence": "contradicted"}
    assert behavior(worse).evidence is Evidence.CONTRADICTED


@pytest.mark.parametrize(
    ("outcomes", "value", "outcome"),
    [
        (["reached"], 1, "reached"),
        (["rightly not reached"], 1, "rightly not reached"),
        (["not reached"], 0, "not reached"),
        (["reached", "rightly not reached", "not reached"], 1, "reached"),
        (["reached", "not reached", "not reached"], 0, "not reached"),
        (["reached wrongly"], 0, "reached wrongly"),
        (["reached", "reached", "reached wrongly"], 1, "reached"),
        (["reached", "reached wrongly", "not reached"], 0, "reached wrongly"),
        (["not reached", "reached wrongly", "not reached"], 0, "not reached"),
        (["rightly not reached", "reached", "reached wrongly", "reached", "not reached"], 1, "reached"),
    ],
    ids=[
        "reached",
        "rightly",
        "not",
        "most-say-one",
        "most-say-not",
        "wrongly",
        "one-says-wrongly",
        "tie-of-misses",
        "most-misses",
        "four-outcomes",
    ],
)
def test_the_outcome_of_a_goal(outcomes: list[str], value: int, outcome: str) -> None:
    """A goal rightly not reached counts as reached and is marked; samples vote."""
    answers = [ANSWERS["goal_completion"].model_validate({"reason": o, "outcome": o}) for o in outcomes]
    score = score_of("goal_completion", answers, len(answers))
    assert isinstance(score, Score)
    assert (score.value, score.outcome, score.reason) == (value, GoalOutcome(outcome), outcome)


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (["left open"], "left open: the script ended while"),
        (["left open", "reached", "left open"], "left open: the script ended while"),
        (["left open", "reached"], "none has a majority: left open (1), reached (1)"),
        (["reached", "left open", "not reached"], "none has a majority"),
    ],
)
def test_a_goal_that_is_left_open_has_no_value(outcomes: list[str], told: str) -> None:
    """It counts neither as reached nor as missed; a majority of the samples is needed for each."""
    answers = [ANSWERS["goal_completion"].model_validate({"reason": o, "outcome": o}) for o in outcomes]
    result = score_of("goal_completion", answers, len(answers))
    assert isinstance(result, Unscored)
    assert told in result.error
    assert result.outcome is (GoalOutcome.LEFT_OPEN if told.startswith("left open") else None)


def test_an_even_split_decides_nothing() -> None:
    """If the valid samples are evenly split, the metric is unscored."""
    turn = ask(answering([NO_FAILURE, DOWN, "unsafe state"]), "agent_behavior_failure", 3)
    told = "the judge's 2 answers differ, and none has a majority: no failure (1), unsafe state (1)"
    assert turn == Unscored(told)
    goal = ask(answering([1, 0, DOWN]), "goal_completion", 3)
    assert isinstance(goal, Unscored)
    assert goal.error.endswith(": reached (1), not reached (1)")
    outcomes = (CriterionOutcome.MET, CriterionOutcome.VIOLATED)
    answers = [CriterionAnswer(reason="r", turn=0, result=outcome) for outcome in outcomes]
    criterion = criterion_result(Criterion("Is polite"), answers, 3, 1)
    assert (criterion.result, criterion.turn_index) == (CriterionOutcome.CANNOT_TELL, None)
    assert criterion.reason == "the answers differ: met: r; violated: r"


def test_faithfulness_keeps_its_evidence() -> None:
    """The score has the evidence of the answer that gave its value, or none."""
    shape = ANSWERS["faithfulness"]
    read = [
        shape.model_validate({"reason": "r", "value": value, "evidence": evidence})
        for value, evidence in ((5, "supported"), (2, "unsupported"), (2, None))
    ]
    scores = score_of("faithfulness", read, 3), score_of("faithfulness", read[2:], 1)
    assert [s.evidence for s in scores if isinstance(s, Score)] == [Evidence.UNSUPPORTED, None]


@pytest.mark.parametrize(
    ("values", "value"),
    [([4, DOWN, 4], 4), ([DOWN, 2, 2], 2), ([5, 3, DOWN], 3), ([3, DOWN, DOWN], None), ([DOWN], None)],
)
def test_most_samples_are_enough(values: list[Any], value: int | None) -> None:
    """A score needs more than half of its samples; otherwise it is unscored with the judge's error."""
    result = ask(answering(values), "relevance", len(values))
    if value is None:
        assert isinstance(result, Unscored)
        assert "503: down" in result.error
    else:
        assert isinstance(result, Score)
        assert result.value == value
        assert len(result.samples) == len([v for v in values if v is not DOWN])


BAD: dict[str, Sequence[Any]] = {
    "helpfulness": (0, 6, 4.5, "4", True, None, [4], "good"),
    "goal_completion": (2, -1, True, "1", 0.5, None),
    "agent_behavior_failure": ("none", "No failure", "wrong tool", 0, None, "repetition, unsafe state"),
    "tool_call_behavior_failure": ("repetition", "", "no failure "),
}


@pytest.mark.parametrize(("metric", "value"), [(m, v) for m, values in BAD.items() for v in values])
def test_an_answer_outside_the_scale_is_unscored(metric: str, value: Any) -> None:
    """A value outside the scale or labels is requested again, then the metric is unscored."""
    model = answering([value])
    assert isinstance(ask(model, metric), Unscored)
    assert len(model.requests) == 3


@pytest.mark.parametrize("metric", BUILTIN)
def test_every_value_of_a_metric_is_accepted(metric: str) -> None:
    """Every integer of a scale and every label of a set is a valid score."""
    valid: Sequence[Any] = list(BUILTIN[metric].labels) or (
        (0, 1) if metric == "goal_completion" else (1, 2, 3, 4, 5)
    )
    for value in valid:
        result = ask(answering([value]), metric)
        assert isinstance(result, Score)
        assert (result.value, type(result.value)) == (value, type(value))


def run(answer: Callable[[ChatRequest], Any] | None = None, **more: Any) -> Any:
    made = scenario(
        "s", goal="Book.", turns=["one", "two"], tools={"look": 1}, thresholds=more.pop("thresholds", {})
    )
    model = ScriptedModel(answer=answer, **{k: more.pop(k) for k in ("scores", "groups") if k in more})
    with ScriptedAgent([tool_call("look"), "first", "second"]) as agent:
        result = run_scenarios(
            [made], agent=agent, model=model, judge={"retries": 0, **more.pop("judge", {})}, **more
        )
    return result.scenarios[0], model


def test_every_metric_is_judged_where_it_applies() -> None:
    """Seven metrics are judged on every turn of an agent with tools, and the goal once per conversation."""
    found, _ = run()
    [held] = found.conversations
    assert [set(turn.metrics) for turn in held.turns] == [
        set(BUILTIN) - {"goal_completion"},
        set(BUILTIN) - {"goal_completion"},
    ]
    assert set(held.metrics) == {"goal_completion"}


def test_samples_of_a_run_have_distinct_keys() -> None:
    """With `judge.samples`, each metric makes that many calls, each with its own key."""
    found, model = run(
        metrics=["helpfulness"], judge={"samples": 3}, scores={"helpfulness": lambda r: 3 + r.key.sample % 2}
    )
    assert sorted((r.key.turn, r.key.sample) for r in model.requests) == [
        (t, n) for t in (0, 1) for n in range(3)
    ]
    assert [t.metrics["helpfulness"].samples for t in found.conversations[0].turns] == [(3, 4, 3)] * 2
    assert found.averages == {"helpfulness": 3}


@given(st.permutations([0, 1, 2]))
def test_the_first_failing_sample_is_reported(order: list[int]) -> None:
    """If samples fail for different reasons, the lowest-numbered one is reported, not the earliest."""

    class Failing:
        name = "failing"

        async def ask(self, messages: Any, answer: Any, key: CallKey) -> Any:
            for _ in range(order[key.sample]):
                await checkpoint()
            raise ModelUnavailable(f"problem of sample {key.sample}")

    assert judged(Judge(Failing(), 3), "helpfulness") == Unscored("problem of sample 0")


def test_a_judge_that_is_down_errs_and_does_not_fail() -> None:
    """A judge outage makes a scenario errored, never failed or passed."""

    def down(request: ChatRequest) -> str:
        raise TransientError("503: down")

    found, _ = run(down, thresholds={"helpfulness": 4})
    assert found.verdict.status is Status.ERRORED
    assert found.averages == {}
    assert all(r.status is Status.ERRORED for r in found.verdict.reasons)


def test_a_model_with_a_defect_costs_its_metric_alone() -> None:
    """An unexpected exception in a model leaves one metric unscored, and the run continues."""

    def broken(request: ChatRequest) -> dict[str, Any]:
        if request.key.metric in ("goal_completion", "coherence"):
            raise ZeroDivisionError("a defect")
        return {"reason": "r", "value": 5 if request.key.metric == "helpfulness" else NO_FAILURE}

    found, _ = run(broken, metrics=["helpfulness", "coherence", "goal_completion"], judge={"batch": False})
    [held] = found.conversations
    assert found.verdict.status is Status.ERRORED
    assert found.averages == {"helpfulness": 5}
    for result in (held.metrics["goal_completion"], held.turns[0].metrics["coherence"]):
        assert isinstance(result, Unscored)
        assert "ZeroDivisionError" in result.error


def test_without_a_goal_no_judge_is_called() -> None:
    """A script without a goal is decided by its checks."""
    model = ScriptedModel()
    with ScriptedAgent(["hello"]) as agent:
        found = run_scenarios(
            [scenario("s", turns=["hi"], expect={"says": "hello"})], agent=agent, model=model
        ).scenarios[0]
    assert found.verdict.status is Status.PASSED
    assert model.requests == []


def test_a_failure_label_reaches_the_verdict() -> None:
    """A failure label is grouped, and fails the scenario at the configured severity."""
    groups = [{"label": "g", "severity": "critical", "occurrences": ["s-1-F1", "s-1-F2"], "explanation": "e"}]
    found, _ = run(scores={"agent_behavior_failure": "unsafe action"}, groups=groups)
    assert found.verdict.status is Status.FAILED
    assert [(e.severity, e.occurrences) for e in found.errors] == [(Severity.CRITICAL, ("s-1-F1", "s-1-F2"))]


@pytest.mark.parametrize(
    ("given", "severity"),
    [
        (["high"], Severity.HIGH),
        (["low", "critical", "medium"], Severity.MEDIUM),
        (["low", "high"], Severity.HIGH),
        (["low", None], None),
        (["severe"], None),
        ([3], None),
    ],
)
def test_the_severity_of_a_failure(given: list[Any], severity: Severity | None) -> None:
    """It is the median of the answers, or the worse of two; invalid severities are ignored."""
    answers = [{"labels": ["repetition"], "severity": each} for each in given]
    found = behavior(*answers)
    assert (found.value, found.severity) == ("repetition", severity)
