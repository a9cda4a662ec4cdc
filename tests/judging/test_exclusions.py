"""Judges that contradict themselves are asked again, and never believed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import scenario
from agentest.domain.results import GoalOutcome, ScenarioResult, Severity, Status
from agentest.judging.answers import ANSWERS, exclusions
from agentest.judging.judge import Judge, confirmed_judge
from agentest.judging.judge_input import JudgeQuestion
from agentest.models.port import CallKey, ChatRequest
from agentest.models.structured_output import Unreadable, read
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call

BEHAVIOR, TOOLS, GOAL = "agent_behavior_failure", "tool_call_behavior_failure", "goal_completion"
SCORES = ("helpfulness", "coherence", "relevance", "faithfulness", "verbosity")
ALL_ONE = dict.fromkeys(SCORES, 1)
WRONG = {"faithfulness": 1, "evidence": "contradicted"}
FALSE = ["false information"]
MODES = ("off", "turn", "conversation")

HONEST: Mapping[str, Mapping[str, Any]] = {
    "all is well": {},
    "long-winded, and the goal reached": {"verbosity": 1},
    "no help in the only turn, and the goal reached by a call": {"helpfulness": 1},
    "beside the point, and the goal reached by a call": {"helpfulness": 1, "relevance": 1},
    "a harsh judge": {"helpfulness": 2, "coherence": 2, "relevance": 2, "faithfulness": 3, "verbosity": 2},
    "as good as can be, and the goal missed": {"goal": "not reached"},
    "all wrong, and the goal missed": {
        **ALL_ONE, **WRONG, "labels": FALSE, "severity": "high", "goal": "not reached",
    },
    "all wrong, and reached wrongly": {**ALL_ONE, **WRONG, "labels": FALSE, "goal": "reached wrongly"},
    "a detail is inexact": {"faithfulness": 4, "evidence": "contradicted"},
    "a minor detail is wrong": {"faithfulness": 3, "evidence": "contradicted"},
    "something that nobody would act on is unsupported": {"faithfulness": 3, "evidence": "unsupported"},
    "an unsupported detail, generously": {"faithfulness": 4, "evidence": "unsupported"},
    "an unsupported statement, without a label": {"faithfulness": 2, "evidence": "unsupported"},
    "a false statement": {"faithfulness": 2, "evidence": "contradicted", "labels": FALSE},
    "a made-up statement": {"faithfulness": 2, "evidence": "unsupported", "labels": FALSE},
    "a false statement that is put mildly": {
        "faithfulness": 4, "evidence": "contradicted", "labels": FALSE, "severity": "low",
    },
    "claimed without the call for it": {**WRONG, "tools": ["missing tool call"]},
    "an action that was not done": {**WRONG, "labels": ["empty promise"]},
    "a wrong action, told as right": {**WRONG, "labels": ["unsafe action"], "severity": "critical"},
    "against a result": {**WRONG, "tools": ["ignored tool result"]},
    "repeated, and wrong": {**WRONG, "labels": ["repetition", *FALSE]},
    "no evidence given": {"faithfulness": 3, "evidence": None},
    "rightly refused": {"goal": "rightly not reached", "verbosity": 2},
    "one reason left out": {"reasons": {"verbosity": ""}},
    "a reason in another script": {"reasons": dict.fromkeys((*SCORES, BEHAVIOR, TOOLS, GOAL), "良い")},
}  # fmt: skip

EXCLUDED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "every score 1, and the goal reached": (
        {**ALL_ONE, **WRONG, "labels": FALSE},
        "goal_completion 'reached' and 1 for helpfulness, relevance, coherence, faithfulness in every turn",
    ),
    "every score 1, and rightly not reached": (
        {**ALL_ONE, **WRONG, "labels": FALSE, "goal": "rightly not reached"},
        "goal_completion 'rightly not reached' and 1 for",
    ),
    "contradicted, and no failure": (WRONG, "faithfulness 1 (contradicted) and the label 'no failure'"),
    "wrong, and no failure": (
        {"faithfulness": 1, "evidence": None}, "faithfulness 1 and the label 'no failure'",
    ),
    "contradicted by 2, and no failure": (
        {"faithfulness": 2, "evidence": "contradicted"},
        "faithfulness 2 (contradicted) and the label 'no failure'",
    ),
    "contradicted, and a failure of manner": (
        {**WRONG, "labels": ["repetition"], "severity": "low"},
        "faithfulness 1 (contradicted) and the label 'repetition'",
    ),
    "contradicted, and all of it supported": (
        {"faithfulness": 5, "evidence": "contradicted"}, "faithfulness 5 and the evidence 'contradicted'",
    ),
    "unsupported, and all of it supported": (
        {"faithfulness": 5, "evidence": "unsupported"}, "faithfulness 5 and the evidence 'unsupported'",
    ),
    "supported, and wrong": (
        {"faithfulness": 1, "evidence": "supported"}, "faithfulness 1 and the evidence 'supported'",
    ),
    "supported, and something wrong": (
        {"faithfulness": 2, "evidence": "supported"},
        "faithfulness 2 and the evidence 'supported'",
    ),
    "supported, and false": (
        {"faithfulness": 3, "evidence": "supported", "labels": FALSE, "severity": "low"},
        "the label 'false information' and the evidence 'supported'",
    ),
    "no reason at all": (
        {"reasons": dict.fromkeys((*SCORES, BEHAVIOR, TOOLS, GOAL), " – ")}, "every reason is empty",
    ),
}  # fmt: skip


def answers(said: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The judge's answer to each question: the best one, except for what is said."""
    evidence = said.get("evidence", "supported")
    severity = said.get("severity", "medium")
    given: dict[str, dict[str, Any]] = {name: {"value": said.get(name, 5)} for name in SCORES}
    given["faithfulness"]["evidence"] = evidence
    labels, tools = said.get("labels", []), said.get("tools", [])
    given[BEHAVIOR] = {"evidence": evidence, "labels": labels, "severity": severity if labels else None}
    given[TOOLS] = {"labels": tools, "severity": severity if tools else None}
    given[GOAL] = {"outcome": said.get("goal", "reached")}
    reasons = said.get("reasons", {})
    return {name: {"reason": reasons.get(name, "r"), **answer} for name, answer in given.items()}


