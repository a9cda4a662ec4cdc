"""An agent that speaks OpenAI's chat completions over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentest.agents.chat_completions.completion import read_completion, read_stream
from agentest.agents.chat_completions.wire import to_wire
from agentest.agents.hints import CHAT_PLACE
from agentest.agents.http_sender import HttpAnswer, HttpSender, read_body
from agentest.agents.port import AgentReply, NoReply, Resources, TurnContext
from agentest.config.agents import ChatCompletionsAgent
from agentest.http.client import DirectResponse, Poster
from agentest.messages import Message
from agentest.scenarios.definition import Session

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

    def __init__(self, config: ChatCompletionsAgent, client: Poster, timeout_s: float) -> None:
        self.name = config.name
        self._endpoint = config.endpoint
        self._streaming = config.streaming
        self._sends_state = config.send_session_state
        self._sender = HttpSender(config, client, timeout_s, CHAT_PLACE)
        self._asks_for_tokens = config.streaming and _STREAM_OPTIONS not in config.body
        self._has_reported_tokens = False
        self._first_messages = list(config.body.get("messages", []))
        self._extra = {key: value for key, value in config.body.items() if key != "messages"}
        if config.streaming:
            self._extra["stream"] = True

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer. Raises NoReply; each attempt has the whole time-out."""
        payload = {**self._extra, "messages": [*self._first_messages, *to_wire(messages)]}
        if self._sends_state and ctx.session and ctx.session.state:
            payload["metadata"] = self._metadata(ctx.session)
        answered = await self._ask(payload)
        return replace(answered.value, latency_ms=answered.latency_ms, retries=answered.retries)

    async def _ask(self, payload: dict[str, Any]) -> HttpAnswer[AgentReply]:
        if not self._asks_for_tokens:
            return await self._sender.post(self._endpoint, payload, self._read)
        asking = {**payload, _STREAM_OPTIONS: {"include_usage": True}}
        first = await self._sender.post(self._endpoint, asking, self._read_or_refused, _REFUSED)
        if isinstance(first.value, AgentReply):
            self._has_reported_tokens = True
            return HttpAnswer(first.value, first.latency_ms, first.retries)
        if self._has_reported_tokens and _STREAM_OPTIONS not in first.value.problem:
            raise NoReply(first.value.problem, first.retries)
        return await self._ask_without(payload, first.retries + 1)

    async def _ask_without(self, payload: dict[str, Any], before: int) -> HttpAnswer[AgentReply]:
        """Ask after `before` attempts that were refused. A refusal now has another reason."""
        try:
            second = await self._sender.post(self._endpoint, payload, self._read)
        except NoReply as error:
            raise NoReply(str(error), before + error.retries, error.observed) from None
        self._asks_for_tokens = False
        return replace(second, retries=before + second.retries)

    async def _read_or_refused(self, response: DirectResponse) -> AgentReply | _Refused:
        if response.status_code in _REFUSED:
            return _Refused(await self._sender.problem(response))
        return await self._read(response)

    def _metadata(self, session: Session) -> dict[str, Any]:
        return {**self._extra.get("metadata", {}), "session_state": dict(session.state)}

    def _read(self, response: DirectResponse) -> Awaitable[AgentReply]:
        return read_body(response, self._streaming, read_completion, read_stream)
