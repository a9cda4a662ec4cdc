"""Blame for a conversation that ends after a refused call."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agentest.agents.port import AgentReply, NoReply
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.transcript import Blame
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.port import Identity
from agentest.plugins.servers.server_calls import MockServerCalls
from agentest.support.errors import MockError, ModelUnavailable
from agentest.support.trace_context import new_key


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (NoReply("the stream was cut"), Blame.INTERNAL),
        (MockError("the mock is broken"), Blame.MOCK),
        (ModelUnavailable("the model is down"), Blame.MODEL),
    ],
)
def test_a_refused_call_takes_the_blame_from_the_agent_alone(error: Exception, blame: Blame) -> None:
    """An agent may fail because we refused its call; a failing mock or model is still to blame."""

    class Breaks:
        name = "agent"

        async def reply(self, messages: Any, ctx: Any) -> AgentReply:
            await served.refused("a call named no conversation")
            raise error

    mocks = MockResolver({}, scenario="a", conversation_id="a-1")
    who = Identity(key=new_key(), session_id=None, conversation_id="a-1", scenario="a", agent="agent")
    served = MockServerCalls(who, mocks)
    loop = TurnLoop(ConversationSpec("a-1", "a", 3), Breaks(), ScriptedUser(["go"]), mocks, [served])
    failure = anyio.run(loop.run).failure
    assert failure
    assert failure.blame is blame
    assert ("a call named no conversation" in failure.message) == (blame is Blame.INTERNAL)
