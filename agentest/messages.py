"""What the two sides of a conversation send each other, in no protocol's form.

The turn loop keeps a list of these values. Each agent's client turns them into the form of its protocol.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UserText:
    """What the user writes to the agent."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool call as the agent wrote it. `arguments` is its JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """What the agent sends: text, or tools that it wants called, or both."""

    text: str | None
    tool_requests: tuple[ToolRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to the tool request with this id."""

    request_id: str
    name: str
    text: str


Message = UserText | AgentMessage | ToolResult
