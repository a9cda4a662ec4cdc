"""The keys of google-adk's own results for a case of an evaluation set, which stand beside ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.domain.metrics import PASS_RATE, TRAJECTORY_METRICS
from agentest.domain.results import (
    CaseId,
    ConversationResult,
    MetricResult,
    MetricVerdict,
    ScenarioResult,
    Score,
    Status,
    TurnEvaluation,
)
from agentest.domain.transcript import Turn
from agentest.domain.verdict import turn_verdict
from agentest.store.invocations import turn_invocation

Json = dict[str, Any]
_STATUS = {Status.PASSED: "PASSED", Status.FAILED: "FAILED"}
_NOT_EVALUATED = "NOT_EVALUATED"
_INFORMATIONAL = "INFORMATIONAL"
_OURS = {PASS_RATE, *TRAJECTORY_METRICS}
"""What a case may have thresholds for that ADK does not know."""


def case_json(result: ScenarioResult) -> Json:
    """The keys that a scenario has when it is a case; none where it is not."""
    if result.case is None:
        return {}
    return {
        "evalSetId": result.case.eval_set_id,
        "evalId": result.case.eval_id,
        "finalEvalStatus": _STATUS.get(result.verdict.status, _NOT_EVALUATED),
        "overallEvalMetricResults": [
            *(_metric(verdict) for verdict in result.metric_verdicts if verdict.name not in _OURS),
            *(_informational(name, result.averages.get(name)) for name in result.information),
        ],
    }


def invocations_json(
    case: CaseId | None, thresholds: Mapping[str, float], conversation: ConversationResult
) -> Json:
    """`evalMetricResultPerInvocation` of a case's conversation; nothing where it is no case."""
    if case is None:
        return {}
    evaluations = {turn.turn_index: turn for turn in conversation.turns}
    id = conversation.conversation.conversation_id
    return {
        "evalMetricResultPerInvocation": [
            _invocation(turn, evaluations.get(turn.turn_index), id, thresholds)
            for turn in conversation.conversation.turns
        ]
    }


def _invocation(
    turn: Turn, evaluation: TurnEvaluation | None, conversation_id: str, thresholds: Mapping[str, float]
) -> Json:
    reference = evaluation.reference if evaluation else None
    results = evaluation.metrics if evaluation else {}
    of_adk = {name: threshold for name, threshold in thresholds.items() if name not in _OURS}
    return {
        "actualInvocation": turn_invocation(turn, f"{conversation_id}-{turn.turn_index}"),
        "expectedInvocation": dict(reference.invocation) if reference else None,
        "evalMetricResults": [
            *(_metric_of_turn(name, threshold, results.get(name)) for name, threshold in of_adk.items()),
            *(_information_of_turn(name, one) for name, one in results.items() if name not in thresholds),
        ],
    }


def _metric_of_turn(name: str, threshold: float, result: MetricResult | None) -> Json:
    return {**_metric(turn_verdict(name, threshold, result)), **_details(result)}


def _information_of_turn(name: str, result: MetricResult) -> Json:
    return {**_informational(name, result.number if isinstance(result, Score) else None), **_details(result)}


def _details(result: MetricResult | None) -> Json:
    rubrics = result.rubrics if isinstance(result, Score) else ()
    scores = [{"rubricId": r.rubric_id, "score": r.score, "rationale": r.rationale} for r in rubrics]
    return {"details": {"rubricScores": scores}} if scores else {}


def _metric(verdict: MetricVerdict) -> Json:
    return {
        "metricName": verdict.name,
        "threshold": verdict.threshold,
        "score": verdict.score,
        "evalStatus": _STATUS.get(verdict.status, _NOT_EVALUATED),
    }


def _informational(name: str, score: float | None) -> Json:
    return {"metricName": name, "threshold": None, "score": score, "evalStatus": _INFORMATIONAL}
