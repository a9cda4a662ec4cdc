"""Decide whether one conversation passed, and find the reasons if not: trajectories, checks, criteria, goals.

Together with `verdict`, this is the only module that decides what passes. It also has the outcomes of goals
and criteria as values, sentences and totals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from math import fsum

from agentest.domain.end_reason import IN_WORDS, Ending
from agentest.domain.metrics import GOAL, METRICS, NO_FAILURE, TRAJECTORY_METRICS, Kind
from agentest.domain.results import (
    NO_MODEL,
    CheckResult,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    CriterionTotals,
    GoalOutcome,
    Reason,
    ReasonKind,
    Score,
    Status,
    TrajectoryResult,
    Unscored,
)
from agentest.domain.transcript import Blame
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import shortened

_AMOUNTS = frozenset(metric.name for metric in METRICS.values() if metric.kind is Kind.AMOUNT)


def conversation_reasons(result: ConversationResult) -> Sequence[Reason]:
    """Return why a conversation did not pass, apart from grouped failures and metrics without a score."""
    if result.reasons is not None:
        return result.reasons
    id = result.conversation.conversation_id
    if result.invalid is not None:
        message = f"the conversation says nothing of the agent: {result.invalid}"
        return [Reason(Status.ERRORED, ReasonKind.MODEL, message, conversation_id=id)]
    reasons = _certain_reasons(result)
    if result.criteria:
        reasons += _criterion_reasons(result, failed=any_failed(reasons))
    if GOAL in result.metrics and missed_goal(result):
        why = shortened(goal_reason(result), _REASON_CHARS)
        message = f"goal {goal_outcome(result)}" + (f": {why}" if why else "")
        reasons.append(Reason(Status.FAILED, ReasonKind.GOAL, message, conversation_id=id, metric=GOAL))
    return reasons


def conversation_status(result: ConversationResult) -> Status:
    """Return a conversation's status, for rates and comparisons; errored if unknown but not failed."""
    reasons = conversation_reasons(result)
    if any_failed(reasons) or result.severe_failures:
        return Status.FAILED
    unscored = (isinstance(score, Unscored) and name in METRICS for name, score in result.metric_results)
    if reasons or result.severity_unknown or any(unscored):
        return Status.ERRORED
    return Status.PASSED


def conversation_passed(result: ConversationResult) -> bool:
    """True if the conversation passed, based on the information so far."""
    return conversation_status(result) is Status.PASSED


def conversation_failed(result: ConversationResult) -> bool:
    """True if the conversation failed, based on the information so far."""
    return bool(result.severe_failures) or any_failed(conversation_reasons(result))


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConversation:
    """Measurements of one conversation."""

    passed: bool | None  # None if the conversation errored
    sums: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Maps a metric to the sum and number of its values. For labels, turns with a failure are counted."""
    latency: tuple[float, int] = (0.0, 0)
    """The agent's time for all turns in milliseconds, and the number of turns."""
    cost: float | None = None  # cost in USD of the agent's models; None if unknown
    scripted: bool = False  # True if the conversation came to the end of its script
    failures: tuple[str, ...] = ()
    """The ids of its labelled failures; `passed` leaves the severity of their groups out."""


def measured_conversation(result: ConversationResult) -> MeasuredConversation:
    """Measure a conversation, apart from the severity of its failures."""
    sums: dict[str, tuple[float, int]] = {}
    for name, score in result.metric_results:
        if isinstance(score, Score) and name not in _AMOUNTS:
            total, n = sums.get(name, (0.0, 0))
            value = float(score.value != NO_FAILURE) if score.number is None else score.number
            sums[name] = total + value, n + 1
    turns = result.conversation.turns
    costs = [turn.model_cost for turn in turns if turn.model_calls]
    known = [cost for cost in costs if cost is not None]
    ungraded = replace(result, severe_failures=(), severity_unknown=False) if result.failures else result
    return MeasuredConversation(
        passed={Status.PASSED: True, Status.FAILED: False}.get(conversation_status(ungraded)),
        sums=sums,
        latency=(round(fsum(turn.latency_ms for turn in turns), 3), len(turns)),
        cost=fsum(known) if known and len(known) == len(costs) else None,
        scripted=result.conversation.ending is Ending.SCRIPT,
        failures=tuple(failure.id for failure in result.failures),
    )


