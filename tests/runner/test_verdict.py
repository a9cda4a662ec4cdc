"""What passing means (contract, section 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import anyio
import builders
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentest import scenario
from agentest.domain.end_reason import Ending
from agentest.domain.figures import totals_of
from agentest.domain.reasons import conversation_passed, conversation_status, trajectory_status
from agentest.domain.results import (
    DECIDED,
    NO_MODEL,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    Deduplication,
    GoalOutcome,
    LabelledFailure,
    MetricResult,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Score,
    Severity,
    Skipped,
    Status,
    TrajectoryResult,
    TurnEvaluation,
    UniqueError,
    Unscored,
    Verdict,
)
from agentest.domain.transcript import Blame, Conversation, Failure, Turn, UnfinishedTurn
from agentest.domain.verdict import (
    averages,
    changes_since,
    decide,
    metric_verdicts,
    run_status,
    skipped_metrics,
    turn_verdict,
)
from agentest.models.port import ChatRequest, TransientError
from agentest.runner.session import Stop
from agentest.testing import Raw, ScriptedAgent, ScriptedModel, arun_scenarios, run_scenarios

HELD = TrajectoryResult(matched=True, summary="as expected")
MISSED = TrajectoryResult(matched=False, summary="expected calls are missing: book")
UNTOLD = TrajectoryResult(matched=False, summary="could not be told", error="no answer within 60 s")
UNCHECKED = CheckResult(check="regex", passed=False, summary="x", error="no answer")
DOWN = Unscored("503: down")
OFFLINE = Skipped(NO_MODEL)


def talk(
    *turns: TurnEvaluation,
    blame: Blame | None = None,
    trajectory: TrajectoryResult | None = None,
    **metrics: MetricResult,
) -> ConversationResult:
    """A conversation with these turns; with a blame, it ended early in a turn after them."""
    failure = Failure(blame, f"the {blame} ended it") if blame else None
    unfinished = UnfinishedTurn(len(turns), "hi", ()) if blame else None
    said = tuple(Turn(turn.turn_index, "hi", "hello") for turn in turns)
    conversation = Conversation("s-1", said, Ending.SATISFIED, failure, unfinished)
    return ConversationResult(conversation, turns, metrics, trajectory)


def turn(
    index: int = 0,
    *,
    trajectory: TrajectoryResult | None = None,
    ok: bool = True,
    checks: CheckResult | None = None,
    **metrics: Any,
) -> Any:
    given = {k: v if isinstance(v, Unscored | Skipped) else Score(v, "r") for k, v in metrics.items()}
    wrong = checks or CheckResult(check="contains", passed=False, summary="expected 'x'")
    return TurnEvaluation(index, given, trajectory, () if ok and not checks else (wrong,))


def decided(
    conversations: Sequence[ConversationResult],
    deduplication: Deduplication = Deduplication(),  # noqa: B008 - frozen
    fail_on: Severity = Severity.CRITICAL,
    **thresholds: float,
) -> Verdict:
    return decide(conversations, deduplication, thresholds, fail_on)


def group(severity: Severity) -> Deduplication:
    return Deduplication((UniqueError("rude", severity, ("s-1-F1", "s-2-F1"), "It swears."),))


@pytest.mark.parametrize(
    ("conversation", "status", "kind"),
    [
        (talk(turn()), Status.PASSED, None),
        (talk(turn(trajectory=HELD), trajectory=HELD), Status.PASSED, None),
        (talk(turn(), blame=Blame.AGENT), Status.FAILED, ReasonKind.CONVERSATION),
        (talk(turn(), trajectory=MISSED), Status.FAILED, ReasonKind.TRAJECTORY),
        (talk(turn(trajectory=MISSED)), Status.FAILED, ReasonKind.TRAJECTORY),
        (talk(turn(ok=False)), Status.FAILED, ReasonKind.CHECK),
        (talk(turn(), trajectory=UNTOLD), Status.ERRORED, ReasonKind.TRAJECTORY),
        (talk(turn(trajectory=UNTOLD)), Status.ERRORED, ReasonKind.TRAJECTORY),
        (talk(turn(checks=UNCHECKED)), Status.ERRORED, ReasonKind.CHECK),
        (talk(turn(), blame=Blame.MODEL), Status.ERRORED, ReasonKind.MODEL),
        (talk(turn(), blame=Blame.MOCK), Status.ERRORED, ReasonKind.CONVERSATION),
        (talk(turn(), blame=Blame.INTERNAL), Status.ERRORED, ReasonKind.CONVERSATION),
        (talk(turn(helpfulness=DOWN)), Status.ERRORED, ReasonKind.UNSCORED),
        (talk(turn(), goal_completion=DOWN), Status.ERRORED, ReasonKind.UNSCORED),
        (talk(turn(helpfulness=OFFLINE), goal_completion=OFFLINE), Status.PASSED, None),
    ],
)
def test_each_thing_that_can_go_wrong_has_its_status(conversation: Any, status: Status, kind: Any) -> None:
    """The agent's problems fail a scenario, others make it errored, and the rest passes."""
    verdict = decided([talk(turn()), conversation])
    assert verdict.status is status
    assert [r.kind for r in verdict.reasons] == ([kind] if kind else [])
    assert verdict.passed is (status is Status.PASSED)


