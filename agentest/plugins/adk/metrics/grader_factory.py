"""Create the grader of a metric, conversations to grade from invocations, and example prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from agentest.domain.end_reason import Ending
from agentest.domain.metrics import ADK_METRICS
from agentest.domain.transcript import Conversation, Remark, ToolCall, Turn
from agentest.judging.grader import Grader
from agentest.models.port import Answer, CallKey, Message
from agentest.plugins.adk.formats import eval_set
from agentest.plugins.adk.formats.criteria import MetricCriterion
from agentest.plugins.adk.metrics.custom_metrics import CustomGrader, CustomMetricCode
from agentest.plugins.adk.metrics.deterministic import DeterministicGrader, messages_before_reply
from agentest.plugins.adk.metrics.grader import NOTHING_KNOWN, AgentFacts
from agentest.store.adk_results import unwrapped
from agentest.support.errors import ModelUnavailable
from agentest.support.interrupts import run_event_loop
from agentest.support.lazy_dataclasses import dataclass


def make_grader(
    case: eval_set.EvalCase,
    criterion: MetricCriterion,
    evaluators: Mapping[str, CustomMetricCode],
    facts: AgentFacts = NOTHING_KNOWN,
) -> Grader:
    """Create the grader of a criterion's metric for this case. Raises UsageError if the case rules it out."""
    if criterion.metric in evaluators:
        return CustomGrader(case, criterion, evaluators[criterion.metric])
    if not ADK_METRICS[criterion.metric].judged:
        return DeterministicGrader(case, criterion)
    # Import only if a judge is used: the prompts and pydantic answer types take a tenth of a second.
    from agentest.plugins.adk.metrics.judge_graders import judge_grader

    return judge_grader(case, criterion, facts)


def conversation_of(invocations: Sequence[eval_set.Invocation]) -> Conversation:
    """Return the invocations as the turns of a conversation."""
    turns = tuple(_turn(invocation, index) for index, invocation in enumerate(invocations))
    return Conversation("invocations", turns, Ending.SCRIPT)


def _turn(invocation: eval_set.Invocation, index: int) -> Turn:
    data = invocation.intermediate_data
    return Turn(
        turn_index=index,
        user_message=eval_set.text_of(invocation.user_content),
        agent_message=eval_set.text_of(invocation.final_response),
        tool_calls=tuple(_call(call, response, index) for call, response in eval_set.answered_calls(data)),
        remarks=tuple(_remarks(data)),
    )


def _remarks(data: eval_set.IntermediateForm) -> Iterator[Remark]:
    if not isinstance(data, eval_set.InvocationEvents):
        yield from (Remark(author, text) for author, text in messages_before_reply(data))
        return
    calls = 0
    for event in data.invocation_events:
        alone = eval_set.InvocationEvents((event,))
        yield from (Remark(author, text, calls) for author, text in messages_before_reply(alone))
        calls += len(list(eval_set.tool_calls(alone)))


def _call(call: eval_set.FunctionCall, response: eval_set.FunctionResponse | None, index: int) -> ToolCall:
    answer: Any = response.response if response else None
    return ToolCall(
        name=call.name or "",
        args=call.args,  # absent arguments stay absent: ADK distinguishes them from empty ones
        result=unwrapped(answer) if answer is not None else None,
        mocked=False,
        turn_index=index,
    )


JUDGED_NAMES = tuple(metric.name for metric in ADK_METRICS.values() if metric.judged)
"""The metrics that use a judge."""

_EXAMPLE_TURN = Turn(
    0, "Where is my order?", "It is on its way.", (ToolCall("lookup_order", {"id": 1}, "shipped", True, 0),)
)
_EXAMPLE = Conversation("example-1", (_EXAMPLE_TURN, Turn(1, "Thanks.", "You are welcome.")), Ending.SCRIPT)
_RUBRIC = eval_set.Rubric("example", eval_set.RubricContent("(the text of a rubric)"))
_EXAMPLE_FACTS = AgentFacts(instructions="(the agent's instructions)", tools="(the agent's tools)")


@dataclass(slots=True)
class _Listener:
    asked: list[Sequence[Message]] = field(default_factory=list)
    name: str = "listener"

    async def ask(self, messages: Sequence[Message], _answer: type[Answer], _key: CallKey) -> Answer:
        self.asked.append(messages)
        raise ModelUnavailable("it only listens")


def example_prompt(metric: str) -> str:
    """Return the prompt of a metric in `JUDGED_NAMES`, for an example conversation of two turns."""
    grader = make_grader(
        _example_case(metric),
        MetricCriterion(metric, 0.5, num_samples=1, rubrics=(_RUBRIC,)),
        {},
        _EXAMPLE_FACTS,
    )
    listener = _Listener()

    async def ask() -> None:
        await grader.grade(_EXAMPLE, listener, CallKey("judge", "example"))

    run_event_loop(ask)
    messages = min(listener.asked, key=lambda asked: sum(len(str(message["content"])) for message in asked))
    return "\n\n".join(f"# {metric}, {message['role']}\n{message['content']}" for message in messages)


PROMPTS = {metric: partial(example_prompt, metric) for metric in JUDGED_NAMES}
"""What `agentest show-prompts` shows of each metric that uses a judge."""


def _example_case(metric: str) -> eval_set.EvalCase:
    if metric == "per_turn_user_simulator_quality_v1":
        plan = eval_set.ConversationScenario(_EXAMPLE_TURN.user_message, "(the plan of the conversation)")
        return eval_set.EvalCase("example", conversation_scenario=plan)
    invocation = eval_set.Invocation(
        eval_set.content(_EXAMPLE_TURN.user_message, "user"),
        final_response=eval_set.content("(the reference answer)", "model"),
        intermediate_data=eval_set.IntermediateData(
            (eval_set.FunctionCall(name="lookup_order", args={"id": 1}),)
        ),
    )
    return eval_set.EvalCase("example", (invocation,))
