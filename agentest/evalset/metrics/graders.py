"""Which grader measures which metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentest.evalset.formats.criteria import Criterion
from agentest.evalset.formats.model import EvalCase
from agentest.evalset.metrics.beside_the_reply import FinalSessionState, IntermediateResponses
from agentest.evalset.metrics.deterministic import ResponseMatch, ToolTrajectory, ToolTrajectoryF1
from agentest.evalset.metrics.efficiency import (
    InferenceCallCount,
    InvocationDuration,
    TokenUsage,
    ToolCallCount,
)
from agentest.evalset.metrics.facts import NOTHING_KNOWN, AgentFacts
from agentest.evalset.metrics.own_code import OwnMetric
from agentest.evalset.metrics.own_grader import CustomGrader
from agentest.evaluate.grading import Grader
from agentest.metrics import ADK_METRICS, one_for_each

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
    from agentest.evalset.metrics.judged import JUDGED

    return JUDGED[criterion.metric](case, criterion, facts=facts)
