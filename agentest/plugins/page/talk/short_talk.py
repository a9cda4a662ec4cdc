"""Talk to an agent outside a run, message by message: to see that it answers, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from agentest.agents.factory import make_agents
from agentest.agents.port import Agent, AgentReply, Resources, TurnContext, open_conversation
from agentest.config.agent_types import AgentConfig
from agentest.conversation.turn_loop import new_session_id
from agentest.domain.messages import AgentMessage, Message, UserText
from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.client import Sender

REPLY_TIMEOUT_S = 60.0


class ShortTalk:
    """One conversation without mocks: tool calls that the agent hands over are not answered."""

    def __init__(self, agent: Agent, name: str = "agentest-1") -> None:
        self._agent = agent
        self._name = name
        self.session_id = new_session_id(name)
        self._messages: list[Message] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._conversation = await self._stack.enter_async_context(open_conversation(self._agent))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def say(self, text: str) -> AgentReply:
        """Send a message and return the reply. Raises AgentError, also for a reply that is empty."""
        turn = sum(isinstance(message, UserText) for message in self._messages) + 1
        self._messages.append(UserText(text))
        context = TurnContext(self._name, "agentest", turn, session_id=self.session_id)
        reply = await self._conversation.reply(tuple(self._messages), context)
        if not reply.text and not reply.tool_requests:
            raise AgentError("the reply has neither text nor tool calls")
        self._messages.append(AgentMessage(reply.text))
        return reply


async def first_reply(
    agent: AgentConfig, client: Sender, text: str, notes: Sequence[str] = ()
) -> AgentReply | AgentError | CannotSend:
    """Return the reply of an agent over HTTP to one message, or why there is none. Raises ConfigError."""
    async with AsyncExitStack() as stack:
        resources = Resources(
            client=client,
            timeout_s=REPLY_TIMEOUT_S,
            threads=anyio.CapacityLimiter(1),
            root=Path(),
            closing=stack,
            on_note=list(notes).append,
        )
        agents = await make_agents({"agent": agent}, resources)
        async with ShortTalk(agents["agent"]) as talk:
            try:
                return await talk.say(text)
            except (AgentError, CannotSend) as error:
                return error