def _certain_reasons(result: ConversationResult) -> list[Reason]:
    id = result.conversation.conversation_id
    failure = result.conversation.failure
    reasons = []
    if failure:
        unfinished = result.conversation.unfinished
        reasons.append(
            Reason(
                Status.FAILED if failure.blame is Blame.AGENT else Status.ERRORED,
                ReasonKind.MODEL if failure.blame is Blame.MODEL else ReasonKind.CONVERSATION,
                failure.message,
                conversation_id=id,
                turn_index=unfinished.turn_index if unfinished else None,
            )
        )
    by_calls = list(_trajectory_reasons(result))
    if by_calls:
        reasons += [reason for reason in by_calls if reason.turn_index is None]
    for turn in result.turns:
        if by_calls:
            reasons += [reason for reason in by_calls if reason.turn_index == turn.turn_index]
        if turn.checks:
            reasons += _check_reasons(turn.checks, id, turn.turn_index)
    if result.checks:
        reasons += _check_reasons(result.checks, id)
    return reasons


def _check_reasons(
    checks: Iterable[CheckResult], conversation_id: str, turn_index: int | None = None
) -> Iterator[Reason]:
    for check in checks:
        if not check.passed:
            yield Reason(
                check_status(check),
                ReasonKind.CHECK,
                f"{check.check}: {check.reason}",
                conversation_id=conversation_id,
                turn_index=check.turn_index if turn_index is None else turn_index,
                check=check,
            )


def _criterion_reasons(result: ConversationResult, *, failed: bool) -> Iterator[Reason]:
    id = result.conversation.conversation_id
    missed = [c for c in result.criteria if c.required and c.result is not CriterionOutcome.MET]
    undecided = [c for c in missed if not (failed and c.not_asked)]
    for criterion in undecided:
        if not criterion.without_model:
            violated = criterion.result is CriterionOutcome.VIOLATED
            yield Reason(
                Status.FAILED if violated else Status.ERRORED,
                ReasonKind.CRITERION,
                criterion_message(criterion),
                conversation_id=id,
                turn_index=criterion.turn_index,
                criterion=criterion,
            )
    if unasked := [c for c in undecided if c.without_model]:
        more = f" and {len(unasked) - 1} more" if unasked[1:] else ""
        message = (
            f"criterion {unasked[0].text!r}{more} could not be judged: {NO_MODEL}; name one (`model`, "
            "--model), or let the criterion decide nothing: Criterion(…, required=False)"
        )
        yield Reason(Status.ERRORED, ReasonKind.CRITERION, message, conversation_id=id)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedTrajectory:
    """The result of one trajectory and the turn that it covers."""

    turn_index: int | None  # the turn of the trajectory; None for the whole conversation
    result: TrajectoryResult

    @property
    def subject(self) -> str:
        """The trajectory's name in messages."""
        name = f" {self.result.name!r}" if self.result.name else ""
        return f"trajectory{name}" + ("" if self.turn_index is None else " of the turn")


def located_trajectories(result: ConversationResult) -> Iterator[LocatedTrajectory]:
    """Yield every single trajectory: first those of the whole conversation, then those of its turns."""
    of_turns = [(turn.turn_index, turn.trajectory) for turn in result.turns]
    for turn_index, trajectory in ((None, result.trajectory), *of_turns):
        for part in (trajectory.parts or (trajectory,)) if trajectory else ():
            yield LocatedTrajectory(turn_index=turn_index, result=part)


def threshold_counted_trajectories(result: ConversationResult) -> tuple[LocatedTrajectory, ...]:
    """Return the mismatched trajectories that are not reasons, because a threshold counts what they lack."""
    if TRAJECTORY_METRICS.keys().isdisjoint(result.metrics):
        return ()
    return tuple(each for each in located_trajectories(result) if _is_counted(result, each.result))


def _is_counted(result: ConversationResult, trajectory: TrajectoryResult) -> bool:
    if TRAJECTORY_METRICS.keys().isdisjoint(result.metrics):
        return False
    calls = trajectory.missing_calls or trajectory.extra_calls or trajectory.ordering_issues
    other = trajectory.matched or trajectory.error or trajectory.forbidden_calls or trajectory.broken
    return bool(calls) and not other


def _trajectory_reasons(result: ConversationResult) -> Iterator[Reason]:
    for each in located_trajectories(result):
        if not each.result.matched and not _is_counted(result, each.result):
            yield Reason(
                trajectory_status(each.result),
                ReasonKind.TRAJECTORY,
                f"{each.subject}: {each.result.reason}",
                conversation_id=result.conversation.conversation_id,
                turn_index=each.turn_index,
                trajectory=each.result,
            )


