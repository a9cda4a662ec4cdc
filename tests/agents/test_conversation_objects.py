"""Agents with one object per conversation, and the values available to every request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.lowlevel import checkpoint

from agentest.agents.placeholders import TurnValues
from agentest.agents.port import Agent, AgentReply, TurnContext
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import AgentMessage, Message, Session, ToolRequest, ToolResult, UserText
from agentest.domain.transcript import Conversation
from agentest.mocks.resolver import MockResolver
from agentest.support.errors import AgentError, CannotSend


@dataclass
class Counting:
    """One conversation, which counts its messages."""

    name: str
    asked: int = 0

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        self.asked += 1
        await checkpoint()
        if messages[-1] == UserText("fail"):
            raise AgentError("no")
        return AgentReply(f"{self.asked}", latency_ms=10, first_token_ms=4)


@dataclass
class Switchboard:
    """An agent with a separate object for each conversation."""

    name: str = "agent"
    open: int = 0
    most: int = 0
    closed: list[int] = field(default_factory=list)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        raise AssertionError("conversations answer for it")

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        self.open += 1
        self.most = max(self.most, self.open)
        counting = Counting(self.name)
        try:
            yield counting
        finally:
            self.open -= 1
            self.closed.append(counting.asked)


async def held(agent: Agent, *lines: str) -> Conversation:
    user = ScriptedUser(lines)
    mocks = MockResolver({}, scenario="s", conversation_id="c-1")
    return await TurnLoop(ConversationSpec("c-1", "s", 8), agent, user, mocks).run()


def test_each_conversation_has_its_own_object() -> None:
    """The objects share nothing, and each is closed however its conversation ends."""
    agent, ended = Switchboard(), []

    async def go(*lines: str) -> None:
        ended.append(await held(agent, *lines))

    async def all_of_them() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go, "a", "b")
            tasks.start_soon(go, "c", "fail")

    anyio.run(all_of_them)
    assert sorted(turn.agent_message for one in ended for turn in one.turns) == ["1", "1", "2"]
    assert (agent.open, agent.most, agent.closed) == (0, 2, [2, 2])
    assert {turn.first_token_ms for one in ended for turn in one.turns} == {4}


SAID: list[Message] = [
    UserText("One"),
    AgentMessage(None, (ToolRequest("c", "t", "{}"),)),
    ToolResult("c", "t", "{}"),
    AgentMessage("Two"),
    UserText("Three"),
]


def values(state: dict[str, object] | None = None, **saved: object) -> TurnValues:
    session = None if state is None else Session(state=state)
    ctx = TurnContext("c-1", "booking", 1, lambda *_: None, session, session_id="s-9")
    return TurnValues(SAID, ctx, saved)


def test_values_of_placeholders() -> None:
    """The last message, the conversation, and ids of session, turn and scenario."""
    known = values({"user": {"id": 7}}, job="j-1")
    assert [known[name] for name in ("message", "session_id", "turn_index", "scenario", "job")] == [
        "Three",
        "s-9",
        1,
        "booking",
        "j-1",
    ]
    assert known["messages"] == [
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Three"},
    ]
    assert (known["state.user"], known["state.user.id"]) == ({"id": 7}, 7)


@pytest.mark.parametrize("state", [None, {}, {"user": 1}])
def test_a_state_that_is_missing(state: dict[str, object] | None) -> None:
    """The error about a missing session state says how to set it."""
    with pytest.raises(CannotSend, match=r'no \'(user|id)\'; write it into the scenario: session=\{"state"'):
        values(state)["state.user.id"]