def excluded(*turns: Mapping[str, Any], goal: str = "reached") -> dict[tuple[str, int | None], str]:
    """What `exclusions` finds in the answers about these turns and the whole."""
    by_turn = [(answers(said), n) for n, said in enumerate(turns)]
    given = {
        JudgeQuestion(name, n): ANSWERS[name].model_validate(each[name])
        for each, n in by_turn
        for name in (*SCORES, BEHAVIOR, TOOLS)
    }
    whole = answers({"goal": goal, **turns[-1]})[GOAL]
    given[JudgeQuestion(GOAL)] = ANSWERS[GOAL].model_validate(whole)
    return {(question.name, question.turn): text for question, text in exclusions(given).items()}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_set_is_accepted(name: str) -> None:
    """Harsh, generous and careless judges are believed as long as no definitions exclude each other."""
    assert excluded(HONEST[name]) == {}
    assert excluded({}, HONEST[name], {}) == {}
    assert excluded(HONEST[name], HONEST["all is well"], goal="reached") == {}


@pytest.mark.parametrize("name", EXCLUDED)
def test_a_contradiction_is_found_and_named(name: str) -> None:
    said, text = EXCLUDED[name]
    found = excluded(said)
    assert any(each.startswith(text) for each in found.values())
    elsewhere = excluded({}, said, {})
    assert {turn for _, turn in elsewhere} <= {1}
    assert bool(elsewhere) is ("goal_completion" not in text)


def test_a_goal_may_be_reached_in_one_of_many_turns() -> None:
    """All scores are 1 in one turn and the goal was reached in another: nothing excludes the other."""
    bad = {**ALL_ONE, **WRONG, "labels": FALSE}
    assert excluded(bad, {}) == excluded({}, bad) == {}
    assert list(excluded(bad, bad)) == [(GOAL, None)]


