"""The messages of one AG-UI thread, as both sides have told them so far."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from agentest.agents.json_reader import shown
from agentest.domain.messages import AgentMessage, Attachment, Message, ToolResult, ToolSpec, UserText
from agentest.support.errors import AgentError, CannotSend
from agentest.support.json_patch import BadPatch, Copies, patched


class Thread:
    """Messages in order. It belongs to one conversation."""

    def __init__(self, messages: Sequence[Wire] = ()) -> None:
        self.messages: list[Wire] = list(messages)
        self._begin = 0
        self._known: frozenset[str] = frozenset()
        self._first = 0
        """Where the first message is that both sides know; what a server lists before it are its examples."""

    def begin_run(self) -> None:
        """All messages so far are known; what comes now is the run's."""
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

    @property
    def told(self) -> int:
        """How many messages the run has."""
        return len(self.messages) - self._begin

    def message(self, identifier: str, role: str) -> Wire:
        """The run's message with this id and role, made where there is none.

        Those of earlier runs are left alone: some servers number the messages of each run anew.
        """
        for message in reversed(self.new):
            if message["id"] == identifier and message["role"] == role:
                return message
        return self.add({"id": identifier, "role": role})

    def add(self, message: Wire) -> Wire:
        self.messages.append(message)
        return message

    def replace(self, snapshot: Any) -> None:
        """Take a server's list of all messages in place of ours. Raises AgentError for what is none.

        What follows the last that was known is the run's. A server that gives new ids to all is believed that
        the user's last message is the last of ours.
        """
        if not isinstance(snapshot, list) or not all(map(_is_message, snapshot)):
            raise AgentError(
                "`messages` of a MESSAGES_SNAPSHOT is not a list of messages with `id` and `role`: "
                f"{shown(snapshot)}"
            )
        said = sum(message["role"] == "user" for message in self.messages[: self._begin])
        self.messages = [dict(message) for message in snapshot]
        self._first = _first(self.messages, self._known, said)
        last = _last(message["id"] in self._known for message in self.messages)
        if last is None:
            last = _last(message["role"] == "user" for message in self.messages)
        self._begin = 0 if last is None else last + 1


def told_late(known: Sequence[Wire], earlier: Sequence[Wire]) -> set[str]:
    """Ids of the calls in messages of earlier runs that are none of those known.

    A server that gives new ids to all is believed that an equal call is one that is known.
    """
    listed = [one for message in earlier for one in calls_of(message)]
    ids = {one["id"] for one in listed}
    renamed = [_called(one) for one in known if one["id"] not in ids]
    late = set()
    for one in listed:
        if one["id"] in {other["id"] for other in known}:
            continue
        if _called(one) in renamed:
            renamed.remove(_called(one))
        else:
            late.add(one["id"])
    return late


def _called(call: Wire) -> tuple[str, Any]:
    """What a call says, in whatever way its arguments are written."""
    name, arguments = call["function"]["name"], call["function"].get("arguments")
    try:
        return name, json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return name, arguments


def _first(messages: Sequence[Wire], known: AbstractSet[str], said: int) -> int:
    """Where the first known message is; else, from the end, that of as many of the user as were said."""
    by_id = [at for at, message in enumerate(messages) if message["id"] in known]
    by_user = [at for at, message in enumerate(messages) if message["role"] == "user"][-said:] if said else []
    return next(iter(by_id or by_user), len(messages))


def calls_of(message: Mapping[str, Any]) -> list[Wire]:
    """The tool calls in a message. Raises AgentError for what are none."""
    calls = message.get("toolCalls") or []
    if not isinstance(calls, list) or not all(map(_is_call, calls)):
        raise AgentError(f"`toolCalls` of a message is not a list of tool calls: {shown(calls)}")
    return calls


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("id", "role"))


def _is_call(value: Any) -> bool:
    function = value.get("function") if isinstance(value, Mapping) else None
    return (
        isinstance(function, Mapping)
        and isinstance(value.get("id"), str)
        and isinstance(function.get("name"), str)
    )