def test_failing_comes_before_erring_and_reasons_are_all_kept() -> None:
    """A failed and errored scenario is failed, with all reasons, failures first."""
    both = decided([talk(turn(helpfulness=DOWN), blame=Blame.MODEL), talk(turn(ok=False))], helpfulness=4)
    assert both.status is Status.FAILED
    assert [r.status for r in both.reasons] == [Status.FAILED] + [Status.ERRORED] * 2


def test_reasons_say_where() -> None:
    """A reason has its conversation and turn, even an unfinished one."""
    verdict = decided([talk(turn(), turn(1, ok=False), blame=Blame.AGENT)])
    assert [(r.conversation_id, r.turn_index) for r in verdict.reasons] == [("s-1", 2), ("s-1", 1)]


@pytest.mark.parametrize("severity", list(Severity))
@pytest.mark.parametrize("fail_on", list(Severity))
def test_an_error_fails_at_its_severity_and_above(severity: Severity, fail_on: Severity) -> None:
    """An error fails the scenario if and only if it reaches `fail_on_error_severity`."""
    verdict = decided([talk(turn())], group(severity), fail_on)
    assert verdict.status is (Status.FAILED if severity >= fail_on else Status.PASSED)
    if verdict.reasons:
        assert verdict.reasons[0].message == f"error ({severity.label}): rude, 2 times: It swears."


def test_failures_that_could_not_be_grouped_err() -> None:
    """After a failed grouping a scenario is errored, unless what is known fails it."""
    ungrouped = Deduplication(group(Severity.MEDIUM).groups, "503: down")
    assert decided([talk(turn())], ungrouped).status is Status.ERRORED
    assert decided([talk(turn())], ungrouped, Severity.MEDIUM).status is Status.FAILED
    assert decided([talk(turn(ok=False))], ungrouped).status is Status.FAILED


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(1, 5), max_size=4), min_size=1, max_size=4), st.lists(st.integers(0, 1)))
def test_averages_are_exact_means(by_turn: list[list[int]], goals: list[int]) -> None:
    """Turn metrics are averaged over all turns of all conversations, the goal over conversations."""
    talks = [talk(*(turn(i, helpfulness=value) for i, value in enumerate(values))) for values in by_turn]
    talks += [talk(goal_completion=Score(value, "r")) for value in goals]
    found = averages(talks)
    values = [value for values in by_turn for value in values]
    assert ("helpfulness" in found) is bool(values)
    assert ("goal_completion" in found) is bool(goals)
    for name, given_values in (("helpfulness", values), ("goal_completion", goals)):
        if given_values:
            assert found[name] == float(Fraction(sum(given_values), len(given_values)))


def test_labels_and_missing_values_are_in_no_average() -> None:
    """Labels, unscored and skipped results are left out of averages."""
    talks = [talk(turn(helpfulness=4, tone="rude"), turn(1, helpfulness=DOWN), turn(2, helpfulness=OFFLINE))]
    assert averages(talks) == {"helpfulness": 4}


def test_one_run_of_a_case_is_averaged_as_adk_does() -> None:
    """Scores are added turn by turn, with the same rounding errors as in ADK."""
    held = [talk(*(turn(i, response_match_score=0.1) for i in range(10)))]
    assert averages(held, exact=True) == {"response_match_score": 0.09999999999999999}
    assert averages(held) == averages([*held, *held], exact=True) == {"response_match_score": 0.1}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 10), min_size=1, max_size=12), st.integers(0, 100))
