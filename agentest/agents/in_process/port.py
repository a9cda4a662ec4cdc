"""What a framework's module in this room offers: `prepare(agent) -> Begin`.

Or, where it has a client of its own, `async open_object(name, agent, resources) -> Agent`. For one line in a
handler or an application (`lines`) it has an `asking_…` function: what that makes asks the gate it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agentest.agents.in_process.gate import Gate
from agentest.agents.port import AgentReply
from agentest.domain.messages import Message

FindGate = Callable[[str], Gate | None]
"""Finds the gate that a tool of this name asks; None: the real tool runs. May raise AgentestError."""


class Talk(Protocol):
    """One conversation with an agent object, which keeps what the framework needs for the next turn."""

    async def turn(self, messages: Sequence[Message], gate: Gate) -> AgentReply:
        """The agent's reply to the last of the messages. Raises whatever the agent raises."""
        ...


Begin = Callable[[Any, str], Talk]
"""Begins a conversation: the context that the user's code makes (None: none), and the session's id."""
Prepare = Callable[[Any], Begin]
"""Places the gate in a framework, and looks at an agent. Raises ValueError for one that cannot be run."""
