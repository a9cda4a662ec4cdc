"""Create the grader of a metric, and conversations to grade from invocations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentest.adk.formats.criteria import MetricCriterion
from agentest.adk.formats.eval_set import (
    EvalCase,
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvents,
    answered_calls,
    text_of,
    tool_calls,
)
from agentest.adk.metrics.custom_metrics import CustomGrader, CustomMetricCode
from agentest.adk.metrics.deterministic import (
    FinalSessionState,
    InferenceCallCount,
    IntermediateResponses,
    InvocationDuration,
    ResponseMatch,
    TokenUsage,
    ToolCallCount,
    ToolTrajectory,
    ToolTrajectoryF1,
    messages_before_reply,
)
from agentest.adk.metrics.grader import NOTHING_KNOWN, AgentFacts
from agentest.domain.end_reason import Ending
from agentest.domain.metrics import ADK_METRICS, require_entry_for_each
from agentest.domain.transcript import Conversation, Remark, ToolCall, Turn
from agentest.judging.grader import Grader
from agentest.store.adk_results import unwrapped

_DETERMINISTIC: Mapping[str, Callable[[EvalCase, MetricCriterion], Grader]] = require_entry_for_each(
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
    criterion: MetricCriterion,
    evaluators: Mapping[str, CustomMetricCode],
    facts: AgentFacts = NOTHING_KNOWN,
) -> Grader:
    """Create the grader of a criterion's metric for this case. Raises UsageError if the case rules it out."""
    if criterion.metric in evaluators:
        return CustomGrader(case, criterion, evaluators[criterion.metric])
    if not ADK_METRICS[criterion.metric].judged:
        return _DETERMINISTIC[criterion.metric](case, criterion)
    # Import only if a judge is used: the prompts and pydantic answer types take a tenth of a second.
    from agentest.adk.metrics.judge_graders import JUDGED

    return JUDGED[criterion.metric](case, criterion, facts=facts)


def conversation_of(invocations: Sequence[Invocation]) -> Conversation:
    """Return the invocations as the turns of a conversation."""
    turns = tuple(_turn(invocation, index) for index, invocation in enumerate(invocations))
    return Conversation("invocations", turns, Ending.SCRIPT)


def _turn(invocation: Invocation, index: int) -> Turn:
    data = invocation.intermediate_data
    return Turn(
        turn_index=index,
        user_message=text_of(invocation.user_content),
        agent_message=text_of(invocation.final_response),
        tool_calls=tuple(_call(call, response, index) for call, response in answered_calls(data)),
        remarks=tuple(_remarks(data)),
    )


def _remarks(data: IntermediateData | InvocationEvents | None) -> Iterator[Remark]:
    """Yield the messages before the reply. Events also show how many calls preceded each."""
    if not isinstance(data, InvocationEvents):
        yield from (Remark(author, text) for author, text in messages_before_reply(data))
        return
    calls = 0
    for event in data.invocation_events:
        alone = InvocationEvents((event,))
        yield from (Remark(author, text, calls) for author, text in messages_before_reply(alone))
        calls += len(list(tool_calls(alone)))


def _call(call: FunctionCall, response: FunctionResponse | None, index: int) -> ToolCall:
    answer: Any = response.response if response else None
    return ToolCall(
        name=call.name or "",
        args=call.args,  # absent arguments stay absent: ADK distinguishes them from empty ones
        result=unwrapped(answer) if answer is not None else None,
        mocked=False,
        turn_index=index,
    )
