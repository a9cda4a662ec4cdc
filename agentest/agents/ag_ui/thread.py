"""The messages of one AG-UI thread, as both sides have told them so far."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from agentest.agents.ag_ui.wire import Wire
from agentest.agents.reading import shown
from agentest.support.errors import AgentError


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
