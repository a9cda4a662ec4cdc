"""What google-adk's own results say of a case of an evaluation set, in its shape, beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.results import (
    CaseId,
    ConversationResult,
    MetricResult,
    RubricScore,
    ScenarioResult,
    Score,
    Status,
    TurnEvaluation,
)
from agentest.store.invocations import turn_invocation
from agentest.transcript import Turn

Json = dict[str, Any]
_STATUS = {Status.PASSED: "PASSED", Status.FAILED: "FAILED"}
_NOT_EVALUATED = "NOT_EVALUATED"


def case_json(result: ScenarioResult) -> Json:
    """The keys that a scenario has when it is a case; none where it is not."""
    if result.case is None:
        return {}
    return {
        "evalSetId": result.case.eval_set_id,
        "evalId": result.case.eval_id,
        "finalEvalStatus": _STATUS.get(result.verdict.status, _NOT_EVALUATED),
        "overallEvalMetricResults": [
            _metric(name, threshold, result.averages.get(name))
            for name, threshold in result.thresholds.items()
        ],
    }


def invocations_json(
    case: CaseId | None, thresholds: Mapping[str, float], conversation: ConversationResult
) -> Json:
    """`evalMetricResultPerInvocation` of a case's conversation; nothing where it is no case."""
    if case is None:
        return {}
    evaluations = {turn.turn_index: turn for turn in conversation.turns}
    held = conversation.conversation
    return {
        "evalMetricResultPerInvocation": [
            _invocation(turn, evaluations.get(turn.turn_index), held.conversation_id, thresholds)
            for turn in held.turns
        ]
    }


def _invocation(
    turn: Turn, evaluation: TurnEvaluation | None, conversation_id: str, thresholds: Mapping[str, float]
) -> Json:
    reference = evaluation.reference if evaluation else None
    found = evaluation.metrics if evaluation else {}
    return {
        "actualInvocation": turn_invocation(turn, f"{conversation_id}-{turn.turn_index}"),
        "expectedInvocation": dict(reference.invocation) if reference else None,
        "evalMetricResults": [
            _of_turn(name, threshold, found.get(name)) for name, threshold in thresholds.items()
        ],
    }


def _of_turn(name: str, threshold: float, found: MetricResult | None) -> Json:
    if isinstance(found, Score) and not isinstance(found.value, str):
        return _metric(name, threshold, float(found.value), found.rubrics)
    return _metric(name, threshold, None)


def _metric(name: str, threshold: float, score: float | None, rubrics: tuple[RubricScore, ...] = ()) -> Json:
    status = _NOT_EVALUATED
    if score is not None:
        status = "PASSED" if score >= threshold else "FAILED"
    scores = [{"rubricId": r.rubric_id, "score": r.score, "rationale": r.rationale} for r in rubrics]
    details = {"details": {"rubricScores": scores}} if scores else {}
    return {"metricName": name, "threshold": threshold, "score": score, "evalStatus": status, **details}
