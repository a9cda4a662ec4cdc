"""Convert results of a case to the keys that google-adk uses, in addition to our own."""

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
from agentest.domain.transcript import ToolCall, Turn
from agentest.domain.verdict import metric_verdicts, turn_verdict

Json = dict[str, Any]
_STATUS = {Status.PASSED: "PASSED", Status.FAILED: "FAILED"}
_NOT_EVALUATED = "NOT_EVALUATED"
_UNKNOWN_TO_ADK = {PASS_RATE, *TRAJECTORY_METRICS}
"""Metrics that a case can have thresholds for, but that ADK does not know."""


def case_json(case: CaseId, result: ScenarioResult) -> Json:
    """Return the keys of a scenario that is a case."""
    verdicts = metric_verdicts(result.averages, result.thresholds, exact=True)
    return {
        "evalSetId": case.eval_set_id,
        "evalId": case.eval_id,
        "finalEvalStatus": _STATUS.get(result.verdict.status, _NOT_EVALUATED),
        "overallEvalMetricResults": [
            *(_metric(verdict) for verdict in verdicts if verdict.name not in _UNKNOWN_TO_ADK),
            *(_informational(name, result.averages.get(name)) for name in result.information),
        ],
    }


def invocations_json(thresholds: Mapping[str, float], conversation: ConversationResult) -> Json:
    """Return `evalMetricResultPerInvocation` of a conversation of a case."""
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
    of_adk = {name: threshold for name, threshold in thresholds.items() if name not in _UNKNOWN_TO_ADK}
    return {
        "actualInvocation": turn_invocation(turn, f"{conversation_id}-{turn.turn_index}"),
        "expectedInvocation": dict(reference.invocation) if reference else None,
        "evalMetricResults": [
            *(
                _metric(turn_verdict(name, threshold, results.get(name))) | _details(results.get(name))
                for name, threshold in of_adk.items()
            ),
            *(
                _informational(name, result.number if isinstance(result, Score) else None) | _details(result)
                for name, result in results.items()
                if name not in thresholds
            ),
        ],
    }


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
    return {"metricName": name, "threshold": None, "score": score, "evalStatus": "INFORMATIONAL"}


def turn_invocation(turn: Turn, invocation_id: str = "") -> dict[str, Any]:
    """Return the turn as an invocation, in camelCase."""
    return {
        "invocationId": invocation_id,
        "userContent": _content(turn.user_message, "user"),
        "finalResponse": _content(turn.agent_message, "model"),
        "intermediateData": {
            "toolUses": [_call(call, n) for n, call in enumerate(turn.tool_calls)],
            "toolResponses": [
                {"id": f"call-{n}", "name": call.name, "response": _wrapped(call.result)}
                for n, call in enumerate(turn.tool_calls)
            ],
            "intermediateResponses": [[r.author, [{"text": r.text}]] for r in turn.remarks],
        },
    }


def _content(text: str, role: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"text": text}]}


def _call(call: ToolCall, n: int) -> dict[str, Any]:
    # ADK has no form for what the agent sent in place of arguments, so it gets a key of its own.
    args = dict(call.args) if isinstance(call.args, Mapping) else {"invalid_arguments": call.args}
    return {"id": f"call-{n}", "name": call.name, "args": args}


def _wrapped(result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping) and not _is_wrapping(result):
        return dict(result)
    return {"result": result}


def unwrapped(response: Mapping[str, Any]) -> Any:
    """Return the tool's own result, which ADK wraps as `{"result": text}` if it is a text."""
    return response["result"] if _is_wrapping(response) else response


def _is_wrapping(value: Mapping[str, Any]) -> bool:
    if value.keys() != {"result"}:
        return False
    inner = value["result"]
    return not isinstance(inner, Mapping) or _is_wrapping(inner)