@example([1, 7], 40)
@example([0, 0, 3], 10)
def test_a_threshold_is_met_at_its_very_edge(tenths: list[int], hundredths: int) -> None:
    """An average equal to its threshold in decimal passes despite binary rounding."""
    talks = [talk(*(turn(i, m=n / 10) for i, n in enumerate(tenths)))]
    met = Fraction(sum(tenths), 10 * len(tenths)) >= Fraction(hundredths, 100)
    assert decided(talks, m=hundredths / 100).status is (Status.PASSED if met else Status.FAILED)


@pytest.mark.parametrize(
    ("values", "least", "status"),
    [
        ([4, 4], 4, Status.PASSED),
        ([4, 3], 4, Status.FAILED),
        ([DOWN, DOWN], 4, Status.ERRORED),
        ([DOWN, DOWN], 0, Status.ERRORED),
        ([5, DOWN], 4, Status.ERRORED),
        ([1, DOWN], 4, Status.FAILED),
        ([OFFLINE], 4, Status.ERRORED),
        ([OFFLINE], 0, Status.ERRORED),
        ([5, OFFLINE], 4, Status.ERRORED),
        ([1, OFFLINE], 4, Status.FAILED),
        ([], 4, Status.ERRORED),
    ],
)
def test_thresholds_and_what_could_not_be_scored(values: Any, least: float, status: Status) -> None:
    """Only scores can fail a threshold, and an unscored metric never passes one."""
    talks = [talk(*(turn(i, helpfulness=value) for i, value in enumerate(values)))]
    assert decided(talks, helpfulness=least).status is status


def test_a_threshold_on_a_skipped_metric_says_why() -> None:
    """Offline, a threshold on a judged metric is errored with the reason it was skipped."""
    talks = [talk(turn(helpfulness=OFFLINE))]
    [reason] = decided(talks, helpfulness=4).reasons
    assert reason.kind is ReasonKind.THRESHOLD
    assert NO_MODEL in reason.message
    assert skipped_metrics(talks) == {"helpfulness": NO_MODEL}


def test_an_unscored_metric_is_one_reason_with_its_count() -> None:
    [reason] = decided(
        [talk(turn(helpfulness=DOWN)), talk(turn(helpfulness=4), turn(1, helpfulness=DOWN))]
    ).reasons
    assert reason.message == "helpfulness could not be scored 2 of 3 times: 503: down"


def test_a_threshold_on_an_unscored_metric_is_one_reason() -> None:
    """The reason has the threshold and the error."""
    [reason] = decided([talk(turn(helpfulness=DOWN)), talk(turn(helpfulness=DOWN))], helpfulness=4).reasons
    assert reason.kind is ReasonKind.THRESHOLD
    assert reason.message == "helpfulness has a threshold of 4 but could not be scored: 503: down"


GOOD, BAD, UNKNOWN = talk(turn()), talk(turn(ok=False)), talk(turn(), blame=Blame.MODEL)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 3), st.integers(0, 10))
def test_pass_rate_allows_exactly_its_share_of_failures(
    good: int, bad: int, unknown: int, tenths: int
) -> None:
    """A scenario fails if too few can have passed, and is errored while that is unknown."""
    total = good + bad + unknown
    verdict = decided([GOOD] * good + [BAD] * bad + [UNKNOWN] * unknown, pass_rate=tenths / 10)
    if total and Fraction(good + unknown, total) < Fraction(tenths, 10):
        assert verdict.status is Status.FAILED
        assert verdict.reasons[0].kind is ReasonKind.PASS_RATE
        assert f"{good} of {good + bad} conversations passed" in verdict.reasons[0].message
    else:
        assert verdict.status is (Status.ERRORED if unknown or not total else Status.PASSED)


def test_a_missed_pass_rate_has_the_share_of_reports() -> None:
    """The share is of conversations that passed or failed; unjudged ones are counted separately."""
    reason = decided([GOOD] * 2 + [BAD] * 5 + [UNKNOWN], pass_rate=0.5).reasons[0]
    assert reason.actual == pytest.approx(2 / 7)
    said = "2 of 7 conversations passed (1 could not be judged), the threshold is 0.5"
    assert reason.message == f"pass_rate: {said}"


def test_a_pass_rate_is_met_at_its_very_edge() -> None:
    """Three of ten meet a rate computed as `0.1 + 0.2`."""
    assert decided([GOOD] * 3 + [BAD] * 7, pass_rate=0.1 + 0.2).status is Status.PASSED


