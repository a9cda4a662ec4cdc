"""An agent that speaks OpenAI's chat completions over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

from agentest.config import ChatCompletionsAgent
from agentest.http import Client, DirectResponse
from agentest.scenarios import Session
from agentest.simulate.agents import AgentReply, Message, TurnContext
from agentest.simulate.completion import read_completion, read_stream
from agentest.simulate.http_agent import HttpSender, read_body


class ChatCompletionsClient:
    """Sends conversations to one endpoint. Holds nothing of any conversation."""

    def __init__(self, config: ChatCompletionsAgent, client: Client, timeout_s: float) -> None:
        self.name = config.name
        self._endpoint = config.endpoint
        self._streaming = config.streaming
        self._sends_state = config.send_session_state
        self._sender = HttpSender(config, client, timeout_s)
        self._first_messages = list(config.body.get("messages", []))
        self._extra = {key: value for key, value in config.body.items() if key != "messages"}
        if config.streaming:
            self._extra["stream"] = True

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer. Raises NoReply; each attempt has the whole time-out."""
        payload = {**self._extra, "messages": [*self._first_messages, *messages]}
        if self._sends_state and ctx.session and ctx.session.state:
            payload["metadata"] = self._metadata(ctx.session)
        answered = await self._sender.post(self._endpoint, payload, self._read)
        return replace(answered.value, latency_ms=answered.latency_ms, retries=answered.retries)

    def _metadata(self, session: Session) -> dict[str, Any]:
        return {**self._extra.get("metadata", {}), "session_state": dict(session.state)}

    def _read(self, response: DirectResponse) -> Awaitable[AgentReply]:
        return read_body(response, self._streaming, read_completion, read_stream)