def trajectory_status(trajectory: TrajectoryResult) -> Status:
    """Return the status of a trajectory; errored if its calls could not be compared."""
    return _status(trajectory.matched, trajectory.error)


def check_status(check: CheckResult) -> Status:
    """Return the status of a check; errored if the reply could not be checked."""
    return _status(check.passed, check.error)


def criterion_status(criterion: CriterionResult) -> Status:
    """Return the status of a conversation with only this criterion; optional or skipped ones pass."""
    if not criterion.required or criterion.result is CriterionOutcome.MET or criterion.not_asked:
        return Status.PASSED
    if criterion.result is CriterionOutcome.VIOLATED:
        return Status.FAILED
    return Status.ERRORED


def any_failed(reasons: Iterable[Reason]) -> bool:
    """True if one of the reasons fails a scenario."""
    return any(reason.status is Status.FAILED for reason in reasons)


def _status(passed: bool, error: str | None) -> Status:
    return Status.PASSED if passed else Status.ERRORED if error else Status.FAILED


_SHOWN_MISSES = 3
_REASON_CHARS = 500  # the maximum length of a judge's reason in a message; the full reason is in the result
_WORST_FIRST = tuple(CriterionOutcome)


def goal_outcome(result: ConversationResult) -> GoalOutcome | None:
    """Return the outcome of the conversation's goal, in older results by its score; None if it is unknown."""
    score = result.metrics.get(GOAL)
    if not isinstance(score, Score) or score.number is None:
        return None
    return score.outcome or (GoalOutcome.REACHED if score.number else GoalOutcome.NOT_REACHED)


def missed_goal(result: ConversationResult) -> bool:
    """True if the judge found that the goal was not reached, or was reached wrongly."""
    outcome = goal_outcome(result)
    return outcome is not None and not outcome.value_of_goal


def goal_reason(result: ConversationResult) -> str:
    """Return the reason for the outcome of the conversation's goal."""
    score = result.metrics.get(GOAL)
    return score.reason if isinstance(score, Score) else ""


def missed_goals(conversations: Iterable[ConversationResult]) -> str:
    """List the first conversations that missed their goal, with end and reason, each after a line break."""
    missed = [each for each in conversations if missed_goal(each)]
    rows: list[str] = []
    for each in missed[:_SHOWN_MISSES]:
        conversation = each.conversation
        why = shortened(goal_reason(each), _REASON_CHARS)  # one row: a line break would begin another
        ended = f"goal {goal_outcome(each)}; {IN_WORDS[conversation.ending]}"
        rows.append(f"{conversation.conversation_id}: {ended}: {why}")
    if missed[_SHOWN_MISSES:]:
        rows.append(f"and {len(missed) - _SHOWN_MISSES} more that did not reach it")
    return "".join(f"\n{row}" for row in rows)


def criterion_message(criterion: CriterionResult) -> str:
    """Describe a criterion that is violated or unknown, with its text and the reason."""
    what = "violated" if criterion.result is CriterionOutcome.VIOLATED else "could not be judged"
    return f"criterion {criterion.text!r} {what}: {shortened(criterion.reason, _REASON_CHARS)}"


def criteria_totals(judged: Iterable[tuple[str, CriterionResult]]) -> tuple[CriterionTotals, ...]:
    """Count the outcomes of each criterion, given with the id of the conversation in which it was judged."""
    by_text: dict[str, list[tuple[str, CriterionResult]]] = {}
    for id, criterion in judged:
        if not criterion.not_asked:
            by_text.setdefault(criterion.text, []).append((id, criterion))
    return tuple(map(_totals, by_text.values()))


def _totals(criteria: Sequence[tuple[str, CriterionResult]]) -> CriterionTotals:
    results = [criterion.result for _, criterion in criteria]
    first = min(criteria, key=lambda each: _WORST_FIRST.index(each[1].result))
    return CriterionTotals(
        text=first[1].text,
        required=first[1].required,
        met=results.count(CriterionOutcome.MET),
        violated=results.count(CriterionOutcome.VIOLATED),
        undecided=results.count(CriterionOutcome.CANNOT_TELL),
        example=None if first[1].result is CriterionOutcome.MET else first,
    )