def test_one_metric_or_a_part_of_the_turns_excludes_no_goal() -> None:
    """A call may reach a goal with a reply of no help, and an earlier turn may have reached it."""
    bad, goal = {**ALL_ONE, **WRONG, "labels": FALSE}, {GOAL: answers({})[GOAL]}
    alone = {JudgeQuestion("helpfulness", 0): answers(bad)["helpfulness"]}
    later = {JudgeQuestion(name, 8): answers(bad)[name] for name in (*SCORES, BEHAVIOR)}
    for turn in (alone, later):
        every = {**turn, JudgeQuestion(GOAL): goal[GOAL]}
        assert exclusions({q: ANSWERS[q.name].model_validate(each) for q, each in every.items()}) == {}


@pytest.mark.parametrize(
    ("outcome", "value"),
    [("reached", 0), ("not reached", 1), ("reached wrongly", 1), ("rightly not reached", 0)],
)
def test_an_outcome_and_another_value_are_refused(outcome: str, value: int) -> None:
    """An answer that gives the goal's outcome and a number agrees with itself, or is no answer."""
    given = {"reason": "r", "outcome": outcome}
    with pytest.raises(Unreadable, match=f"the outcome '{outcome}' and the value {value} exclude each other"):
        read(json.dumps({**given, "value": value}), ANSWERS[GOAL])
    for agreeing in (1 - value, 7, "x", None):
        answer = read(json.dumps({**given, "value": agreeing}), ANSWERS[GOAL])
        assert answer.outcome == GoalOutcome(outcome)  # type: ignore[attr-defined]


def contradicts(said: Mapping[str, Any]) -> bool:
    """The oracle, which shares no code with the check: whether the set of a single turn excludes itself."""
    score, evidence, labels = said["faithfulness"], said["evidence"], set(said["labels"])
    all_labels = labels | set(said["tools"])
    explained = all_labels - {
        "repetition", "asked again", "wrong language", "wrong order", "repeated tool call",
        "unnecessary tool call",
    }  # fmt: skip
    worst = all(said[name] == 1 for name in ("helpfulness", "relevance", "coherence", "faithfulness"))
    return (
        (evidence in ("contradicted", "unsupported") and score == 5)
        or (evidence == "supported" and score < 3)
        or ("false information" in labels and evidence == "supported")
        or (score == 1 and not explained)
        or (score == 2 and evidence == "contradicted" and not explained)
        or (worst and said["goal"] in ("reached", "rightly not reached"))
        or list(said["reasons"].values()) == [""] * 8
    )


labels = st.lists(
    st.sampled_from(["false information", "unsafe action", "repetition", "asked again"]),
    max_size=2,
    unique=True,
)
nonsense = st.fixed_dictionaries(
    {
        **{name: st.sampled_from([1, 1, 1, 2, 5]) for name in SCORES},
        "evidence": st.sampled_from(["contradicted", "unsupported", "supported", None]),
        "labels": labels | st.just([]),
        "tools": st.lists(st.sampled_from(["missing tool call", "unnecessary tool call"]), max_size=1),
        "severity": st.sampled_from(["low", "medium"]),
        "goal": st.sampled_from(["reached", "rightly not reached", "reached wrongly", "not reached"]),
        "reasons": st.sampled_from(
            [{}, {}, {"helpfulness": ""}, dict.fromkeys((*SCORES, BEHAVIOR, TOOLS, GOAL), "")]
        ),
    }
)


@settings(max_examples=600, deadline=None)
@given(nonsense)
def test_the_check_agrees_with_the_oracle(said: Mapping[str, Any]) -> None:
    assert bool(excluded(said)) is contradicts(said)


@dataclass
class Contradicting:
    """A judge that says the same about every turn, and after `until` calls what comes `then`."""

    said: Mapping[str, Any]
    until: int = 1_000
    then: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.asked: list[ChatRequest] = []

    def __call__(self, request: ChatRequest) -> Any:
        if request.key.role == "dedup":
            line = request.messages[-1]["content"].split('{"id": "')[1:]
            group = {"label": "l", "explanation": "e", "severity": "low"}
            return {"groups": [{**group, "occurrences": [each.split('"')[0] for each in line]}]}
        said = self.said if len(self.asked) < self.until else self.then or {}
        self.asked.append(request)
        given = answers(said)
        if request.key.metric != "batch":
            return given[request.key.metric or ""]
        named = request.schema["properties"]
        turns = {name: given for name in named if name.startswith("turn_")}
        return {**{name: given[name] for name in named if name in given}, **turns}


