"""A graph behind a LangGraph server: threads, runs, and the state after each.

The graph runs its tools itself: calls are observed in its messages, mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentest.agents.langgraph.conversation import GraphConversation
from agentest.agents.langgraph.graph import Graph
from agentest.agents.port import AgentReply, Resources, TurnContext
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.domain.messages import Message


def open_agent(_: str, config: LangGraphAgent, resources: Resources) -> LangGraphClient:
    """The client of a graph behind a LangGraph server."""
    return LangGraphClient(config, resources)


class LangGraphClient:
    """Sends conversations to one graph. Keeps nothing of any conversation."""

    takes_attachments = True

    def __init__(self, config: LangGraphAgent, resources: Resources) -> None:
        self.name = config.name
        self._graph = Graph(config, resources)

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[GraphConversation]:
        """One conversation: it knows which messages of its thread are old, and what the graph asks."""
        yield GraphConversation(self._graph)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to the only message of a conversation."""
        return await GraphConversation(self._graph).reply(messages, ctx)
