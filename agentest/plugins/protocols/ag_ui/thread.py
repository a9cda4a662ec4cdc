"""The messages and the state of one AG-UI thread, and the JSON form of messages, calls and tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any
from uuid import uuid4

from agentest.agents.json_reader import excerpt, is_list_of_objects
from agentest.domain.messages import Attachment, Message, ToolResult, ToolSpec, UserText
from agentest.plugins.protocols.ag_ui.json_patch import BadPatch, CopyLimit, patched
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

Wire = dict[str, Any]  # a message, a tool call or an event as a JSON object
_MEDIA_KINDS = ("image", "audio", "video")


class Thread:
    """The messages of one conversation, in order."""

    def __init__(self, messages: Sequence[Wire] = ()) -> None:
        self.messages: list[Wire] = list(messages)
        self._begin = 0
        self._known: frozenset[str] = frozenset()
        self._first = 0
        """The index of the first message that both sides know. A server's examples may precede it."""

    def begin_run(self) -> None:
        """Mark all messages so far as known. Messages added from now on belong to the run."""
        self._begin = len(self.messages)
        self._known = frozenset(message["id"] for message in self.messages)

    @property
    def new(self) -> list[Wire]:
        """The messages of the run."""
        return self.messages[self._begin :]

    @property
    def earlier(self) -> list[Wire]:
        """The messages of earlier runs."""
        return self.messages[self._first : self._begin]

    def message(self, identifier: str, role: str) -> Wire:
        """Return the run's message with this id and role; create it if there is none.

        Messages of earlier runs do not count, because some servers reuse ids in every run.
        """
        for message in reversed(self.new):
            if message["id"] == identifier and message["role"] == role:
                return message
        return self.add({"id": identifier, "role": role})

    def add(self, message: Wire) -> Wire:
        """Append a message and return it."""
        self.messages.append(message)
        return message

    def replace(self, snapshot: Any) -> None:
        """Replace all messages with a server's snapshot. Raises AgentError if it is not a list of messages.

        Messages after the last known one belong to the run. If the server changed all ids, messages after
        the user's last one do.
        """
        if not is_list_of_objects(snapshot) or not all(map(_is_message, snapshot)):
            raise AgentError(
                "`messages` of a MESSAGES_SNAPSHOT is not a list of messages with `id` and `role`: "
                f"{excerpt(snapshot)}"
            )
        user_messages = sum(message["role"] == "user" for message in self.messages[: self._begin])
        self.messages = [dict(message) for message in snapshot]
        by_id = [at for at, message in enumerate(self.messages) if message["id"] in self._known]
        of_user = [at for at, message in enumerate(self.messages) if message["role"] == "user"]
        by_user = of_user[-user_messages:] if user_messages else []
        self._first = next(iter(by_id or by_user), len(self.messages))
        last = _last_true(message["id"] in self._known for message in self.messages)
        if last is None:
            last = _last_true(message["role"] == "user" for message in self.messages)
        self._begin = 0 if last is None else last + 1


def late_call_ids(known: Sequence[Wire], earlier: Sequence[Wire]) -> set[str]:
    """Return the ids of calls in messages of earlier runs that were not known before.

    If the server changed all ids, a call with the same name and arguments counts as known.
    """
    listed = [call for message in earlier for call in calls_of(message)]
    ids = {call["id"] for call in listed}
    renamed = [_name_and_arguments(call) for call in known if call["id"] not in ids]
    known_ids, late = {call["id"] for call in known}, set()
    for call in listed:
        if call["id"] in known_ids:
            continue
        if _name_and_arguments(call) in renamed:
            renamed.remove(_name_and_arguments(call))
        else:
            late.add(call["id"])
    return late


def _name_and_arguments(call: Wire) -> tuple[str, Any]:
    """Return a call's name and arguments in a normal form, so that calls can be compared."""
    name, arguments = call["function"]["name"], call["function"].get("arguments")
    try:
        return name, json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return name, arguments


