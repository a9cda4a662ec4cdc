"""What a framework's module in this room offers: `prepare(agent) -> Begin`.

Or, where it has a client of its own, `async open_object(name, agent, resources) -> Agent`. For one line in a
handler or an application (`lines`) it has an `asking_…` function: what that makes asks the gate it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agentest.agents.in_process.tool_gate import Gate
from agentest.agents.port import AgentReply
from agentest.domain.messages import Message
from agentest.support.errors import AgentError
from agentest.support.json_text import NotJson, json_text

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


def output_text(output: Any) -> str | None:
    """An agent's output as its reply: a text as it is, anything structured as JSON. Raises AgentError."""
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
    """The answer of a mock as a tool's text: a text as it is, anything else as JSON."""
    return answer if isinstance(answer, str) else json_text(answer)
