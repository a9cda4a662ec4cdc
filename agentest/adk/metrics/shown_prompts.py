"""Example prompts of the judges of evaluation sets, for `agentest show-prompts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from agentest.adk.formats.criteria import MetricCriterion
from agentest.adk.formats.eval_set import (
    ConversationScenario,
    EvalCase,
    FunctionCall,
    IntermediateData,
    Invocation,
    Rubric,
    RubricContent,
    content,
)
from agentest.adk.metrics.grader import AgentFacts
from agentest.adk.metrics.grader_factory import make_grader
from agentest.domain.end_reason import Ending
from agentest.domain.metrics import ADK_METRICS
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.models.port import Answer, CallKey, Message
from agentest.support.errors import ModelUnavailable
from agentest.support.interrupts import run_event_loop
from agentest.support.lazy_dataclasses import dataclass

JUDGED_NAMES = tuple(metric.name for metric in ADK_METRICS.values() if metric.judged)
"""The metrics that use a judge."""

_SIMULATED = "per_turn_user_simulator_quality_v1"
_TURN = Turn(
    0, "Where is my order?", "It is on its way.", (ToolCall("lookup_order", {"id": 1}, "shipped", True, 0),)
)
_CONVERSATION = Conversation("example-1", (_TURN, Turn(1, "Thanks.", "You are welcome.")), Ending.SCRIPT)
_RUBRIC = Rubric("example", RubricContent("(the text of a rubric)"))
_FACTS = AgentFacts(instructions="(the agent's instructions)", tools="(the agent's tools)")


@dataclass(slots=True)
class _Listener:
    """A model that records its prompts and answers nothing."""

    asked: list[Sequence[Message]] = field(default_factory=list)
    name: str = "listener"

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        del answer, key
        self.asked.append(messages)
        raise ModelUnavailable("it only listens")


def example_prompt(metric: str) -> str:
    """Return the prompt of a metric in `JUDGED_NAMES`, for an example conversation of two turns."""
    grader = make_grader(
        _case(metric), MetricCriterion(metric, 0.5, num_samples=1, rubrics=(_RUBRIC,)), {}, _FACTS
    )
    listener = _Listener()

    async def ask() -> None:
        await grader.grade(_CONVERSATION, listener, CallKey("judge", "example"))

    run_event_loop(ask)
    messages = min(listener.asked, key=_length)
    return "\n\n".join(f"# {metric}, {message['role']}\n{message['content']}" for message in messages)


def _length(messages: Sequence[Message]) -> int:
    return sum(len(str(message["content"])) for message in messages)


def _case(metric: str) -> EvalCase:
    if metric == _SIMULATED:
        plan = ConversationScenario(_TURN.user_message, "(the plan of the conversation)")
        return EvalCase("example", conversation_scenario=plan)
    invocation = Invocation(
        content(_TURN.user_message, "user"),
        final_response=content("(the reference answer)", "model"),
        intermediate_data=IntermediateData((FunctionCall(name="lookup_order", args={"id": 1}),)),
    )
    return EvalCase("example", (invocation,))