def test_a_conversation_that_failed_before_its_model_did_has_failed() -> None:
    """For the rate, a failed check counts even if something else ended the conversation later."""
    broken = talk(turn(ok=False), blame=Blame.MODEL)
    assert decided([broken], pass_rate=0.5).status is Status.FAILED


def test_a_pass_rate_forgives_conversations_but_not_averages() -> None:
    """A low average fails a scenario whatever share of its conversations passed."""
    talks = [talk(turn(helpfulness=5)), talk(turn(helpfulness=2, ok=False))]
    assert decided(talks, pass_rate=0.5).status is Status.PASSED
    assert decided(talks, pass_rate=0.5, helpfulness=4).status is Status.FAILED
    assert [conversation_passed(t) for t in talks] == [True, False]


def test_a_severe_failure_counts_against_the_pass_rate() -> None:
    """Its conversation did not pass; the group fails nothing else."""
    rude = replace(talk(turn()), failures=(LabelledFailure("s-1-F1", "s-1", 0, "m", "rude", "r"),))
    severe = group(Severity.HIGH)
    assert decided([rude, GOOD], severe, Severity.HIGH, pass_rate=0.5).status is Status.PASSED
    missed = decided([rude, GOOD], severe, Severity.HIGH, pass_rate=0.9)
    assert [r.kind for r in missed.reasons] == [ReasonKind.PASS_RATE, ReasonKind.ERROR]
    assert decided([rude, GOOD], severe, Severity.CRITICAL, pass_rate=0.9).status is Status.PASSED


def test_a_severe_failure_is_known_whatever_else_is_not() -> None:
    """A severe failure fails its conversation for the rate even if a criterion is undecided."""
    unknown = judged(criterion(UNTOLD_CRITERION))
    rude = replace(unknown, failures=(LabelledFailure("s-1-F1", "s-1", 0, "m", "rude", "r"),))
    severe = group(Severity.HIGH)
    assert decided([rude, GOOD], severe, Severity.HIGH, pass_rate=0.5).status is Status.PASSED
    assert decided([rude, GOOD], severe, Severity.CRITICAL, pass_rate=0.5).status is Status.ERRORED


@pytest.mark.parametrize("thresholds", [{}, {"pass_rate": 0.1}])
def test_a_failed_grouping_errs_whatever_the_rate(thresholds: dict[str, float]) -> None:
    """Any of the failures may be more severe than is known."""
    failed = replace(group(Severity.MEDIUM), error="503: down", graded=False)
    assert decided([GOOD, GOOD], failed, Severity.HIGH, **thresholds).status is Status.ERRORED


@pytest.mark.parametrize("outcome", [GoalOutcome.NOT_REACHED, GoalOutcome.REACHED_WRONGLY])
def test_a_missed_goal_fails_though_a_check_could_not_be_told(outcome: GoalOutcome) -> None:
    """An undecided check does not hide a failure of the same conversation."""
    missed = replace(judged(goal_completion=Score(0, "r", outcome=outcome)), trajectory=UNTOLD)
    assert conversation_status(missed) is Status.FAILED
    assert decided([missed]).status is Status.FAILED


def test_a_scenario_whose_conversations_all_broke_says_nothing_of_thresholds() -> None:
    """If the simulated user broke its role in each, that is the only reason."""
    broken = [replace(judged(), invalid="the user spoke as the assistant") for _ in range(2)]
    found = decided(broken, helpfulness=4)
    assert (found.status, {r.kind for r in found.reasons}) == (Status.ERRORED, {ReasonKind.MODEL})


def test_a_scenario_without_conversations_is_errored() -> None:
    assert [(r.status, r.kind) for r in decided([]).reasons] == [(Status.ERRORED, ReasonKind.INTERRUPTED)]


def run_of(*statuses: Status, interrupted: bool = False) -> RunResult:
    scenarios = tuple(ScenarioResult("s", "a", "f", 1, Verdict(status)) for status in statuses)
    return RunResult(scenarios, ("a",), False, "", 0, "1", interrupted=interrupted)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(list(Status))), st.booleans())
def test_a_run_is_as_bad_as_its_worst_scenario(statuses: list[Status], interrupted: bool) -> None:
    """A run fails if a scenario did, is errored if one was or it stopped, and needs one pass."""
    status = run_status(run_of(*statuses, interrupted=interrupted))
    if Status.FAILED in statuses:
        assert status is Status.FAILED
    else:
        clean = Status.ERRORED not in statuses and Status.PASSED in statuses and not interrupted
        assert status is (Status.PASSED if clean else Status.ERRORED)


