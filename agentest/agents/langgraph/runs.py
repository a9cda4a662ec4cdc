"""What one run of a graph tells: its final state, and what went on before, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.answers import EventStream
from agentest.agents.langgraph.messages import AI, OnUnknown, Wire, is_message, kind_of, text_of
from agentest.agents.reading import read_json, shown
from agentest.errors import AgentError

PLACE = "is this the address of a LangGraph server, like http://localhost:2024?"
MESSAGES = "messages"
_INTERRUPT, _ERROR = "__interrupt__", "__error__"
_SKIPPED = ("metadata", "custom", "debug", "tasks", "checkpoints", "feedback", "heartbeat")
_PASSING = "+"
_TOKENS = ("messages", "messages/partial", "messages/complete", "messages/metadata")


@dataclass(slots=True)
class RunTold:
    """What a run has told so far."""

    values: Any = None
    """The graph's state, as far as it shows it; None: not told."""
    messages: dict[str, Wire] = field(default_factory=dict)
    """By key (`key_of`), in the order in which they came up: those of the state, those that were removed
    from it, and, in a stream, those of the graphs inside."""
    interrupts: list[Wire] = field(default_factory=list)
    problem: str | None = None
    """Why the run has failed, in the graph's words."""
    told_state: bool = False
    """Whether the state was told as a whole, with the messages from before this run."""
    ended: bool = True
    """Whether the run is known to have come to its end."""

    def take_state(self, values: Any) -> None:
        """Take a state of the graph as a whole."""
        if isinstance(values, Mapping):
            self._take_interrupts(values.get(_INTERRUPT))
            values = {key: value for key, value in values.items() if key != _INTERRUPT}
            self.take_messages(values.get(MESSAGES))
        self.values, self.told_state = values, True

    def take_messages(self, messages: Any) -> None:
        """Take the messages of a state, in their latest form."""
        for index, message in enumerate(messages if isinstance(messages, list) else ()):
            if is_message(message):
                self.messages[key_of(message, f"#{index}")] = message

    def take_update(self, update: Any, only_named: bool) -> None:
        """Take what nodes have changed: `{node: change or changes}`."""
        for node, change in update.items() if isinstance(update, Mapping) else ():
            if node == _INTERRUPT:
                self._take_interrupts(change)
                continue
            for one in change if isinstance(change, list) else [change]:
                if isinstance(one, Mapping):
                    self._take_changed(one.get(MESSAGES), only_named)

    def _take_changed(self, messages: Any, only_named: bool) -> None:
        """Take messages that a node has added; those without an id come again with one in a state."""
        for message in messages if isinstance(messages, list) else [messages]:
            if is_message(message) and (message.get("id") or not only_named):
                self.messages[key_of(message, f"{_PASSING}{len(self.messages)}")] = message

    def _take_interrupts(self, interrupts: Any) -> None:
        for interrupt in interrupts if isinstance(interrupts, list) else ():
            if isinstance(interrupt, Mapping) and interrupt not in self.interrupts:
                self.interrupts.append(interrupt)


def key_of(message: Wire, place: str) -> str:
    """What tells a message from the others of its thread: its id, or where it stands."""
    return str(message.get("id") or place)


def is_passing(key: str) -> bool:
    """Whether a key says nothing in the next run: that of a message without id, of no place in the state."""
    return key.startswith(_PASSING)


def state_messages(values: Any) -> list[Wire] | None:
    """The messages in a state; None where it has no list of them."""
    found = values.get(MESSAGES) if isinstance(values, Mapping) else None
    return [m for m in found if isinstance(m, Mapping)] if isinstance(found, list) else None


def read_answer(body: bytes) -> RunTold:
    """What an answer of `/runs/wait` tells. Raises AgentError."""
    data = read_json(body, PLACE)
    told = RunTold()
    if isinstance(data, Mapping) and _ERROR in data:
        told.problem = _failure(data[_ERROR])
    else:
        told.take_state(data)
    return told


def _failure(error: Any) -> str:
    if not isinstance(error, Mapping):
        return f"the graph failed: {shown(error)}"
    words = [str(error[key]) for key in ("error", "message") if error.get(key)]
    return f"the graph failed: {': '.join(words) or shown(error)}"


class StreamReader:
    """Reads `/runs/stream`: states as a whole, what each node changed, and texts as they are written."""

    def __init__(self, on_unknown: OnUnknown) -> None:
        self._on_unknown = on_unknown

    async def read(self, events: EventStream) -> RunTold:
        """What the run tells. It closes at its end; older servers say `end` first. Raises AgentError."""
        told = RunTold(ended=False)
        async for event in events:
            if not event.data.strip():
                told.ended = told.ended or event.name == "end"
                continue
            data = _data(event.data)
            kind, _, inside = event.name.partition("|")
            if kind in ("end", "error"):
                told.problem = _failure(data) if kind == "error" else told.problem
                told.ended = True
                break
            if self._take(told, kind, bool(inside), data):
                events.note_first_token()
        if not told.ended and not told.told_state and not told.messages:
            raise AgentError("the agent's stream was cut: it ended before any state of the graph (`values`)")
        return told

    def _take(self, told: RunTold, kind: str, inside: bool, data: Any) -> bool:
        """Take one event; whether it has a piece of text."""
        if kind == "values":
            if inside:
                told.take_update({"": data}, only_named=True)
            else:
                told.take_state(data)
        elif kind == "updates":
            told.take_update(data, only_named=inside or told.told_state)
        elif kind in _TOKENS:
            return _has_text(data)
        elif kind not in _SKIPPED:
            self._on_unknown("event", kind)
        return False


def _data(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise AgentError(f"an event of the agent's stream is not JSON: {shown(text)!r}") from None


def _has_text(data: Any) -> bool:
    items = data if isinstance(data, list) else [data]
    return any(isinstance(m, Mapping) and kind_of(m) == AI and text_of(m).strip() for m in items)
