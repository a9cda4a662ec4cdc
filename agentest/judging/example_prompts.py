"""Complete judge prompts for an example conversation, shown to people who want to read them."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from agentest.config.models import Batch
from agentest.domain.end_reason import Ending
from agentest.domain.metrics import BUILTIN
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.judging.evaluator import ScenarioEvaluator
from agentest.judging.judge import BATCH_METRIC, Judge
from agentest.judging.judgement import AgentBackground, CallVisibility
from agentest.models.port import Answer, CallKey, Message
from agentest.scenarios.model import Criterion, Scenario
from agentest.support.dates import without_marks
from agentest.support.errors import ModelUnavailable

_SCENARIO = Scenario(
    name="example",
    file="",
    line=0,
    profile="A busy traveller who writes short messages.",
    goal="Cancel the booking B-17 and get the money back.",
    knowledge=("The booking was made in May.",),
    expected_outcome="The refund is refused, as the fare is not refundable, and the traveller is told why.",
    criteria=(Criterion("Never asks for the full card number"), Criterion("Offers a voucher")),
)
_AGENT = AgentBackground(
    instructions="You work for an airline. Fares of type Light are not refundable.",
    tools="get_booking(id): a booking by its number",
    visibility=CallVisibility(has_tools=True),
)
_CONVERSATION = Conversation(
    conversation_id="example-1",
    turns=(
        Turn(
            turn_index=0,
            user_message="Please cancel B-17 and refund me.",
            agent_message="B-17 is a Light fare, which is not refundable. Shall I cancel it all the same?",
            tool_calls=(
                ToolCall(
                    name="get_booking",
                    args={"id": "B-17"},
                    result={"id": "B-17", "fare": "Light", "price": 120},
                    mocked=True,
                    turn_index=0,
                ),
            ),
            started_at="2026-03-02T09:30:00+01:00",
        ),
        Turn(
            turn_index=1,
            user_message="No, then leave it.",
            agent_message="All right. I can offer you a voucher for a seat instead.",
        ),
    ),
    ending=Ending.REFUSED,
)


class _RecordingModel:
    name = "nobody"

    def __init__(self) -> None:
        self.asked: list[tuple[CallKey, Sequence[Message]]] = []

    async def ask(
        self,
        messages: Sequence[Message],
        answer: type[Answer],  # noqa: ARG002 - every model is told the shape
        key: CallKey,
    ) -> Answer:
        self.asked.append((key, messages))
        raise ModelUnavailable("nobody answers")


def render_example_prompts(mode: str) -> str:
    """Return every judge call about two turns in a `judge.batch` mode; repeated messages are referenced."""
    listener = _RecordingModel()
    evaluator = ScenarioEvaluator(
        scenario=_SCENARIO,
        scope="example",
        metrics=tuple(BUILTIN),
        judge=Judge(listener, batch=Batch(mode)),
        agent=_AGENT,
    )
    anyio.run(evaluator.everything, _CONVERSATION, 1)
    first_calls: dict[str, int] = {}
    calls = enumerate(listener.asked, start=1)
    return "\n\n".join(
        part for n, call in calls for part in _call_text(n, len(listener.asked), *call, first_calls)
    )


def _call_text(
    n: int, total: int, key: CallKey, messages: Sequence[Message], first_calls: dict[str, int]
) -> list[str]:
    about = "the conversation" if key.turn is None else f"turn {key.turn}"  # prompts count from 0
    parts = [
        f"# call {n} of {total}: {about}, {'all questions' if key.metric == BATCH_METRIC else key.metric}"
    ]
    for message in messages:
        first = first_calls.setdefault(message["content"], n)
        text = without_marks(message["content"]) if first == n else f"(as in call {first})"
        parts.append(f"## {message['role']}\n{text}")
    return parts
