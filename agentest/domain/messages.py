"""The messages of a conversation, independent of protocols.

The turn loop stores a list of these values. Each agent client converts them to its protocol's format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that the user attaches: its bytes or its address."""

    mime_type: str
    base64: str = ""  # the bytes in the standard alphabet, padded; "" if `uri` has the address
    uri: str = ""
    name: str = ""
    origin: str = ""  # the source location for error messages: `user_content of invocation 'turn-1'`

    @property
    def size(self) -> int | None:
        """The size in bytes; None if only the address is known."""
        return None if self.uri else len(self.base64) * 3 // 4 - self.base64[-2:].count("=")


@dataclass(frozen=True, slots=True)
class UserText:
    """The user's message to the agent; the text may be empty if there are attachments."""

    text: str
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool's description for callers."""

    name: str
    description: str
    parameters: Mapping[str, Any]  # the JSON Schema of the arguments object


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool call as the agent wrote it. `arguments` is its JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AgentMessage:
    """The agent's message: text, tool requests, or both."""

    text: str | None
    tool_requests: tuple[ToolRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of the tool request with this id."""

    request_id: str
    name: str
    text: str


Message = UserText | AgentMessage | ToolResult


@dataclass(frozen=True, slots=True)
class EarlierMessage:
    """A message or call before the first turn, for people and judges."""

    role: str  # `user`, `assistant` or `tool call`
    text: str  # a call with its result: `get_order({"id": 17}) → {"status": "sent"}`


def earlier_messages(history: Sequence[Message]) -> tuple[EarlierMessage, ...]:
    """Return the messages before the first turn in the form in which they are shown."""
    results = {each.request_id: each.text for each in history if isinstance(each, ToolResult)}
    shown: list[EarlierMessage] = []
    for each in history:
        if each.text and not isinstance(each, ToolResult):
            shown.append(EarlierMessage("user" if isinstance(each, UserText) else "assistant", each.text))
        for call in each.tool_requests if isinstance(each, AgentMessage) else ():
            shown.append(EarlierMessage("tool call", f"{call.name}({call.arguments}) → {results[call.id]}"))
    return tuple(shown)


def last_user_message(messages: Sequence[Message]) -> UserText:
    """Return the user's last message, which is all that an agent with its own history needs."""
    return next(message for message in reversed(messages) if isinstance(message, UserText))


@dataclass(frozen=True, slots=True)
class Session:
    """The session in which a stateful agent runs the conversation."""

    app_name: str = ""
    user_id: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    session_id: str | None = None