def run(agent: Any = "hello", answer: Any = None, model: bool = True, **options: Any) -> ScenarioResult:
    config = {"judge": {"retries": 0}, "metrics": ["helpfulness", "goal_completion"], "strict": False}
    made = scenario("s", goal="g", conversations_per_scenario=2, **options)
    with ScriptedAgent([agent]) as scripted:
        result = run_scenarios(
            [made], agent=scripted, model=ScriptedModel(answer=answer) if model else None, **config
        )
    return result.scenarios[0]


def test_an_agent_that_answers_with_500_fails() -> None:
    """In a run, an agent error fails the scenario although no metric has a value."""
    found = run(Raw(status=500), thresholds={"goal_completion": 1})
    assert found.verdict.status is Status.FAILED
    assert found.verdict.reasons[0].kind is ReasonKind.CONVERSATION


@pytest.mark.parametrize("role", ["user", "judge"])
def test_a_model_that_is_down_errs(role: str) -> None:
    """In a run, a failed user or judge model makes the scenario errored, not failed."""

    def answer(request: ChatRequest) -> Any:
        if request.key.role == role:
            raise TransientError("503: down")
        if request.key.role == "user":
            return {"message": "hi", "should_stop": True}
        return {"reason": "r", "value": 1}

    found = run(answer=answer, thresholds={"helpfulness": 1})
    assert found.verdict.status is Status.ERRORED
    assert all(r.status is Status.ERRORED for r in found.verdict.reasons)


def test_an_offline_run_passes_without_thresholds_and_errs_with_one() -> None:
    """Offline, skipped metrics do not matter, but a threshold on one makes the scenario errored."""
    assert run(model=False).verdict.status is Status.PASSED
    assert set(run(model=False).skipped_metrics) == {"helpfulness", "goal_completion"}
    assert run(model=False, thresholds={"helpfulness": 0}).verdict.status is Status.ERRORED


def test_an_interrupted_scenario_has_not_passed() -> None:
    """A stopped run is marked, and a scenario without finished conversations is errored."""

    async def go() -> RunResult:
        stop = Stop()

        async def handler(messages: Any, ctx: Any) -> str:
            stop.interrupt()
            await anyio.lowlevel.checkpoint()
            return "too late"

        return await arun_scenarios([scenario("s", turns=["hi"])], agent=handler, stop=stop)

    result = anyio.run(go)
    assert result.interrupted
    assert run_status(result) is Status.ERRORED
    [found] = result.scenarios
    assert found.verdict.status is Status.ERRORED
    assert [r.kind for r in found.verdict.reasons] == [ReasonKind.INTERRUPTED]


def test_reasons_carry_what_they_are_about() -> None:
    """Metric, scores, group, check and trajectory are fields, so that no message needs parsing."""
    groups = group(Severity.CRITICAL)
    wrong = talk(turn(ok=False, helpfulness=2), turn(1, trajectory=MISSED, tone=DOWN))
    verdict = decided([wrong], groups, helpfulness=4.5, goal_completion=0.5, pass_rate=1.0)
    reasons = {(reason.kind, reason.status): reason for reason in verdict.reasons}
    rate = reasons[ReasonKind.PASS_RATE, Status.FAILED]
    assert (rate.metric, rate.expected, rate.actual) == ("pass_rate", 1.0, 0.0)
    low = reasons[ReasonKind.THRESHOLD, Status.FAILED]
    assert (low.metric, low.expected, low.actual) == ("helpfulness", 4.5, 2.0)
    absent = reasons[ReasonKind.THRESHOLD, Status.ERRORED]
    assert (absent.metric, absent.expected, absent.actual) == ("goal_completion", 0.5, None)
    assert reasons[ReasonKind.UNSCORED, Status.ERRORED].metric == "tone"
    assert reasons[ReasonKind.ERROR, Status.FAILED].group == replace(groups.groups[0], fails=True)
    assert reasons[ReasonKind.CHECK, Status.FAILED].check == wrong.turns[0].checks[0]
    assert reasons[ReasonKind.TRAJECTORY, Status.FAILED].trajectory is MISSED


