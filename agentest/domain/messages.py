"""The messages of a conversation, independent of protocols.

The turn loop stores a list of these values. Each agent client converts them to its protocol's format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

from agentest.support.errors import CannotSend
from agentest.support.lazy_dataclasses import dataclass

_AUDIO = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
"""Audio types that OpenAI's protocols support as audio parts. Other audio is sent as a file."""


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

    @property
    def kind(self) -> str:
        """The media type without parameters, such as `image/png`."""
        return self.mime_type.partition(";")[0].strip().lower()

    @property
    def audio_format(self) -> str | None:
        """`wav` or `mp3`, or None for other types."""
        return _AUDIO.get(self.kind)

    @property
    def file_name(self) -> str:
        """The name, or one made from the type."""
        return self.name or f"attachment.{self.kind.rpartition('/')[2] or 'bin'}"

    @property
    def data_address(self) -> str:
        """The bytes as a data: URL."""
        return f"data:{self.mime_type};base64,{self.base64}"

    def web_address(self, whom: str) -> str:
        """Return the URL, or the bytes as a data: URL. Raises CannotSend for a URL others cannot open.

        `whom` is the recipient, for the error: `a chat-completions agent`.
        """
        if not self.uri:
            return self.data_address
        if urlsplit(self.uri).scheme not in ("http", "https", "data"):
            problem = "it can be sent addresses that begin with https://, http:// or data: alone"
            raise self.unsupported(whom, problem)
        return self.uri

    def unsupported(self, whom: str, why: str) -> CannotSend:
        """Return the error for a file that a protocol cannot carry."""
        return CannotSend(
            f"{self.origin} has a part `{'file_data' if self.uri else 'inline_data'}` ({self.mime_type}"
            f"{f', {self.uri}' if self.uri else ''}) that cannot be sent to {whom}: {why}"
            + ("; write the file's bytes into the case, as `inline_data`" if self.uri else "")
        )


@dataclass(frozen=True, slots=True)
class UserText:
    """The user's message to the agent; the text may be empty if there are attachments."""

    text: str
    attachments: tuple[Attachment, ...] = ()

    def content(self, text_type: str, file_part: Callable[[Attachment], Any]) -> str | list[Any]:
        """Return the content of the message: its text, or parts if files are attached. Raises CannotSend."""
        if not self.attachments:
            return self.text
        text = [{"type": text_type, "text": self.text}] if self.text else []
        return [*text, *map(file_part, self.attachments)]


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
