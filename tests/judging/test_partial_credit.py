"""Partial credit: trajectory metrics, and thresholds on them that replace exact matching."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import builders as make
import pytest

from agentest import Scenario, ScriptedTurn, scenario
from agentest.domain.figures import intervals
from agentest.domain.metrics import TRAJECTORY_METRICS
from agentest.domain.reasons import threshold_counted_trajectories
from agentest.domain.results import (
    ConversationResult,
    Deduplication,
    ReasonKind,
    Score,
    Severity,
    Skipped,
    Status,
    TrajectoryResult,
    TrajectoryScore,
    Unscored,
)
from agentest.domain.transcript import Blame
from agentest.domain.verdict import averages, decide
from agentest.judging.evaluation import NO_TRAJECTORY, partial_credit
from agentest.scenarios.trajectory import Trajectory
from agentest.scenarios.trajectory_parser import parse_trajectory

HALF = TrajectoryScore(met=0.5, precision=1.0, recall=0.5)
WHOLE = TrajectoryScore(met=1.0, precision=1.0, recall=1.0)
BOOKS = parse_trajectory({"expected": ["check", "book"]})
MISSING = TrajectoryResult(
    matched=False, summary="expected calls are missing: book", missing_calls=("book",), score=HALF
)
HELD = TrajectoryResult(matched=True, summary="2 tool calls, as expected", score=WHOLE)
UNTOLD = TrajectoryResult(matched=False, summary="cannot be seen", error="calls of agent 'a' cannot be seen")
ALL = tuple(TRAJECTORY_METRICS)


def spec(*whole: Trajectory, turns: tuple[ScriptedTurn, ...] = ()) -> Scenario:
    return Scenario("books", "/a.sim.py", 3, turns=turns, trajectory=whole)


def result(
    whole: TrajectoryResult | None, *of_turns: TrajectoryResult | None, **more: Any
) -> ConversationResult:
    held = make.conversation(turns=tuple(make.turn(index) for index in range(max(1, len(of_turns)))), **more)
    turns = tuple(
        replace(make.turn_evaluation(index), metrics={}, trajectory=found, checks=())
        for index, found in enumerate(of_turns or (None,))
    )
    return ConversationResult(held, turns, trajectory=whole)


def values(found: dict[str, Any]) -> dict[str, Any]:
    return {name: round(each.value, 3) for name, each in found.items() if isinstance(each, Score)}


def test_the_four_numbers_of_a_trajectory() -> None:
    """Each metric is one number of the trajectory's score."""
    found = partial_credit(ALL, spec(BOOKS), result(MISSING))
    assert values(found) == {
        "trajectory_score": 0.5,
        "trajectory_precision": 1.0,
        "trajectory_recall": 0.5,
        "trajectory_f1": 0.667,
    }
    assert partial_credit((), spec(BOOKS), result(MISSING)) == {}


def test_several_trajectories_count_alike() -> None:
    """All trajectories, of the conversation and of turns, count equally in the average."""
    several = replace(MISSING, score=None, parts=(MISSING, HELD))
    script = (ScriptedTurn("hi", (BOOKS,)),)
    found = partial_credit(["trajectory_score"], spec(BOOKS, BOOKS, turns=script), result(several, MISSING))
    assert values(found) == {"trajectory_score": round(2 / 3, 3)}


def test_a_turn_that_was_not_reached_is_not_met() -> None:
    """Turns not reached because the agent broke off get no credit."""
    script = tuple(ScriptedTurn("hi", (BOOKS,)) for _ in range(2))
    broken = result(None, HELD, failure=make.failure())
    assert values(partial_credit(["trajectory_recall"], spec(turns=script), broken)) == {
        "trajectory_recall": 0.5
    }


