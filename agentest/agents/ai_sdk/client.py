"""The client of a backend that speaks the Vercel AI SDK's stream protocols over HTTP, as `useChat` does.

The backend runs its own tools and reports their calls. It requests calls of tools without `execute`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.ai_sdk.parts import AssistantMessage
from agentest.agents.ai_sdk.reply import (
    Wire,
    fill_decision,
    fill_result,
    made,
    question,
    remarks,
    requested_calls,
    texts,
    to_version_4,
    undecided,
    user_message,
    waiting,
)
from agentest.agents.ai_sdk.stream import TEXT_STREAM_HIDES_CALLS, AiSdkSender, StreamResult
from agentest.agents.approvals import (
    MOST_APPROVALS,
    TOO_MANY_QUESTIONS,
    Decision,
    decision_of_setting,
    decision_of_user,
)
from agentest.agents.http_sender import HttpAnswer
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.ai_sdk import AiSdkAgent
from agentest.domain.messages import Message, ToolResult, UserText
from agentest.domain.transcript import ToolCall, Usage
from agentest.support.errors import CannotSend


def open_agent(_: str, config: AiSdkAgent, resources: Resources) -> AiSdkClient:
    """Create the client of a backend of the AI SDK."""
    return AiSdkClient(config, resources)


class AiSdkClient:
    """Opens conversations with one backend. Stores nothing about them."""

    takes_attachments = True

    def __init__(self, config: AiSdkAgent, resources: Resources) -> None:
        self.name = config.name
        self._exchange = AiSdkSender(config, resources)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[AiSdkConversation]:
        """Open one conversation, which stores the messages with the parts that the agent sent."""
        yield AiSdkConversation(self._exchange)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to a conversation's only message. Raises NoReply, CannotSend, MockBypassed."""
        return await AiSdkConversation(self._exchange).reply(messages, ctx)


@dataclass(slots=True)
class _StreamTotals:
    """The sums and lists over all streams of one reply."""

    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0
    is_text: bool = False
    usage: Usage = field(default_factory=Usage)
    model_calls: int | None = None
    observed: tuple[ToolCall, ...] = ()
    said: tuple[str, ...] = ()

    def add(self, answer: HttpAnswer[StreamResult]) -> None:
        """Add the timing and usage of one stream."""
        if self.first_token_ms is None and answer.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + answer.first_token_ms
        self.latency_ms += answer.latency_ms
        self.retries += answer.retries
        self.is_text = self.is_text or answer.value.is_text
        self.usage += answer.value.usage
        if answer.value.model_calls:
            self.model_calls = (self.model_calls or 0) + answer.value.model_calls


