"""An agent that speaks OpenAI's chat completions over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentest.agents.answers import read_body
from agentest.agents.chat_completions.completion import read_completion, read_stream
from agentest.agents.chat_completions.wire import to_wire
from agentest.agents.hints import CHAT_PLACE
from agentest.agents.http_sender import HttpAnswer, HttpSender
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.domain.messages import Message
from agentest.scenarios.session import Session
from agentest.support.http.client import DirectResponse, Sender
from agentest.support.templates import Template, Values

_STREAM_OPTIONS = "stream_options"
_REFUSED = (400, 422)
"""How a server answers that knows not every field of a request."""


@dataclass(frozen=True, slots=True)
class _Refused:
    problem: str


def open_agent(_: str, config: ChatCompletionsAgent, resources: Resources) -> ChatCompletionsClient:
    """The client of an agent that speaks chat completions."""
    return ChatCompletionsClient(config, resources.client, resources.timeout_s)


class ChatCompletionsClient:
    """Sends conversations to one endpoint. Keeps nothing of any conversation.

    A streaming agent is asked for its tokens. One that refuses to be asked is not asked again.
    """

    takes_attachments = True

    def __init__(self, config: ChatCompletionsAgent, client: Sender, timeout_s: float) -> None:
        self.name = config.name
        self._endpoint = config.endpoint
        self._streaming = config.streaming
        self._sends_state = config.send_session_state
        self._sender = HttpSender(config, client, timeout_s, CHAT_PLACE)
        self._asks_for_tokens = config.streaming and _STREAM_OPTIONS not in config.body
        self._has_reported_tokens = False
        self._body = Template(config.body)
        self._streamed = {"stream": True} if config.streaming else {}

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer. Raises NoReply; each attempt has the whole time-out."""
        values = TurnValues(messages, ctx)
        body = self._body.filled(values)
        payload = {**body, **self._streamed, "messages": [*body.get("messages", []), *to_wire(messages)]}
        if self._sends_state and ctx.session and ctx.session.state:
            payload["metadata"] = _metadata(body, ctx.session)
        answered = await self._ask(payload, values)
        return replace(
            answered.value,
            latency_ms=answered.latency_ms,
            retries=answered.retries,
            first_token_ms=answered.first_token_ms,
        )

    async def _ask(self, payload: dict[str, Any], values: Values) -> HttpAnswer[AgentReply]:
        if not self._asks_for_tokens:
            return await self._sender.post(self._endpoint, payload, self._read, values=values)
        asking = {**payload, _STREAM_OPTIONS: {"include_usage": True}}
        first = await self._sender.post(
            self._endpoint, asking, self._read_or_refused, _REFUSED, values=values
        )
        if isinstance(first.value, AgentReply):
            self._has_reported_tokens = True
            return HttpAnswer(first.value, first.latency_ms, first.retries, first.first_token_ms)
        if self._has_reported_tokens and _STREAM_OPTIONS not in first.value.problem:
            raise NoReply(first.value.problem, first.retries)
        return await self._ask_without(payload, values, first.retries + 1)

    async def _ask_without(
        self, payload: dict[str, Any], values: Values, before: int
    ) -> HttpAnswer[AgentReply]:
        """Ask after `before` attempts that were refused. A refusal now has another reason."""
        try:
            second = await self._sender.post(self._endpoint, payload, self._read, values=values)
        except NoReply as error:
            raise NoReply(str(error), before + error.retries, error.observed) from None
        self._asks_for_tokens = False
        return replace(second, retries=before + second.retries)

    async def _read_or_refused(self, response: DirectResponse) -> AgentReply | _Refused:
        if response.status_code in _REFUSED:
            return _Refused(await self._sender.problem(response))
        return await self._read(response)

    def _read(self, response: DirectResponse) -> Awaitable[AgentReply]:
        return read_body(response, self._streaming, read_completion, read_stream)


def _metadata(body: Mapping[str, Any], session: Session) -> dict[str, Any]:
    return {**body.get("metadata", {}), "session_state": dict(session.state)}
