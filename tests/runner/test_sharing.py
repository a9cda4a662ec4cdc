"""Conversations that passed share their memory, and a scenario's result is the same as with whole ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anyio
import pytest
from builders import (
    MISSED,
    conversation,
    conversation_result,
    failure,
    labelled_failure,
    scored,
    tool_call,
    turn,
    turn_evaluation,
)
from hypothesis import given
from hypothesis import strategies as st

from agentest import call, scenario
from agentest.domain.messages import ToolSpec
from agentest.domain.reasons import conversation_reasons
from agentest.domain.results import (
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    Evidence,
    ScenarioResult,
    Score,
    Skipped,
    TrajectoryResult,
    Unscored,
)
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import (
    ARGUMENTS_UNKNOWN,
    NO_MOCK,
    AttackLog,
    Blame,
    ModelBriefing,
    TimeSpent,
    ToolCall,
    Turn,
    Usage,
)
from agentest.domain.truncation import without_unneeded
from agentest.runner.plan import FinishedUnitPart, Unit
from agentest.runner.session import Settings, UnitConnections
from agentest.runner.units import UnitDecision, UnitProgress

OWN, FOREIGN = f"agentest-{'a' * 16}", f"agentest-{'b' * 16}"
MADE = scenario(
    "books",
    goal="Book a table.",
    turns=["Look.", "Book it."],
    tools={"check_availability": {"free": True}, "book": {"id": 1}, "never_called": 1},
    trajectory={"match_mode": "within", "expected": [call("check_availability")]},
    final_state={"booked": True},
)
THRESHOLDS = (
    {},
    {"pass_rate": 0.9},
    {"helpfulness": 4.5, "mood": 0.5},
    {"latency_p95_ms": 150.0, "cost": 0.01},
)
CALLS = (
    tool_call(),
    tool_call("book", {"id": 7}, {"ok": True}, call_id="call-7", duration_ms=3.5, round=1),
    tool_call("book", "{not json", invalid_arguments="not JSON"),
    tool_call("book", {"no": 1}, invalid_arguments="unexpected argument 'no'"),
    ToolCall("book", None, None, True, 0, invalid_arguments=ARGUMENTS_UNKNOWN),
    tool_call("book", error="KeyError: 'x'", raised="KeyError at a.sim.py:3"),
    tool_call("other", {}, mocked=False, error=NO_MOCK),
    tool_call("other", {}, mocked=False),
    tool_call("book", approval=Approval.GRANTED),
    tool_call("found", simulated=True),
)
CHECKS = (
    CheckResult(check="says", passed=True, summary="expected 'Tuesday'"),
    CheckResult(check="final_state", passed=True, summary="as expected", turn_index=1),
    CheckResult(check="says", passed=False, summary="expected 'Friday'", reply="'Tuesday'"),
    CheckResult(check="final_state", passed=False, summary="it is not booked"),
)
TRAJECTORIES = (
    None,
    TrajectoryResult(matched=True, summary="all calls match", actual="check_availability()"),
    TrajectoryResult(matched=True, summary="no call", without_calls=True),
    MISSED,
)
METRICS = (
    {},
    {"helpfulness": scored(4), "loud": scored(0.1)},
    {"helpfulness": scored(5), "loud": scored(0.7, samples=(0.7, 0.8)), "mood": scored("no failure")},
    {"helpfulness": Skipped("no model"), "loud": Unscored("it raised", own_code=True)},
    {"faithfulness": Score(1, "", evidence=Evidence.UNSUPPORTED)},
    {"helpfulness": Unscored("no answer")},
)
CRITERIA = tuple(
    CriterionResult(text="is friendly", required=required, result=outcome, turn_index=0, reason="so")
    for required, outcome in (
        (True, CriterionOutcome.MET),
        (False, CriterionOutcome.MET),
        (False, CriterionOutcome.VIOLATED),
        (True, CriterionOutcome.CANNOT_TELL),
    )
)


@st.composite
def turns(draw: st.DrawFn, at: int) -> Turn:
    """A turn with calls, costs and a reply, some of which a warning is about."""
    replies = ("Yes, at 9:00.", "Error: no such day", f"Session {OWN}", f"Session {FOREIGN}")
    return turn(
        at,
        agent=draw(st.sampled_from(replies)),
        tool_calls=tuple(draw(st.lists(st.sampled_from(CALLS), max_size=2))),
        latency_ms=draw(st.sampled_from((1.0, 100.0, 200.0)) | st.floats(0, 300)),
        usage=Usage(draw(st.integers(0, 9)), 1),
        model_calls=draw(st.sampled_from((None, 1))),
        model_cost=draw(st.sampled_from((None, 0.001, 0.02))),
        approvals=draw(st.integers(0, 1)),
        briefing=draw(
            st.sampled_from(
                (None, ModelBriefing(tools=(ToolSpec(name="offered", description="", parameters={"a": 1}),)))
            )
        ),
        state_after=draw(st.sampled_from((None, {"booked": 1}))),
    )


@st.composite
def results(draw: st.DrawFn, number: int) -> ConversationResult:
    """A conversation; half of them pass, the others may also have failed, errored or be invalid."""
    id, passes = f"s-{number}", draw(st.booleans())

    def one_of(passing: Sequence[Any], *others: Any) -> Any:
        return draw(st.sampled_from([*passing] if passes else [*passing, *others]))

    held = replace(
        conversation(
            id,
            [draw(turns(at)) for at in range(draw(st.integers(0, 2)))],
            one_of([None], failure(), failure(Blame.MODEL)),
        ),
        session_id=one_of([OWN, None]),
        initial_state=one_of([None, {"a": {"b": 1}}]),
        user_calls=one_of([(), CALLS[1:2]]),
        attack=one_of([None, AttackLog("social", "get money", "secret", note="no")]),
    )
    evaluations = [
        turn_evaluation(
            at,
            one_of(METRICS[:-1], METRICS[-1]),
            trajectory=one_of(TRAJECTORIES[:-1], MISSED),
            checks=one_of([(), CHECKS[:1]], CHECKS[2:3]),
            judged_ms=one_of([None, 3.0]),
        )
        for at in range(len(held.turns))
    ]
    goal = one_of([{}, {"goal_completion": scored(1)}], {"goal_completion": scored(0)})
    failed = one_of([()], (labelled_failure(f"{id}-F1"),))
    return replace(
        conversation_result(id, evaluations, goal, held=held, failures=failed),
        time=TimeSpent(draw(st.integers(0, 9)), 1.0, 2.0),
        trajectory=one_of(TRAJECTORIES[:-1], MISSED),
        criteria=one_of([(), *((each,) for each in CRITERIA[:-1])], CRITERIA[-1:]),
        checks=one_of([(), CHECKS[:2]], CHECKS[2:]),
        invalid=one_of([None], "it is no user"),
    )


def unit_of(thresholds: dict[str, float], **more: object) -> Unit:
    return replace(Unit(MADE, "a", "a.sim.py", "s", "s", 1, 2, (), thresholds), **more)  # type: ignore[arg-type]


def decided(unit: Unit, finished: Sequence[ConversationResult], *, whole: bool = False) -> ScenarioResult:
    progress = UnitProgress(unit, whole)
    for number, result in enumerate(finished):
        progress.add(number, result)
    return result_of(progress)


def result_of(progress: UnitProgress) -> ScenarioResult:
    result = anyio.run(UnitDecision(Settings(concurrency=1), UnitConnections()).decide, progress)
    assert result
    return replace(result, duration_ms=0.0, conversations=())


@given(st.data(), st.sampled_from(THRESHOLDS), st.integers(1, 5), st.booleans(), st.booleans())
def test_a_result_is_the_same_as_with_whole_conversations(
    data: st.DataObject, thresholds: dict[str, float], conversations: int, resumed: bool, by_worker: bool
) -> None:
    finished = [data.draw(results(number)) for number in range(conversations)]
    unit = unit_of(thresholds)
    expected = decided(unit, finished, whole=True)
    if by_worker:
        finished = list(map(without_unneeded, finished))
    if resumed:
        part = FinishedUnitPart(numbers=range(conversations), conversations=finished)
        assert decided(replace(unit, finished_part=part), ()) == expected
    else:
        assert decided(unit, finished) == expected


@given(st.data(), st.sampled_from(THRESHOLDS), st.integers(1, 3), st.booleans(), st.randoms())
def test_a_result_is_the_same_if_only_the_first_of_each_kind_are_whole(
    data: st.DataObject, thresholds: dict[str, float], kinds: int, by_worker: bool, order: random.Random
) -> None:
    drawn = [data.draw(results(number)) for number in range(kinds)]
    finished = [renamed(each, 10 * at + n) for at, each in enumerate(drawn) for n in range(6)]
    progress, expected = (UnitProgress(unit_of(thresholds), whole, 3) for whole in (False, True))
    numbered = list(enumerate(finished))
    order.shuffle(numbered)
    for number, each in numbered:
        expected.add(number, each)
        progress.add(number, without_unneeded(each) if by_worker else each)
    assert result_of(progress) == result_of(expected)


def renamed(result: ConversationResult, number: int) -> ConversationResult:
    """The same in another conversation, with other texts where judges and checks write them."""
    id, was = f"s-{number}", result.conversation.conversation_id
    held = replace(result.conversation, conversation_id=id)
    failures = tuple(
        replace(each, id=each.id.replace(was, id), conversation_id=id, reason=f"{each.reason} {number}")
        for each in result.failures
    )
    criteria = tuple(replace(each, reason=f"{each.reason} {number}") for each in result.criteria)
    checks = tuple(
        each if each.passed else replace(each, summary=f"{each.summary} {number}") for each in result.checks
    )
    return replace(result, conversation=held, failures=failures, criteria=criteria, checks=checks)


def passed(number: int, *calls: ToolCall, **more: object) -> ConversationResult:
    """A conversation that differs from others of its kind in what is only measured or said."""
    said = turn(
        user=f"Number {number}?",
        agent=f"Yes, {number}.",
        tool_calls=calls,
        latency_ms=2.5 * number,
        usage=Usage(number, 1),
        started_at=f"2026-01-0{number}",
        **more,
    )
    held = conversation(f"c-{number}", [said])
    checks = (CheckResult(check="max_latency_ms", passed=True, summary=f"it took {number} ms"),)
    evaluation = turn_evaluation(0, {"helpfulness": scored(5, f"{number}")}, checks=checks, judged_ms=number)
    return conversation_result(f"c-{number}", [evaluation], held=held)


def kept(*finished: ConversationResult) -> list[ConversationResult]:
    progress = UnitProgress(unit_of({}), False)
    for number, result in enumerate(finished):
        progress.add(number, result)
    return list(progress.ordered)


def test_conversations_that_passed_alike_are_one_object() -> None:
    calls = [tool_call("book", {"id": number}, number, call_id=f"call-{number}") for number in (1, 2)]
    one, other = kept(passed(1, calls[0]), passed(2, calls[1]))
    assert one is other


@pytest.mark.parametrize(
    "different",
    [
        *(lambda call=each: passed(2, call) for each in CALLS[2:]),
        lambda: passed(2, tool_call("book", "no arguments")),
        lambda: passed(2, tool_call("book"), tool_call("book")),
        lambda: passed(2, tool_call("book"), tells_calls=True),
        lambda: passed(2, tool_call("book"), requests=2),
    ],
)
def test_what_a_report_tells_apart_is_not_shared(different: Callable[[], ConversationResult]) -> None:
    one, other = kept(passed(1, tool_call("book")), different())
    assert one is not other


@pytest.mark.parametrize(
    "shown",
    [
        replace(passed(1), failures=(labelled_failure("c-1-F1"),)),
        replace(passed(1), criteria=CRITERIA[2:3]),
        replace(passed(1), trajectory=MISSED, metrics={"trajectory_f1": scored(0.5)}),
        conversation_result(held=replace(conversation(turns=[turn(agent=FOREIGN)]), session_id=OWN)),
        conversation_result(held=conversation(failure=failure())),
    ],
    ids=["failure", "criterion", "counted trajectory", "foreign session", "error"],
)
def test_what_a_report_may_show_stays_whole(shown: ConversationResult) -> None:
    assert kept(shown) == [shown]


@pytest.mark.parametrize("calls", [(), *((each,) for each in CALLS)])
@pytest.mark.parametrize("reply", ["Yes.", "Error: no such day", f"Session {OWN}"])
def test_warnings_are_the_same_as_with_whole_conversations(calls: tuple[ToolCall, ...], reply: str) -> None:
    said = turn(agent=reply, tool_calls=calls)
    held = replace(conversation(turns=[said]), session_id=OWN, user_calls=calls)
    result = conversation_result(held=held, turns=[turn_evaluation(0, {})], metrics={})
    unit = replace(unit_of({}), scenario=scenario("s", turns=["Look."], tools={"book": 1, "idle": 2}))
    assert without_unneeded(result).slim
    assert decided(unit, [result]) == decided(unit, [result], whole=True)


def test_scores_are_shared_by_turn() -> None:
    one, other = passed(1), passed(2)
    other = replace(other, metrics={"goal_completion": scored(1), "loud": scored(0.5)})
    first, second = kept(one, other)
    assert first.metrics != second.metrics
    assert first.turns[0] is second.turns[0]
    assert first.conversation is second.conversation


def test_many_different_conversations_do_not_fill_the_memory_with_shared_parts() -> None:
    progress = UnitProgress(unit_of({}), False)
    for number in range(3_000):
        result = replace(passed(1), metrics={"loud": scored(number)})
        progress.add(number, result)
    assert len(progress._known) <= 1_000
    assert len(progress.ordered) == 3_000


@pytest.mark.parametrize(
    "change",
    [
        {"criteria": CRITERIA[-1:]},
        {"metrics": {"goal_completion": scored(0)}},
        {"failures": (labelled_failure("c-9-F1"),)},
        {"checks": CHECKS[2:]},
        {"trajectory": MISSED},
    ],
    ids=["criterion", "goal", "failure", "check", "trajectory"],
)
def test_the_first_of_each_kind_that_did_not_pass_are_whole(change: dict[str, Any]) -> None:
    progress = UnitProgress(unit_of({}), False, 3)
    failed = replace(passed(1), checks=CHECKS[2:3])
    for number in (5, 4, 3, 2, 1):
        progress.add(number, failed)
    progress.add(6, replace(failed, **change))
    assert [each.slim for each in progress.ordered] == [False, False, False, True, True, False]
    assert list(progress.ordered[3].reasons or ()) == conversation_reasons(failed)
