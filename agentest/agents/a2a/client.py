"""An agent that speaks A2A, versions 1.0 and 0.3.

The agent runs its tools itself: what its server tells of their calls is observed, mocks do not apply.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from agentest.agents.a2a.contact import Address, Contact
from agentest.agents.a2a.conversation import A2aConversation, Line, Pause
from agentest.agents.a2a.exchange import A2A_PLACE, Exchange
from agentest.agents.http_sender import HttpSender
from agentest.agents.ignored import Ignored
from agentest.agents.port import Agent, AgentReply, Resources, TurnContext
from agentest.config.agents.a2a import A2aAgent
from agentest.domain.messages import Message
from agentest.support.templates import Template


def open_agent(_: str, config: A2aAgent, resources: Resources) -> A2aClient:
    """The client of an agent that speaks A2A."""
    return A2aClient(config, resources)


class A2aClient:
    """Opens conversations with one agent. Keeps nothing of any of them, but how the agent is talked to."""

    takes_attachments = True

    def __init__(self, config: A2aAgent, resources: Resources, pause: Pause = anyio.sleep) -> None:
        """`pause` waits for so many seconds before a task is asked for once more."""
        self.name = config.name
        self._streaming = config.streaming
        self._on_note = resources.on_note
        self._noted = False
        self._contact = Contact(_address(config), resources.timeout_s, resources.on_note)
        sender = HttpSender(config, resources.client, resources.timeout_s, A2A_PLACE)
        self._line = Line(
            name=config.name,
            contact=self._contact,
            exchange=Exchange(sender, self._credentials),
            body=Template(config.body),
            streams=self._streams,
            timeout_s=resources.timeout_s,
            pause=pause,
            on_unknown=Ignored(config.name, resources).note,
        )

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Who answers in one conversation. There is nothing to close: contexts end on the server."""
        yield A2aConversation(self._line)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The answer to the user's last message, in a conversation of its own. Raises NoReply, CannotSend."""
        async with self.conversation() as conversation:
            return await conversation.reply(messages, ctx)

    def _credentials(self) -> str:
        return self._contact.card.credentials if self._contact.card else ""

    def _streams(self) -> bool:
        """Whether answers are asked for as streams. Says so once where the agent's card refuses that."""
        refused = self._contact.card is not None and not self._contact.card.streams
        if self._streaming and refused and not self._noted:
            self._noted = True
            self._on_note(
                f"agent {self.name!r}: its card says that it does not stream (capabilities.streaming: "
                "false), so it is asked for whole answers; leave `streaming` out"
            )
        return self._streaming and not refused


def _address(config: A2aAgent) -> Address:
    return Address(
        name=config.name,
        endpoint=config.endpoint,
        version=config.protocol_version,
        in_process=config.app is not None,
    )