def test_the_status_of_a_metric() -> None:
    """A score passes from its threshold on, within rounding errors, or exactly as in ADK."""
    thresholds = {"a": 0.1 + 0.2, "b": 0.31, "c": 1.0, "pass_rate": 0.5}
    scores = {"a": 0.3, "b": 0.3}
    loose = {verdict.name: verdict.status for verdict in metric_verdicts(scores, thresholds)}
    assert loose == {"a": Status.PASSED, "b": Status.FAILED, "c": Status.ERRORED}
    exact = {verdict.name: verdict.status for verdict in metric_verdicts(scores, thresholds, exact=True)}
    assert exact == {"a": Status.FAILED, "b": Status.FAILED, "c": Status.ERRORED}


@pytest.mark.parametrize(
    ("result", "score", "status"),
    [
        (Score(0.3, "r"), 0.3, Status.FAILED),
        (Score(1, "r"), 1.0, Status.PASSED),
        (Score("a label", "r"), None, Status.ERRORED),
        (DOWN, None, Status.ERRORED),
        (OFFLINE, None, Status.ERRORED),
        (None, None, Status.ERRORED),
    ],
)
def test_the_status_of_a_metric_in_one_turn(
    result: MetricResult | None, score: float | None, status: Status
) -> None:
    """The comparison is exact, as in ADK; without a number there is no status."""
    verdict = turn_verdict("m", 0.1 + 0.2, result)
    assert (verdict.score, verdict.status) == (score, status)


@pytest.mark.parametrize("trajectory", [None, HELD, MISSED, UNTOLD])
def test_the_status_of_a_conversation(trajectory: TrajectoryResult | None) -> None:
    """It follows from its reasons; a conversation that a pass rate forgives has still failed."""
    result = talk(turn(), trajectory=trajectory)
    expected = trajectory_status(trajectory) if trajectory else Status.PASSED
    assert conversation_status(result) == expected
    if trajectory is MISSED:
        assert decided([result], pass_rate=0.0).reasons == ()


VIOLATED, UNTOLD_CRITERION, MET = (
    CriterionOutcome.VIOLATED,
    CriterionOutcome.CANNOT_TELL,
    CriterionOutcome.MET,
)


def criterion(
    result: CriterionOutcome, reason: str = "r", *, required: bool = True, text: str = "Never lies"
) -> CriterionResult:
    return CriterionResult(text=text, required=required, result=result, turn_index=0, reason=reason)


def judged(*criteria: CriterionResult, id: str = "s-1", **metrics: MetricResult) -> ConversationResult:
    conversation = Conversation(id, (Turn(0, "hi", "hello"),), Ending.GAVE_UP)
    return ConversationResult(conversation, (turn(),), metrics, criteria=criteria)


@pytest.mark.parametrize(
    ("found", "status", "says"),
    [
        (criterion(MET), Status.PASSED, None),
        (criterion(VIOLATED, "It lied."), Status.FAILED, "criterion 'Never lies' violated: It lied."),
        (criterion(UNTOLD_CRITERION), Status.ERRORED, "criterion 'Never lies' could not be judged: r"),
        (criterion(VIOLATED, required=False), Status.PASSED, None),
        (criterion(UNTOLD_CRITERION, required=False), Status.PASSED, None),
        (criterion(VIOLATED, DECIDED), Status.FAILED, f"criterion 'Never lies' violated: {DECIDED}"),
        (criterion(VIOLATED, NO_MODEL), Status.FAILED, f"criterion 'Never lies' violated: {NO_MODEL}"),
        # Nobody asked, though nothing failed: that is unknown, whoever wrote the words.
        (
            criterion(UNTOLD_CRITERION, DECIDED),
            Status.ERRORED,
            f"criterion 'Never lies' could not be judged: {DECIDED}",
        ),
    ],
    ids=[
        "met",
        "violated",
        "untold",
        "wish violated",
        "wish untold",
        "said decided",
        "said no model",
        "not asked",
    ],
)
def test_a_required_criterion_decides(found: CriterionResult, status: Status, says: str | None) -> None:
    """A violation fails the scenario, `cannot tell` makes it errored; an optional criterion does neither."""
    verdict = decided([judged(found)])
    assert verdict.status is status
    assert conversation_passed(judged(found)) is (status is Status.PASSED)
    assert [reason.message for reason in verdict.reasons] == ([says] if says else [])
    assert all(r.criterion == found and r.turn_index == 0 for r in verdict.reasons)


