"""How much of its trajectories a conversation meets, as metrics: partial credit beside the verdict."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import mean

from agentest.domain.metrics import TRAJECTORY_METRICS, TRAJECTORY_SCORE, one_for_each
from agentest.domain.reasons import held_trajectories
from agentest.domain.results import (
    ConversationResult,
    MetricResult,
    Score,
    Skipped,
    TrajectoryResult,
    TrajectoryScore,
    Unscored,
)
from agentest.domain.transcript import Blame
from agentest.scenarios.model import Scenario

NO_TRAJECTORY = "the scenario has no trajectory about calls"
_SHORTENED = "texts of the conversation are shortened, so its calls cannot be compared"

_NOTHING = TrajectoryScore(met=0.0, precision=0.0, recall=0.0)

_VALUES: Mapping[str, Callable[[TrajectoryScore], float]] = one_for_each(
    TRAJECTORY_METRICS.values(),
    {
        TRAJECTORY_SCORE: lambda score: score.met,
        "trajectory_precision": lambda score: score.precision,
        "trajectory_recall": lambda score: score.recall,
        "trajectory_f1": lambda score: score.f1,
    },
)


def partial_credit(
    names: Collection[str], scenario: Scenario, result: ConversationResult
) -> dict[str, MetricResult]:
    """Those of the metrics of trajectories that are named: each the mean over all trajectories about calls.

    Args:
        result: whose trajectories, the whole one's and the turns', have been compared.

    One that could not be compared leaves all of them without a value; one of a turn that was not reached is
    not met at all. A conversation that something but the agent cut short has none: its failure says it.
    """
    failure = result.conversation.failure
    if not names or (failure and failure.blame is not Blame.AGENT):
        return {}
    if not any(each.about_calls for each in scenario.trajectories):
        return dict.fromkeys(names, Skipped(NO_TRAJECTORY))
    held = [each.result for each in held_trajectories(result)]
    untold = [why for each in held if (why := _untold(each))]
    scores = [each.score for each in held if each.score]
    scores += [_NOTHING] * _unreached(scenario, result)
    if untold or not scores:
        why = "; ".join(dict.fromkeys(untold)) or _unheld(result)
        return dict.fromkeys(names, Unscored(why))
    return {name: _measured(name, scores) for name in TRAJECTORY_METRICS if name in names}


def _untold(trajectory: TrajectoryResult) -> str | None:
    """Why its score is not known; None where it is, or where the trajectory is not about calls."""
    if trajectory.error or trajectory.score or trajectory.actual is None:
        return trajectory.error
    return "it is not known of all calls whether they are as expected"


def _unreached(scenario: Scenario, result: ConversationResult) -> int:
    """How many trajectories are of turns to which the conversation did not come."""
    reached = {turn.turn_index for turn in result.turns}
    later = (turn for index, turn in enumerate(scenario.turns) if index not in reached)
    return sum(each.about_calls for turn in later for each in turn.trajectory)


def _measured(name: str, scores: Sequence[TrajectoryScore]) -> Score:
    values = [_VALUES[name](score) for score in scores]
    each = f": {', '.join(f'{value:.2g}' for value in values)}" if values[1:] else ""
    return Score(mean(values), f"of {len(values)} trajector{'ies' if values[1:] else 'y'}{each}")


def _unheld(result: ConversationResult) -> str:
    """Why no trajectory has a score."""
    return _SHORTENED if result.conversation.shortened else "no trajectory about calls was compared"
