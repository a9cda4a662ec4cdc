"""An agent that speaks the Vercel AI SDK's stream protocols over HTTP, as `useChat` does.

It runs its own tools and tells of them; those without `execute` it hands to us.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentest.agents.ai_sdk.conversation import AiSdkConversation
from agentest.agents.ai_sdk.exchange import Exchange
from agentest.agents.port import AgentReply, Resources, TurnContext
from agentest.config.agents.ai_sdk import AiSdkAgent
from agentest.domain.messages import Message


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
