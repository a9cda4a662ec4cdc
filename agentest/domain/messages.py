"""What the two sides of a conversation send each other, in no protocol's form.

The turn loop keeps a list of these values. Each agent's client turns them into the form of its protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that the user sends along: its bytes, or the address where they are."""

    mime_type: str
    base64: str = ""
    """The bytes, in the standard alphabet, padded; "" where `uri` says where they are."""
    uri: str = ""
    name: str = ""
    origin: str = ""
    """Where it was written, in words, for errors: `user_content of invocation 'turn-1'`."""

    @property
    def size(self) -> int | None:
        """In bytes; None where only the address is known."""
        return None if self.uri else len(self.base64) * 3 // 4 - self.base64[-2:].count("=")


@dataclass(frozen=True, slots=True)
class UserText:
    """What the user writes to the agent, and the files that go with it: beside them, it may be empty."""

    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as it is described to who may call it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """The JSON Schema of its argument object."""


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


def last_said(messages: Sequence[Message]) -> UserText:
    """What the user has said last: all that is sent to who keeps the rest of a conversation himself."""
    return next(message for message in reversed(messages) if isinstance(message, UserText))


@dataclass(frozen=True, slots=True)
class Session:
    """The session in which an agent that keeps sessions holds the conversation."""

    app_name: str = ""
    user_id: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
