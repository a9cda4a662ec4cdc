"""An agent behind AG-UI."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentest.agents.ag_ui.conversation import AgUiConversation
from agentest.agents.ag_ui.declaring import own_tools
from agentest.agents.ag_ui.sending import Sending
from agentest.agents.port import Agent, AgentReply, Resources, TurnContext
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.domain.messages import Message


def open_agent(_: str, config: AgUiAgent, resources: Resources) -> AgUiClient:
    """The client of an agent behind AG-UI."""
    return AgUiClient(config, resources)


class AgUiClient:
    """Opens conversations with one endpoint. Of all of them it knows which tools the agent runs itself."""

    takes_attachments = True

    def __init__(self, config: AgUiAgent, resources: Resources) -> None:
        self.name = config.name
        self._config = config
        self._sending = Sending(config, resources)
        self._own_tools = own_tools(config.name)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """One conversation. There is nothing to close: the protocol has no end of a thread."""
        yield self._opened()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to a history that is told at once, in a thread of its own."""
        return await self._opened().reply(messages, ctx)

    def _opened(self) -> AgUiConversation:
        return AgUiConversation(self._config, self._sending, self._own_tools)
