"""An agent that speaks Anthropic's Messages over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.answers import read_body
from agentest.agents.anthropic_messages.blocks import Block, ids_of_calls, read_blocks
from agentest.agents.anthropic_messages.message import (
    MESSAGES_PLACE,
    PAUSED,
    Received,
    blocks_of,
    how_cut,
    made_so_far,
    read_message,
    usage_of,
)
from agentest.agents.anthropic_messages.stream import Assembly
from agentest.agents.anthropic_messages.written import Written, as_received, merged, written
from agentest.agents.http_sender import HttpAnswer, HttpSender
from agentest.agents.ignored import Ignored
from agentest.agents.own_tools import OwnTools, answered_by_us
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, NoReply, Resources, TurnContext
from agentest.agents.reading import TOO_DEEP
from agentest.config.agents.anthropic_messages import AnthropicMessagesAgent
from agentest.domain.messages import Message
from agentest.domain.transcript import Remark, Usage
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Template

_VERSION = ("anthropic-version", "2023-06-01")
_MAX_TOKENS = 4096
"""What an answer may have where `body` does not say: the protocol wants a number in every request."""
_MOST_PAUSES = 10


_HANDED_OVER = "have the agent answer with a tool_use alone, without its result (a tool of body.tools)"


def open_agent(_: str, config: AnthropicMessagesAgent, resources: Resources) -> MessagesClient:
    """The client of an agent that speaks Anthropic's Messages."""
    return MessagesClient(config, resources)


class MessagesClient:
    """Sends conversations to one endpoint. What belongs to a conversation is in what `conversation` opens."""

    takes_attachments = True

    def __init__(self, config: AnthropicMessagesAgent, resources: Resources) -> None:
        self.name = config.name
        self.ignored = Ignored(config.name, resources)
        self.own_tools = OwnTools(config.name, handed_over=_HANDED_OVER)
        self._on_note = resources.on_note
        self._noted: set[str] = set()
        self._endpoint = config.endpoint
        self._streaming = config.streaming
        self._sender = HttpSender(
            _with_version(config), resources.client, resources.timeout_s, MESSAGES_PLACE
        )
        self._body = Template(config.body)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """A conversation, which keeps the agent's blocks as they came."""
        yield _Conversation(self)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to a conversation of which nothing else is known. Raises NoReply, CannotSend."""
        return await _Conversation(self).reply(messages, ctx)

    def note_cut(self, message: Received) -> None:
        """Tell, once, that answers have no end."""
        cut = how_cut(message)
        if cut and cut not in self._noted:
            self._noted.add(cut)
            self._on_note(f"agent {self.name!r}: answers were cut before their end {cut}")

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], values: TurnValues, turn_index: int
    ) -> HttpAnswer[Received]:
        """The answer to a conversation. Raises NoReply, with the calls that were made until then."""
        assembly = Assembly(self.ignored)
        body = self._body.filled(values)
        said = merged([*body.get("messages", []), *messages])
        streamed = {"stream": True} if self._streaming else {}

        async def read(response: DirectResponse) -> Received:
            return await read_body(response, self._streaming, read_message, assembly.read)

        try:
            payload = {"max_tokens": _MAX_TOKENS, **body, **streamed, "messages": said}
            return await self._sender.post(self._endpoint, payload, read, values=values)
        except NoReply as error:
            raise NoReply(str(error), error.retries, made_so_far(assembly.message(), turn_index)) from None
        except RecursionError:
            raise NoReply(TOO_DEEP) from None


@dataclass(slots=True)
class _Answer:
    """What the agent has answered in one round; more than one message where it paused."""

    blocks: tuple[Block, ...] = ()
    usage: Usage = field(default_factory=Usage)
    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0

    def add(self, answered: HttpAnswer[Received]) -> None:
        """Add a message. Raises AgentError for what is none."""
        if self.first_token_ms is None and answered.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + answered.first_token_ms
        self.latency_ms += answered.latency_ms
        self.retries += answered.retries
        self.usage += usage_of(answered.value)
        self.blocks += blocks_of(answered.value)


class _Conversation:
    """One conversation with an agent."""

    def __init__(self, client: MessagesClient) -> None:
        self.name = client.name
        self._client = client
        self._said: list[Written] = []
        """What was said, but for `body.messages`."""
        self._known = 0
        """How many of the turn loop's messages are in it."""
        self._called: set[str] = set()
        """Ids of the calls in it."""

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer. Raises NoReply, CannotSend, MockBypassed."""
        if not self._known:
            self._client.own_tools.check_before(ctx)
        self._said += written(messages[self._known :])
        answer = await self._answer(TurnValues(messages, ctx), ctx.turn_index)
        try:
            heard = read_blocks(answer.blocks, ctx.turn_index, self._client.ignored, self._called)
        except AgentError as error:
            seen = made_so_far({"content": list(answer.blocks)}, ctx.turn_index)
            raise NoReply(str(error), answer.retries, seen) from None
        self._client.own_tools.check_after(heard.made, ctx, answered_by_us(messages))
        self._said.append(as_received(answer.blocks))
        self._called |= ids_of_calls(answer.blocks)
        self._known = len(messages) + 1  # the reply will be the next of them
        return AgentReply(
            text=heard.reply,
            tool_requests=heard.requests,
            usage=answer.usage,
            latency_ms=answer.latency_ms,
            retries=answer.retries,
            observed=heard.made,
            remarks=tuple(Remark(self.name, text) for text in heard.remarks),
            first_token_ms=answer.first_token_ms,
        )

    async def _answer(self, values: TurnValues, turn_index: int) -> _Answer:
        """What the agent answers, in as many requests as it pauses."""
        answer = _Answer()
        for _ in range(_MOST_PAUSES + 1):
            before = made_so_far({"content": list(answer.blocks)}, turn_index)
            so_far = [as_received(answer.blocks)] if answer.blocks else []
            try:
                answered = await self._client.ask([*self._said, *so_far], values, turn_index)
            except NoReply as error:
                retries = answer.retries + error.retries
                raise NoReply(str(error), retries, (*before, *error.observed)) from None
            try:
                answer.add(answered)
            except AgentError as error:
                seen = (*before, *made_so_far(answered.value, turn_index))
                raise NoReply(str(error), answer.retries, seen) from None
            self._client.note_cut(answered.value)
            if answered.value.get("stop_reason") != PAUSED:
                return answer
        raise NoReply(
            f"the agent paused more than {_MOST_PAUSES} times (stop_reason: {PAUSED})",
            answer.retries,
            made_so_far({"content": list(answer.blocks)}, turn_index),
        )


def _with_version(config: AnthropicMessagesAgent) -> AnthropicMessagesAgent:
    """The settings with the header that says which version of the protocol is spoken."""
    if any(name.lower() == _VERSION[0] for name in config.headers):
        return config
    return config.model_copy(update={"headers": {**config.headers, _VERSION[0]: _VERSION[1]}})