class AiSdkConversation:
    """One conversation with a backend."""

    def __init__(self, exchange: AiSdkSender) -> None:
        self.name = exchange.name
        self._exchange = exchange
        self._messages: list[Wire | AssistantMessage] = []
        self._version_4 = exchange.version == 4

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Reply to the user's last message or to the last tool results.

        Raises NoReply, CannotSend, MockBypassed.
        """
        if not self._messages:
            self._exchange.own_tools.check_before(ctx)
        current, total = self._current(), _StreamTotals()
        if isinstance(messages[-1], ToolResult):
            self._fill_results(current, messages)
            if waiting(current) and self._exchange.approvals == "ask":
                return self._reply(current, total, ctx)
        else:
            self._take_message(current, messages[-1])
        decision = decision_of_setting(self._exchange.approvals)
        for _ in range(MOST_APPROVALS):
            if decision is not None:
                _decide_waiting(self._current(), decision)
            current = await self._send(total, messages, ctx)
            if requested_calls(current) or not waiting(current) or decision is None:
                return self._reply(current, total, ctx)
        raise NoReply(TOO_MANY_QUESTIONS, total.retries, total.observed)

    def _current(self) -> AssistantMessage:
        """Return the message that the agent continues: its last, or a new one after a user message."""
        last = self._messages[-1] if self._messages else None
        return last if isinstance(last, AssistantMessage) else AssistantMessage(self._exchange.on_unknown)

    def _take_message(self, current: AssistantMessage, said: Message) -> None:
        """Take the user's message as the decision about waiting calls, or add it to the messages."""
        assert isinstance(said, UserText)
        if waiting(current):
            _decide_waiting(current, decision_of_user(said.text))
        else:
            self._messages.append(user_message(said))

    def _fill_results(self, current: AssistantMessage, messages: Sequence[Message]) -> None:
        for message in reversed(messages):
            if not isinstance(message, ToolResult):
                break
            part = current.tool(message.request_id)
            assert part is not None, "only calls of this message were handed to us"
            fill_result(part, message)
            current.set_done(part)

    async def _send(
        self, total: _StreamTotals, messages: Sequence[Message], ctx: TurnContext
    ) -> AssistantMessage:
        """Send all messages and add the stream to the message that it continues."""
        current = self._current()
        before = len(current.parts)
        result = StreamResult(current)
        payload = self._payload(ctx.session_id)
        try:
            answer = await self._exchange.send(payload, result, TurnValues(messages, ctx))
        except NoReply as error:
            raise self._no_reply(str(error), total.retries + error.retries, total, current, ctx) from None
        if self._messages[-1] is not current:
            self._messages.append(current)
        self._version_4 = self._version_4 or result.is_version_4
        total.add(answer)
        if result.is_text and ctx.tools:
            self._exchange.own_tools.unreachable = _unreachable(self.name)
            raise CannotSend(self._exchange.own_tools.unreachable)
        self._take_calls(total, current, ctx)
        total.said += tuple(texts(current.parts[before:]))
        return current

    def _no_reply(
        self, problem: str, retries: int, total: _StreamTotals, current: AssistantMessage, ctx: TurnContext
    ) -> NoReply:
        calls = made(current, ctx.turn_index)
        return NoReply(problem, retries, (*total.observed, *calls))

    def _take_calls(self, total: _StreamTotals, current: AssistantMessage, ctx: TurnContext) -> None:
        """Add the calls that the agent has made. Raises MockBypassed."""
        calls = made(current, ctx.turn_index)
        total.observed += calls
        self._exchange.own_tools.check_after(total.observed, ctx)

    def _payload(self, session_id: str) -> dict[str, Any]:
        wire = [m.wire() if isinstance(m, AssistantMessage) else m for m in self._messages]
        last = self._messages[-1]
        continued = {"messageId": last.id} if isinstance(last, AssistantMessage) else {}
        return {
            "id": session_id,
            "messages": to_version_4(wire) if self._version_4 else wire,
            "trigger": "submit-message",
            **continued,
        }

    def _reply(self, current: AssistantMessage, total: _StreamTotals, ctx: TurnContext) -> AgentReply:
        requests, asked = requested_calls(current), waiting(current)
        *before, last = total.said or ("",)
        if asked and not requests:
            last = "\n\n".join(part for part in (last, question(asked)) if part)
        return AgentReply(
            text=last or None,
            tool_requests=requests,
            usage=total.usage,
            latency_ms=total.latency_ms,
            retries=total.retries,
            model_calls=total.model_calls,
            observed=total.observed + undecided(current, ctx.turn_index),
            remarks=remarks(before, self.name),
            first_token_ms=total.first_token_ms,
            calls_hidden=TEXT_STREAM_HIDES_CALLS if total.is_text else None,
        )


def _unreachable(agent: str) -> str:
    return (
        f"the scenario has mocks, and agent {agent!r} answered with a text stream, which hands over no call: "
        "its real tools run. Have it answer with a UI message stream (toUIMessageStreamResponse), or leave "
        "the mocks out and set tool_visibility: unseen"
    )


def _decide_waiting(current: AssistantMessage, decision: Decision) -> None:
    for part in waiting(current):
        fill_decision(part, decision.approved, None if decision.approved else decision.reason)