def test_criteria_without_a_model_are_one_reason() -> None:
    """Offline, criteria are errored, in one sentence with advice, whatever their number."""
    criteria = [criterion(UNTOLD_CRITERION, NO_MODEL, text=f"Does {n}") for n in range(20)]
    [reason] = decided([judged(*criteria)]).reasons
    assert reason.status is Status.ERRORED
    assert reason.message.startswith("criterion 'Does 0' and 19 more could not be judged: no model")
    assert "--model" in reason.message


def test_criteria_count_by_conversations() -> None:
    """With a pass rate, some conversations may violate a criterion, but none may be undecided."""
    good, bad, unknown = (judged(criterion(r), id=f"s-{r}") for r in (MET, VIOLATED, UNTOLD_CRITERION))
    assert decided([good, good, bad], pass_rate=0.6).status is Status.PASSED
    assert decided([good, good, bad], pass_rate=0.7).status is Status.FAILED
    assert decided([good, good, unknown], pass_rate=0.6).status is Status.ERRORED


def test_what_stays_unknown_of_a_failed_conversation_does_not_matter_for_the_rate() -> None:
    """A failed conversation counts as failed, even with an undecided criterion."""
    both = judged(criterion(VIOLATED), criterion(UNTOLD_CRITERION, text="Is polite"))
    assert decided([judged(criterion(MET)), both], pass_rate=0.5).status is Status.PASSED
    assert decided([judged(criterion(MET)), both], pass_rate=0.6).status is Status.FAILED


def test_skipped_questions_of_failed_conversations_are_not_reasons() -> None:
    """Metrics and criteria that were skipped because a conversation had failed are not reported."""
    missed = replace(
        judged(criterion(UNTOLD_CRITERION, DECIDED), goal_completion=Skipped(DECIDED)), trajectory=MISSED
    )
    [reason] = decided([missed], goal_completion=0.8).reasons
    assert reason.kind is ReasonKind.TRAJECTORY
    unknown = replace(missed, metrics={"goal_completion": OFFLINE})
    assert len(decided([unknown], goal_completion=0.8).reasons) == 2


def test_a_missed_goal_says_how_the_conversation_ended() -> None:
    """The reason lists the first three conversations that missed the goal."""
    missed = Score(0, "No refund.", outcome=GoalOutcome.NOT_REACHED)
    found = [judged(id=f"s-{n}", goal_completion=missed) for n in range(5)]
    right = judged(
        id="s-9", goal_completion=Score(1, "Not allowed.", outcome=GoalOutcome.RIGHTLY_NOT_REACHED)
    )
    [reason] = decided([*found, right], goal_completion=0.8).reasons
    first, *rows = reason.message.split("\n")
    assert first == "goal_completion: average 0.17 is below the threshold 0.8"
    assert rows[0] == "s-0: goal not reached; the user gave up: No refund."
    assert rows[3:] == ["and 2 more that did not reach it"]


@pytest.mark.parametrize(
    ("limits", "reasons"),
    [
        ({"latency_p95_ms": 218}, []),
        ({"latency_p95_ms": 217}, ["95 % of the agent's turns took at most 218 ms, the limit is 217"]),
        ({"cost": 0.02}, []),
        ({"cost": 0.01}, ["the agent's models cost 0.015 USD a conversation, the limit is 0.01"]),
    ],
)
def test_latency_and_cost_have_upper_limits(limits: dict[str, float], reasons: list[str]) -> None:
    """The 95th percentile is over all turns, the cost is the average of the conversations."""
    slow = ([*range(100, 119), 500], 0.0005), ([*range(200, 219), 900], 0.001)
    found = []
    for latencies, cost in slow:
        turns = [
            builders.turn(n, latency_ms=ms, model_calls=1, model_cost=cost) for n, ms in enumerate(latencies)
        ]
        found.append(builders.conversation_result(held=builders.conversation(turns=turns)))
    verdict = decided(found, **limits)
    assert [(each.status, each.message.partition(": ")[2]) for each in verdict.reasons] == [
        (Status.FAILED, text) for text in reasons
    ]


