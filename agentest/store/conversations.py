"""Convert conversations and their evaluations to the stored form and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agentest.domain.metrics import GOAL
from agentest.domain.reasons import threshold_counted_trajectories
from agentest.domain.results import (
    CaseId,
    CheckResult,
    ConversationResult,
    LabelledFailure,
    MetricResult,
    TrajectoryResult,
    TurnEvaluation,
)
from agentest.domain.transcript import Conversation, Failure, TimeSpent
from agentest.domain.verdict import conversation_passed
from agentest.store.adk_results import invocations_json
from agentest.store.codec import CODECS
from agentest.store.shapes import (
    StoredCheck,
    StoredConversation,
    StoredEvaluation,
    StoredFailure,
    StoredTime,
    StoredTrajectory,
    StoredTrajectoryScore,
    TurnScores,
    TurnTrajectory,
)
from agentest.support.json_text import Json, plain


def conversation_json(
    result: ConversationResult, case: CaseId | None, thresholds: Mapping[str, float]
) -> Json:
    """Encode a conversation in JSON types.

    Args:
        case: the case of an evaluation set that the scenario comes from, if any.
        thresholds: the scenario's thresholds.
    """
    return {**CODECS.write(stored_conversation(result)), **plain(invocations_json(case, thresholds, result))}


def stored_conversation(result: ConversationResult) -> StoredConversation:
    """Return the stored form of a conversation, without its ADK part."""
    conversation, failure = result.conversation, result.conversation.failure
    counted = [each.result for each in threshold_counted_trajectories(result)]
    return StoredConversation(
        conversation_id=conversation.conversation_id,
        passed=conversation_passed(result),
        ended_by=conversation.ending,
        error=failure.message if failure else None,
        error_source=failure.blame if failure else None,
        turns=conversation.turns,
        unfinished_turn=conversation.unfinished,
        evaluation=_stored_evaluation(result),
        trajectory=_stored_trajectory(result.trajectory, counted) if result.trajectory else None,
        per_turn_trajectory=tuple(
            TurnTrajectory(
                turn_index=turn.turn_index, trajectory=_stored_trajectory(turn.trajectory, counted)
            )
            for turn in result.turns
            if turn.trajectory
        ),
        labelled_failures=tuple(map(_stored_failure, result.failures)),
        time=stored_time(result.time),
        shortened=conversation.shortened,
        initial_state=conversation.initial_state,
        criteria=result.criteria,
        invalid=result.invalid,
        checks=tuple(map(_stored_check, result.checks)),
        mock_state=conversation.mock_state,
        inexact_state=conversation.inexact_state,
        user_calls=conversation.user_calls,
        severe_failures=result.severe_failures,
        severity_unknown=result.severity_unknown,
    )


def conversation_of(stored: StoredConversation) -> Conversation:
    """Return the transcript of a stored conversation."""
    failure = None
    if stored.error is not None and stored.error_source is not None:
        failure = Failure(stored.error_source, stored.error)
    return Conversation(
        conversation_id=stored.conversation_id,
        turns=stored.turns,
        ending=stored.ended_by,
        failure=failure,
        unfinished=stored.unfinished_turn,
        shortened=stored.shortened,
        initial_state=stored.initial_state,
        mock_state=stored.mock_state,
        inexact_state=stored.inexact_state,
        user_calls=stored.user_calls,
    )


def result_of(stored: StoredConversation) -> ConversationResult:
    """Return a stored conversation with its evaluation."""
    return ConversationResult(
        conversation=conversation_of(stored),
        turns=_evaluations(stored),
        metrics=_metrics(stored.evaluation),
        trajectory=_trajectory(stored.trajectory) if stored.trajectory else None,
        failures=tuple(_failure(failure, stored.conversation_id) for failure in stored.labelled_failures),
        time=stored.time.spent,
        criteria=stored.criteria,
        invalid=stored.invalid,
        checks=tuple(map(_check, stored.checks)),
        severe_failures=stored.severe_failures,
        severity_unknown=stored.severity_unknown,
    )


def with_vacuous(conversation: StoredConversation) -> StoredConversation:
    """Mark each trajectory that matched only because no call was visible."""
    return replace(
        conversation,
        trajectory=_vacuous(conversation.trajectory) if conversation.trajectory else None,
        per_turn_trajectory=tuple(
            replace(turn, trajectory=_vacuous(turn.trajectory)) for turn in conversation.per_turn_trajectory
        ),
    )


def _vacuous(trajectory: StoredTrajectory) -> StoredTrajectory:
    parts = tuple(map(_vacuous, trajectory.parts))
    return replace(trajectory, vacuous=trajectory.without_calls, parts=parts)


def stored_time(time: TimeSpent) -> StoredTime:
    return StoredTime(spent=time, own_ms=time.own_ms)


def _stored_evaluation(result: ConversationResult) -> StoredEvaluation:
    metrics = dict(result.metrics)
    return StoredEvaluation(
        turn_evaluations=tuple(map(_scores, result.turns)),
        goal_completion=metrics.pop(GOAL, None),
        conversation_metrics=metrics,
    )


def _metrics(evaluation: StoredEvaluation) -> dict[str, MetricResult]:
    goal = evaluation.goal_completion
    return {**({GOAL: goal} if goal else {}), **evaluation.conversation_metrics}


def _scores(turn: TurnEvaluation) -> TurnScores:
    checks = tuple(_stored_check(check) for check in turn.checks)
    return TurnScores(
        turn_index=turn.turn_index, metrics=turn.metrics, checks=checks, judged_ms=turn.judged_ms
    )


def _stored_check(check: CheckResult) -> StoredCheck:
    return StoredCheck(
        check=check.check,
        passed=check.passed,
        reason=check.reason,
        reply=check.reply,
        error=check.error,
        turn_index=check.turn_index,
    )


def _check(stored: StoredCheck) -> CheckResult:
    check = CheckResult(
        check=stored.check,
        passed=stored.passed,
        summary="",
        reply=stored.reply,
        error=stored.error,
        turn_index=stored.turn_index,
    )
    return check.with_reason(stored.reason)


def _evaluations(stored: StoredConversation) -> tuple[TurnEvaluation, ...]:
    trajectories = {turn.turn_index: _trajectory(turn.trajectory) for turn in stored.per_turn_trajectory}
    return tuple(
        TurnEvaluation(
            turn_index=turn.turn_index,
            metrics=turn.metrics,
            trajectory=trajectories.get(turn.turn_index),
            checks=tuple(map(_check, turn.checks)),
            judged_ms=turn.judged_ms,
        )
        for turn in stored.evaluation.turn_evaluations
    )


def _stored_trajectory(result: TrajectoryResult, counted: Sequence[TrajectoryResult]) -> StoredTrajectory:
    return StoredTrajectory(
        matched=None if result.error else result.matched,
        missing_calls=result.missing_calls,
        extra_calls=result.extra_calls,
        ordering_issues=result.ordering_issues,
        forbidden_calls=result.forbidden_calls,
        broken=result.broken,
        counted=any(each is result for each in counted),
        reason=result.reason,
        mode=result.mode,
        expected=result.expected,
        forbidden=result.forbidden,
        actual=result.actual,
        error=result.error,
        without_calls=result.without_calls,
        alignment=result.alignment,
        alignment_more=result.alignment_more,
        name=result.name,
        score=StoredTrajectoryScore(score=result.score, f1=result.score.f1) if result.score else None,
        parts=tuple(_stored_trajectory(part, counted) for part in result.parts),
    )


def _trajectory(stored: StoredTrajectory) -> TrajectoryResult:
    result = TrajectoryResult(
        matched=bool(stored.matched),
        summary="",
        mode=stored.mode,
        expected=stored.expected,
        forbidden=stored.forbidden,
        actual=stored.actual,
        missing_calls=stored.missing_calls,
        extra_calls=stored.extra_calls,
        ordering_issues=stored.ordering_issues,
        forbidden_calls=stored.forbidden_calls,
        broken=stored.broken,
        error=stored.error,
        without_calls=stored.without_calls,
        alignment=stored.alignment,
        alignment_more=stored.alignment_more,
        name=stored.name,
        score=stored.score.score if stored.score else None,
        parts=tuple(map(_trajectory, stored.parts)),
    )
    return result.with_reason(stored.reason)


def _stored_failure(failure: LabelledFailure) -> StoredFailure:
    return StoredFailure(
        id=failure.id,
        turn_index=failure.turn_index,
        metric=failure.metric,
        label=failure.label,
        reason=failure.reason,
        severity=failure.severity,
    )


def _failure(stored: StoredFailure, conversation_id: str) -> LabelledFailure:
    return LabelledFailure(
        id=stored.id,
        conversation_id=conversation_id,
        turn_index=stored.turn_index,
        metric=stored.metric,
        label=stored.label,
        reason=stored.reason,
        severity=stored.severity,
    )