def calls_of(message: Mapping[str, Any]) -> list[Wire]:
    """Return the tool calls in a message. Raises AgentError if they are not a list of calls."""
    calls = message.get("toolCalls") or []
    if not is_list_of_objects(calls) or not all(map(_is_call, calls)):
        raise AgentError(f"`toolCalls` of a message is not a list of tool calls: {excerpt(calls)}")
    return calls


def _is_message(value: Wire) -> bool:
    return all(isinstance(value.get(key), str) for key in ("id", "role"))


def _is_call(value: Wire) -> bool:
    function = value.get("function")
    is_named = isinstance(function, Mapping) and isinstance(function.get("name"), str)
    return is_named and isinstance(value.get("id"), str)


def _last_true(marks: Iterable[bool]) -> int | None:
    return max((at for at, mark in enumerate(marks) if mark), default=None)


def new_id() -> str:
    """Return a unique id. Servers that store threads replace messages that have the same id."""
    return uuid4().hex


def written(message: Message) -> Wire:
    """Return a message as JSON, with a new id. Raises CannotSend for a file that AG-UI cannot send."""
    if isinstance(message, UserText):
        return {"id": new_id(), "role": "user", "content": message.content("text", _part)}
    if isinstance(message, ToolResult):
        return {"id": new_id(), "role": "tool", "toolCallId": message.request_id, "content": message.text}
    calls = [call_wire(r.id, r.name, r.arguments) for r in message.tool_requests]
    wire: Wire = {"id": new_id(), "role": "assistant", "content": message.text or ""}
    return {**wire, "toolCalls": calls} if calls else wire


def call_wire(identifier: str, name: str, arguments: str) -> Wire:
    """Return a tool call as JSON."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def with_ids(messages: Sequence[Wire]) -> list[Wire]:
    """Give an id to each message of the configuration, because AG-UI requires one."""
    return [message if message.get("id") else {"id": new_id(), **message} for message in messages]


def declared(spec: ToolSpec) -> Wire:
    """Return the declaration of a tool as JSON."""
    return {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}


def _part(file: Attachment) -> Wire:
    kind = file.mime_type.partition("/")[0].lower()
    part = kind if kind in _MEDIA_KINDS else "document"
    if not file.uri:
        return {"type": part, "source": {"type": "data", "value": file.base64, "mimeType": file.mime_type}}
    if not file.uri.startswith(("http://", "https://")):
        problem = "it takes addresses only if they begin with https:// or http://"
        raise file.unsupported("an AG-UI agent", problem)
    return {"type": part, "source": {"type": "url", "value": file.uri, "mimeType": file.mime_type}}


@dataclass(slots=True)
class AgUiState:
    """The agent's state in one conversation."""

    begun: Mapping[str, Any]  # the state at the beginning of the session
    value: Any = field(init=False)  # the agent's latest value, of any type, which requests send back
    told: bool = False  # True if the agent reports its state
    problem: str | None = None
    _copies: CopyLimit = field(default_factory=CopyLimit)

    def __post_init__(self) -> None:
        self.value = dict(self.begun)

    def take_snapshot(self, value: Any) -> None:
        """Replace the state."""
        self.value, self.told, self.problem = value, True, None

    def take_delta(self, patch: Any) -> None:
        """Apply a JSON Patch. If that fails, the state is unknown until the next snapshot."""
        self.told = True
        try:
            self.value = patched(self.value, patch, self._copies)
        except BadPatch as error:
            self.problem = f"a STATE_DELTA of the agent could not be applied: {error}"

    @property
    def error(self) -> str | None:
        """The reason why a reported state is unknown; None if it is known."""
        if self.told and self.problem is None and not isinstance(self.value, Mapping):
            return f"the agent's state is not a JSON object but a {type(self.value).__name__}"
        return self.problem

    @property
    def shown(self) -> Mapping[str, Any] | None:
        """The state for judging; None if it is unknown."""
        if not self.told or self.error is not None:
            return None
        return {key: value for key, value in self.value.items() if not _is_transcript(key, value)}


def _is_transcript(key: str, value: Any) -> bool:
    return key == "messages" and is_list_of_objects(value) and all("content" in item for item in value)
