"""An agent that speaks the Vercel AI SDK's stream protocols over HTTP, as `useChat` does.

It runs its own tools and tells of them; those without `execute` it hands to us.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.ai_sdk.parts import AssistantMessage
from agentest.agents.ai_sdk.reply import (
    Wire,
    decide,
    fill,
    for_us,
    made,
    question,
    remarks,
    texts,
    undecided,
    user_message,
    version_4,
    waiting,
)
from agentest.agents.ai_sdk.stream import TEXT_TELLS_NOTHING, Exchange, Told
from agentest.agents.approvals import (
    MOST_APPROVALS,
    TOO_MANY_QUESTIONS,
    Decision,
    decided_by,
    decided_by_user,
)
from agentest.agents.http_sender import HttpAnswer
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.ai_sdk import AiSdkAgent
from agentest.domain.messages import Message, ToolResult, UserText
from agentest.domain.transcript import ToolCall, Usage
from agentest.support.errors import CannotSend


def open_agent(_: str, config: AiSdkAgent, resources: Resources) -> AiSdkClient:
    """The client of a backend of the AI SDK."""
    return AiSdkClient(config, resources)


class AiSdkClient:
    """Sends conversations to one backend. Keeps nothing of any conversation."""

    takes_attachments = True

    def __init__(self, config: AiSdkAgent, resources: Resources) -> None:
        self.name = config.name
        self._exchange = Exchange(config, resources)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[AiSdkConversation]:
        """One conversation: it has the messages with the parts that the agent sent."""
        yield AiSdkConversation(self._exchange)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to the only message of a conversation."""
        return await AiSdkConversation(self._exchange).reply(messages, ctx)


@dataclass(slots=True)
class _Answered:
    """What the streams of one reply have come to."""

    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0
    is_text: bool = False
    usage: Usage = field(default_factory=Usage)
    model_calls: int | None = None
    observed: tuple[ToolCall, ...] = ()
    said: tuple[str, ...] = ()

    def add(self, answer: HttpAnswer[Told]) -> None:
        if self.first_token_ms is None and answer.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + answer.first_token_ms
        self.latency_ms += answer.latency_ms
        self.retries += answer.retries
        self.is_text = self.is_text or answer.value.is_text
        self.usage += answer.value.usage
        if answer.value.model_calls:
            self.model_calls = (self.model_calls or 0) + answer.value.model_calls


class AiSdkConversation:
    """Answers for a backend in one conversation."""

    def __init__(self, exchange: Exchange) -> None:
        self.name = exchange.name
        self._exchange = exchange
        self._messages: list[Wire | AssistantMessage] = []
        self._version_4 = exchange.version == 4

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to what came last: the user's message, or results of tools.

        Raises NoReply, CannotSend, MockBypassed.
        """
        if not self._messages:
            self._exchange.own_tools.check_before(ctx)
        current, answered = self._current(), _Answered()
        if isinstance(messages[-1], ToolResult):
            self._fill(current, messages)
            if waiting(current) and self._exchange.approvals == "ask":
                return self._reply(current, answered, ctx)
        else:
            self._hear(current, messages[-1])
        decision = decided_by(self._exchange.approvals)
        for _ in range(MOST_APPROVALS):
            if decision is not None:
                _decide(self._current(), decision)
            current = await self._ask(answered, messages, ctx)
            if for_us(current) or not waiting(current) or decision is None:
                return self._reply(current, answered, ctx)
        raise NoReply(TOO_MANY_QUESTIONS, answered.retries, answered.observed)

    def _current(self) -> AssistantMessage:
        """The message that the agent goes on with; one of its own, where the user spoke last."""
        last = self._messages[-1] if self._messages else None
        return last if isinstance(last, AssistantMessage) else AssistantMessage(self._exchange.on_unknown)

    def _hear(self, current: AssistantMessage, said: Message) -> None:
        """Take the user's message: it answers what the agent wants approved, or goes to it as it is."""
        assert isinstance(said, UserText)
        if waiting(current):
            _decide(current, decided_by_user(said.text))
        else:
            self._messages.append(user_message(said))

    def _fill(self, current: AssistantMessage, messages: Sequence[Message]) -> None:
        for message in reversed(messages):
            if not isinstance(message, ToolResult):
                break
            part = current.tool(message.request_id)
            assert part is not None, "only calls of this message were handed to us"
            fill(part, message)
            current.set_done(part)

    async def _ask(
        self, answered: _Answered, messages: Sequence[Message], ctx: TurnContext
    ) -> AssistantMessage:
        """Send everything, and put what is answered to the message that it continues."""
        current = self._current()
        before = len(current.parts)
        told = Told(current)
        payload = self._payload(ctx.session_id)
        try:
            answer = await self._exchange.send(payload, told, TurnValues(messages, ctx))
        except NoReply as error:
            raise self._no_reply(
                str(error), answered.retries + error.retries, answered, current, ctx
            ) from None
        if self._messages[-1] is not current:
            self._messages.append(current)
        self._version_4 = self._version_4 or told.is_version_4
        answered.add(answer)
        if told.is_text and ctx.tools:
            self._exchange.own_tools.unreachable = _unreachable(self.name)
            raise CannotSend(self._exchange.own_tools.unreachable)
        self._take_calls(answered, current, ctx)
        answered.said += tuple(texts(current.parts[before:]))
        return current

    def _no_reply(
        self, problem: str, retries: int, answered: _Answered, current: AssistantMessage, ctx: TurnContext
    ) -> NoReply:
        calls = made(current, ctx.turn_index)
        return NoReply(problem, retries, (*answered.observed, *calls))

    def _take_calls(self, answered: _Answered, current: AssistantMessage, ctx: TurnContext) -> None:
        """Take the calls that the agent has made. Raises MockBypassed."""
        calls = made(current, ctx.turn_index)
        answered.observed += calls
        self._exchange.own_tools.check_after(answered.observed, ctx)

    def _payload(self, session_id: str) -> dict[str, Any]:
        wire = [m.wire() if isinstance(m, AssistantMessage) else m for m in self._messages]
        last = self._messages[-1]
        going_on = {"messageId": last.id} if isinstance(last, AssistantMessage) else {}
        return {
            "id": session_id,
            "messages": version_4(wire) if self._version_4 else wire,
            "trigger": "submit-message",
            **going_on,
        }

    def _reply(self, current: AssistantMessage, answered: _Answered, ctx: TurnContext) -> AgentReply:
        requests, asked = for_us(current), waiting(current)
        *before, last = answered.said or ("",)
        if asked and not requests:
            last = "\n\n".join(part for part in (last, question(asked)) if part)
        return AgentReply(
            text=last or None,
            tool_requests=requests,
            usage=answered.usage,
            latency_ms=answered.latency_ms,
            retries=answered.retries,
            model_calls=answered.model_calls,
            observed=answered.observed + undecided(current, ctx.turn_index),
            remarks=remarks(before, self.name),
            first_token_ms=answered.first_token_ms,
            calls_hidden=TEXT_TELLS_NOTHING if answered.is_text else None,
        )


def _unreachable(agent: str) -> str:
    return (
        f"the scenario has mocks, and agent {agent!r} answered with a text stream, which hands over no call: "
        "its real tools run. Have it answer with a UI message stream (toUIMessageStreamResponse), or leave "
        "the mocks out and set tool_visibility: unseen"
    )


def _decide(current: AssistantMessage, decision: Decision) -> None:
    for part in waiting(current):
        decide(part, decision.approved, None if decision.approved else decision.reason)
