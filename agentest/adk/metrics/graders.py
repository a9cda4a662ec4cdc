"""Which grader measures which metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentest.adk.formats.criteria import Criterion
from agentest.adk.formats.model import EvalCase
from agentest.adk.metrics.beside_the_reply import FinalSessionState, IntermediateResponses
from agentest.adk.metrics.deterministic import ResponseMatch, ToolTrajectory, ToolTrajectoryF1
from agentest.adk.metrics.efficiency import (
    InferenceCallCount,
    InvocationDuration,
    TokenUsage,
    ToolCallCount,
)
from agentest.adk.metrics.facts import NOTHING_KNOWN, AgentFacts
from agentest.adk.metrics.own_code import OwnMetric
from agentest.adk.metrics.own_grader import CustomGrader
from agentest.domain.metrics import ADK_METRICS, one_for_each
from agentest.judging.grading import Grader

_DETERMINISTIC: Mapping[str, Callable[[EvalCase, Criterion], Grader]] = one_for_each(
    (metric for metric in ADK_METRICS.values() if not metric.judged),
    {
        "tool_trajectory_avg_score": ToolTrajectory,
        "tool_trajectory_f1": ToolTrajectoryF1,
        "response_match_score": ResponseMatch,
        "final_session_state_match": FinalSessionState,
        "intermediate_responses_match": IntermediateResponses,
        "tool_call_count_v1": ToolCallCount,
        "inference_call_count_v1": InferenceCallCount,
        "token_usage_v1": TokenUsage,
        "invocation_duration_v1": InvocationDuration,
    },
)


def make_grader(
    case: EvalCase,
    criterion: Criterion,
    evaluators: Mapping[str, OwnMetric],
    facts: AgentFacts = NOTHING_KNOWN,
) -> Grader:
    """What measures the criterion's metric for this case. Raises UsageError where the case forbids it."""
    if criterion.metric in evaluators:
        return CustomGrader(case, criterion, evaluators[criterion.metric])
    if not ADK_METRICS[criterion.metric].judged:
        return _DETERMINISTIC[criterion.metric](case, criterion)
    # Imported only where a judge is asked: the prompts and answer types of pydantic cost a tenth of a second.
    from agentest.adk.metrics.judged import JUDGED

    return JUDGED[criterion.metric](case, criterion, facts=facts)