@pytest.mark.parametrize("limit", ["cost", "latency_p95_ms"])
def test_limits_leave_out_invalid_conversations(limit: str) -> None:
    """What they cost is nevertheless in the totals of the agent's cost."""
    held = builders.conversation(turns=[builders.turn(latency_ms=900, model_calls=1, model_cost=9.0)])
    invalid = replace(builders.conversation_result(held=held), invalid="made up a booking")
    cheap = builders.conversation(turns=[builders.turn(latency_ms=1, model_calls=1, model_cost=1.0)])
    found = [invalid, builders.conversation_result(held=cheap)]
    assert [each.kind for each in decided(found, **{limit: 1}).reasons] == [ReasonKind.MODEL]
    assert totals_of(found).agent_cost == 10.0


@pytest.mark.parametrize("limit", ["cost", "latency_p95_ms"])
def test_a_limit_of_an_unknown_cost_or_latency_is_errored(limit: str) -> None:
    """Unknown never passes. Sessions of traces have neither."""
    recorded = builders.conversation(turns=[builders.turn(0, latency_ms=0.0)])
    (reason,) = decided([builders.conversation_result(held=recorded)], **{limit: 1}).reasons
    assert (reason.status, "is unknown" in reason.message) == (Status.ERRORED, True)


@pytest.mark.parametrize(
    ("decides", "judged", "status"),
    [
        (["criteria"], {"goal_completion": 0}, Status.PASSED),
        (["criteria"], {"agent_behavior_failure": "false information"}, Status.PASSED),
        (["criteria"], {"helpfulness": 1}, Status.PASSED),
        (["criteria"], {"criterion 1": "violated"}, Status.FAILED),
        (["goal"], {"criterion 1": "violated"}, Status.PASSED),
        (["goal"], {"goal_completion": 0}, Status.FAILED),
        (["goal", "metrics"], {"agent_behavior_failure": "false information"}, Status.FAILED),
        (["criteria", "metrics"], {"helpfulness": 1}, Status.FAILED),
        (None, {"goal_completion": 0}, Status.FAILED),
        (None, {"criterion 1": "violated"}, Status.FAILED),
    ],
)
def test_what_judges_decide(decides: list[str] | None, judged: dict[str, Any], status: Status) -> None:
    """Only what `decides` names fails a scenario; the rest is shown."""
    made = scenario("s", goal="g", criteria=["Is polite"], decides=decides, conversations_per_scenario=1)
    with ScriptedAgent(["Hello."]) as agent:
        model, least = ScriptedModel(scores=judged), {"helpfulness": 4}
        [result] = run_scenarios([made], agent=agent, model=model, thresholds=least).scenarios
    assert result.verdict.status is status, result.verdict
    shown = {name for name, _ in result.conversations[0].metric_results}
    assert {"helpfulness", "agent_behavior_failure"} <= shown
    assert ("goal_completion" in shown) is ("goal" in (decides or ["goal"]))
    assert ("helpfulness" in result.information) is ("metrics" not in (decides or ["metrics"]))


def test_a_metric_that_decides_nothing_may_be_unscored() -> None:
    """It neither errors the scenario nor counts in its average."""

    def answer(request: ChatRequest) -> dict[str, Any]:
        if request.key.metric == "helpfulness":
            raise TransientError("503: down")
        return ScriptedModel()._by_role(request)

    made = scenario("s", goal="g", criteria=["Is polite"], decides=["criteria"], metrics=["helpfulness"])
    with ScriptedAgent(["Hello."]) as agent:
        run = run_scenarios([made], agent=agent, model=ScriptedModel(answer=answer), judge={"batch": False})
    [result] = run.scenarios
    assert result.verdict.status is Status.PASSED, result.verdict
    [turn, *_] = result.conversations[0].turns
    assert isinstance(turn.metrics["helpfulness"], Skipped)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (Status.PASSED, Status.FAILED, "newly_failing"),
        (Status.PASSED, Status.ERRORED, ""),
        (Status.FAILED, Status.ERRORED, ""),
        (Status.ERRORED, Status.FAILED, "still_failing"),
        (Status.ERRORED, Status.PASSED, "newly_fixed"),
        (None, Status.FAILED, ""),
    ],
)
def test_a_scenario_without_a_verdict_has_not_changed(before: Status | None, now: Status, what: str) -> None:
    """A judge that does not answer is no failure of the agent."""
    result = builders.scenario_result("a")
    result = replace(result, verdict=replace(result.verdict, status=now))
    earlier = {(result.file, "a", result.agent): before} if before else {}
    found = changes_since(earlier, builders.run_result(result))
    names = ("newly_failing", "newly_fixed", "still_failing")
    assert [name for name in names if getattr(found, name)] == [what] * bool(what)