def _last(marks: Iterable[bool]) -> int | None:
    return max((at for at, mark in enumerate(marks) if mark), default=None)


Wire = dict[str, Any]
"""A message, a tool call or an event as JSON has it."""

_MEDIA = ("image", "audio", "video")


def new_id() -> str:
    """An id that no message of any run had before: servers that keep threads replace what has the same."""
    return uuid4().hex


def written(message: Message) -> Wire:
    """A message with an id of its own. Raises CannotSend for a file that has no form."""
    if isinstance(message, UserText):
        return {"id": new_id(), "role": "user", "content": _content(message)}
    if isinstance(message, ToolResult):
        return {"id": new_id(), "role": "tool", "toolCallId": message.request_id, "content": message.text}
    return _of_the_agent(message)


def _of_the_agent(message: AgentMessage) -> Wire:
    calls = [call(r.id, r.name, r.arguments) for r in message.tool_requests]
    wire: Wire = {"id": new_id(), "role": "assistant", "content": message.text or ""}
    return {**wire, "toolCalls": calls} if calls else wire


def call(identifier: str, name: str, arguments: str) -> Wire:
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def with_ids(messages: Sequence[Wire]) -> list[Wire]:
    """Messages of the user's own configuration, each with an id."""
    return [message if message.get("id") else {"id": new_id(), **message} for message in messages]


def declared(spec: ToolSpec) -> Wire:
    return {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}


def _content(message: UserText) -> str | list[Wire]:
    if not message.attachments:
        return message.text
    text = [{"type": "text", "text": message.text}] if message.text else []
    return [*text, *map(_part, message.attachments)]


def _part(file: Attachment) -> Wire:
    kind = file.mime_type.partition("/")[0].lower()
    part = kind if kind in _MEDIA else "document"
    if not file.uri:
        return {"type": part, "source": {"type": "data", "value": file.base64, "mimeType": file.mime_type}}
    if not file.uri.startswith(("http://", "https://")):
        raise CannotSend(
            f"{file.origin} has a part `file_data` ({file.mime_type}, {file.uri}) that cannot be sent to an "
            "AG-UI agent: it takes addresses that begin with https:// or http:// alone; write the file's "
            "bytes into the case, as `inline_data`"
        )
    return {"type": part, "source": {"type": "url", "value": file.uri, "mimeType": file.mime_type}}


_MESSAGES = "messages"


@dataclass(slots=True)
class State:
    """It belongs to one conversation."""

    begun: Mapping[str, Any]
    """With which the session began."""
    value: Any = field(init=False)
    """What is sent back: the agent's own value, whatever that is."""
    told: bool = False
    """Whether the agent tells of it."""
    problem: str | None = None
    _copies: Copies = field(default_factory=Copies)

    def __post_init__(self) -> None:
        self.value = dict(self.begun)

    def take_snapshot(self, value: Any) -> None:
        self.value, self.told, self.problem = value, True, None

    def take_delta(self, patch: Any) -> None:
        """Change it by a JSON Patch. One that does not fit leaves it unknown until the next snapshot."""
        self.told = True
        try:
            self.value = patched(self.value, patch, self._copies)
        except BadPatch as error:
            self.problem = f"a STATE_DELTA of the agent could not be applied: {error}"

    @property
    def error(self) -> str | None:
        """Why the state is not known, of an agent that tells of it."""
        if self.told and self.problem is None and not isinstance(self.value, Mapping):
            return f"the agent's state is not a JSON object but a {type(self.value).__name__}"
        return self.problem

    @property
    def shown(self) -> Mapping[str, Any] | None:
        """The state as it is judged; None where it is not known."""
        if not self.told or self.error is not None:
            return None
        return {key: value for key, value in self.value.items() if not _is_transcript(key, value)}


def _is_transcript(key: str, value: Any) -> bool:
    """Whether a part of the state is the conversation itself, as graphs of LangGraph have it."""
    return (
        key == _MESSAGES
        and isinstance(value, list)
        and all(isinstance(item, Mapping) and "content" in item for item in value)
    )
