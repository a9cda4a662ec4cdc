"""The interface of framework modules: `prepare(agent) -> Begin`.

A module with its own client has `async open_object(name, agent, resources) -> Agent` instead. For the
functions in `mock_tools`, it also has an `asking_…` function that wraps tools so that they call a gate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agentest.agents.in_process.tool_gate import ToolGate
from agentest.agents.port import AgentReply
from agentest.domain.messages import Message
from agentest.support.errors import AgentError
from agentest.support.json_text import NotJson, json_text

FindGate = Callable[[str], ToolGate | None]
"""Returns the gate for a tool of this name. None runs the real tool. May raise AgentestError."""


class FrameworkConversation(Protocol):
    """One conversation with an agent object. Stores what the framework needs for the next turn."""

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Return the reply to the last message. Raises whatever the agent raises."""
        ...


Begin = Callable[[Any, str], FrameworkConversation]
"""Starts a conversation with the context from the user's code (or None) and the session id."""
Prepare = Callable[[Any], Begin]
"""Installs the gate in a framework and checks an agent. Raises ValueError if the agent cannot be run."""


def output_text(output: Any) -> str | None:
    """Convert an agent's output to a reply: text unchanged, other values as JSON. Raises AgentError."""
    if output is None or isinstance(output, str):
        return output
    try:
        return json_text(output)
    except NotJson as error:
        kind = type(output).__name__
        raise AgentError(
            f"the agent's output is a {kind}, which is no text and cannot be written as JSON: {error}"
        ) from None


def result_text(answer: Any) -> str:
    """Convert a mock's answer to a tool result: text unchanged, other values as JSON."""
    return answer if isinstance(answer, str) else json_text(answer)