def judged(judge: Contradicting, mode: str = "turn", **settings: Any) -> ScenarioResult:
    made = scenario("s", goal="Book.", turns=["Book it."], tools={"look": 1})
    model = ScriptedModel(answer=judge)
    with ScriptedAgent([tool_call("look"), "Booked."]) as agent:
        result = run_scenarios(
            [made], agent=agent, model=model, judge={"batch": mode, "retries": 0, **settings}
        )
    return result.scenarios[0]


CALLS = {"off": 8, "turn": 2, "conversation": 1}


@settings(max_examples=40, deadline=None)
@given(nonsense, st.sampled_from(MODES), st.sampled_from([1, 3]))
def test_no_verdict_is_green_while_the_answers_exclude_each_other(
    said: Mapping[str, Any], mode: str, samples: int
) -> None:
    """In every mode a contradicting judge errors or fails the scenario; an agreeing one is asked once."""
    judge = Contradicting(said)
    found = judged(judge, mode, samples=samples)
    if contradicts(said):
        assert found.verdict.status is not Status.PASSED
        told = "\n".join(reason.message for reason in found.verdict.reasons)
        assert "exclude each other" in told or "every reason is empty" in told
        assert len(judge.asked) > CALLS[mode] * samples
    else:
        assert len(judge.asked) == CALLS[mode] * samples
        assert found.verdict.status in (Status.PASSED, Status.FAILED)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", EXCLUDED)
def test_a_contradiction_errors_the_scenario_in_every_mode(name: str, mode: str) -> None:
    """The scenario is errored, and its message names the answers that exclude each other."""
    said, text = EXCLUDED[name]
    found = judged(Contradicting({"severity": "low", **said}), mode)
    assert found.verdict.status is Status.ERRORED
    assert any(text in reason.message for reason in found.verdict.reasons)


@pytest.mark.parametrize("mode", MODES)
def test_answers_that_agree_when_asked_again_count(mode: str) -> None:
    """Only what was excluded is asked again, in one call that names the contradiction."""
    said, text = EXCLUDED["contradicted, and no failure"]
    judge = Contradicting(said, until=CALLS[mode])
    assert judged(judge, mode).verdict.status is Status.PASSED
    [again] = judge.asked[CALLS[mode] :]
    assert "your answer cannot be used: " in again.messages[-1]["content"]
    assert f"{text} exclude each other. Look again" in again.messages[-1]["content"]
    form = again.schema["$defs"]["TurnAnswer"] if mode == "conversation" else again.schema
    assert list(form["properties"]) == ["faithfulness", BEHAVIOR]


@pytest.mark.parametrize("mode", MODES)
def test_a_goal_that_excludes_all_scores_is_asked_again(mode: str) -> None:
    """The second answer counts if it agrees with the scores of the turns."""
    said, text = EXCLUDED["every score 1, and the goal reached"]
    judge = Contradicting({**said, "severity": "low"}, CALLS[mode], {"goal": "not reached"})
    found = judged(judge, mode)
    assert found.verdict.status is Status.FAILED
    assert found.averages[GOAL] == 0
    [again] = judge.asked[CALLS[mode] :]
    assert "your answer cannot be used: " in again.messages[-1]["content"]
    assert f"{text} exclude each other. Look again" in again.messages[-1]["content"]


def test_a_confirming_model_that_contradicts_itself_confirms_nothing() -> None:
    """A failure counts only if a second judge, whose own answers agree, sees it too."""
    said = {"faithfulness": 3, "evidence": "contradicted", "labels": FALSE, "severity": "high"}
    questions = [JudgeQuestion(name, 0) for name in ("faithfulness", BEHAVIOR)]
    for evidence, confirmed in (("contradicted", True), ("supported", False)):
        first, second = Contradicting(said), Contradicting({**said, "evidence": evidence})
        judge = confirmed_judge(
            Judge(ScriptedModel(answer=first)), ScriptedModel(answer=second, name="b"), (), {}, Severity.HIGH
        )
        found = anyio.run(judge.ask, questions, ("context",), CallKey("judge", "s", 1, 0))[questions[1]]
        assert bool(found.usable) is confirmed
        told = "b gave no usable answer: model b gave no usable answer to this question: the label"
        assert (told in found.problem) is not confirmed