@pytest.mark.parametrize(
    ("trajectories", "held", "expected"),
    [
        ((BOOKS,), result(UNTOLD), Unscored("calls of agent 'a' cannot be seen")),
        (
            (BOOKS, BOOKS),
            result(replace(UNTOLD, parts=(HELD, UNTOLD))),
            Unscored("calls of agent 'a' cannot be seen"),
        ),
        (
            (BOOKS, BOOKS),
            result(replace(MISSING, parts=(HELD, replace(MISSING, score=None, actual="check")))),
            Unscored("it is not known of all calls whether they are as expected"),
        ),
        ((), result(None), Skipped(NO_TRAJECTORY)),
        ((parse_trajectory({"max_turns": 3}),), result(HELD), Skipped(NO_TRAJECTORY)),
        ((BOOKS,), result(None, failure=make.failure(Blame.MODEL)), None),
        ((BOOKS,), result(None, failure=make.failure(Blame.MOCK)), None),
    ],
    ids=[
        "unseen",
        "one of two",
        "part of the calls",
        "no trajectory",
        "turns only",
        "model failed",
        "mock failed",
    ],
)
def test_metrics_without_a_value(trajectories: Any, held: Any, expected: Any) -> None:
    """Undecidable calls are unscored, a missing trajectory is skipped, a model failure gives no value."""
    found = partial_credit(["trajectory_score"], spec(*trajectories), held)
    assert found.get("trajectory_score") == expected


def credited(whole: TrajectoryResult, **more: Any) -> ConversationResult:
    held = result(whole, **more)
    return replace(held, metrics=partial_credit(["trajectory_score"], spec(BOOKS), held))


def decided(*held: ConversationResult, least: float = 0.5) -> Any:
    return decide(held, Deduplication(), {"trajectory_score": least}, Severity.CRITICAL)


@pytest.mark.parametrize(
    ("whole", "least", "status", "kinds"),
    [
        (MISSING, 0.5, Status.PASSED, []),
        (MISSING, 0.6, Status.FAILED, [ReasonKind.THRESHOLD]),
        (replace(MISSING, forbidden_calls=("drop",)), 0.5, Status.FAILED, [ReasonKind.TRAJECTORY]),
        (replace(MISSING, broken=("5 calls were made",)), 0.5, Status.FAILED, [ReasonKind.TRAJECTORY]),
        # Something else than calls keeps it from matching, though nobody names it.
        (replace(MISSING, missing_calls=()), 0.5, Status.FAILED, [ReasonKind.TRAJECTORY]),
        (UNTOLD, 0.0, Status.ERRORED, [ReasonKind.THRESHOLD, ReasonKind.TRAJECTORY]),
        (replace(MISSING, parts=(MISSING, HELD)), 0.75, Status.PASSED, []),
        (
            replace(MISSING, parts=(MISSING, replace(HELD, matched=False, broken=("before",)))),
            0.75,
            Status.FAILED,
            [ReasonKind.TRAJECTORY],
        ),
    ],
    ids=["met", "below", "forbidden", "limit", "unnamed", "untold", "parts", "order of a part"],
)
def test_a_threshold_replaces_exact_matching(whole: Any, least: float, status: Status, kinds: Any) -> None:
    """Missing, extra and misplaced calls count only by the threshold; other violations still fail."""
    verdict = decided(credited(whole), least=least)
    assert verdict.status is status
    assert sorted(reason.kind for reason in verdict.reasons) == sorted(kinds)


def test_without_a_threshold_nothing_changes() -> None:
    """Without a threshold, a mismatched trajectory fails the scenario."""
    verdict = decide([result(MISSING)], Deduplication(), {}, Severity.CRITICAL)
    assert [reason.kind for reason in verdict.reasons] == [ReasonKind.TRAJECTORY]


def test_a_mismatch_within_the_threshold_is_still_reported() -> None:
    """A mismatch that fails nothing is still available to reports, with its turn and trajectory name."""
    named = replace(MISSING, name="writes")
    (counted,) = threshold_counted_trajectories(credited(named))
    assert (counted.turn_index, counted.subject, counted.result) == (None, "trajectory 'writes'", named)
    assert threshold_counted_trajectories(result(named)) == ()
    assert threshold_counted_trajectories(credited(HELD)) == ()


def test_averages_have_intervals_on_the_scale_from_0_to_1() -> None:
    """The average is over conversations, and its interval stays between 0 and 1."""
    held = [credited(MISSING), credited(HELD), credited(HELD)]
    found = intervals(held, averages(held))["trajectory_score"]
    assert (round(found.value, 3), found.n) == (0.833, 3)
    assert found.low is not None
    assert found.high is not None
    assert 0 <= found.low <= found.high <= 1


def test_thresholds_take_either_spelling() -> None:
    """`trajectoryScore` means `trajectory_score`, as for all metrics."""
    made = scenario("s", goal="g", trajectory={"expected": ["x"]}, thresholds={"trajectoryScore": 0.5})
    assert made.thresholds == {"trajectory_score": 0.5}
