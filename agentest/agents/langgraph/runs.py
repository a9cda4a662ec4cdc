"""What one run of a graph tells: each message that it adds, its state, and what it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentest.agents.answers import EventStream
from agentest.agents.langgraph.messages import AI, OnUnknown, Wire, is_message, kind_of, text_of
from agentest.agents.reading import cut_stream, read_json, read_text, shown

PLACE = "is this the address of a LangGraph server, like http://localhost:2024?"
MESSAGES = "messages"
_INTERRUPT, _ERROR = "__interrupt__", "__error__"
_SKIPPED = ("metadata", "custom", "debug", "tasks", "checkpoints", "feedback", "heartbeat")
_TOKENS = ("messages", "messages/partial", "messages/complete", "messages/metadata")


@dataclass(slots=True)
class RunTold:
    """What a run has told so far."""

    values: Any = None
    """The graph's state; None: not told."""
    messages: list[Wire] = field(default_factory=list)
    """What nodes have added, in order: also what later ones removed, and that of the graphs inside."""
    interrupts: list[Wire] = field(default_factory=list)
    stopped: bool = False
    """Whether the graph said that it was interrupted, be it without a question."""
    problem: str | None = None
    """Why the run has failed, in the graph's words."""
    ended: bool = True
    """Whether the run is known to have come to its end."""

    def take_state(self, values: Any) -> None:
        """Take the state of the graph."""
        if isinstance(values, Mapping):
            self._take_interrupts(values)
            values = {key: value for key, value in values.items() if key != _INTERRUPT}
        self.values = values

    def take_update(self, update: Any) -> None:
        """Take what nodes have changed: `{node: change or changes}`."""
        if not isinstance(update, Mapping):
            return
        self._take_interrupts(update)
        for change in update.values():
            for one in change if isinstance(change, list) else [change]:
                if isinstance(one, Mapping):
                    self._take_messages(one.get(MESSAGES))

    def _take_messages(self, messages: Any) -> None:
        found = messages if isinstance(messages, list) else [messages]
        self.messages += [message for message in found if is_message(message)]

    def _take_interrupts(self, told: Mapping[str, Any]) -> None:
        self.stopped = self.stopped or _INTERRUPT in told
        interrupts = told.get(_INTERRUPT)
        for interrupt in interrupts if isinstance(interrupts, list) else ():
            if isinstance(interrupt, Mapping) and interrupt not in self.interrupts:
                self.interrupts.append(interrupt)


def state_messages(values: Any) -> list[Wire] | None:
    """The messages in a state; None where it has no list of them."""
    found = values.get(MESSAGES) if isinstance(values, Mapping) else None
    return [m for m in found if is_message(m)] if isinstance(found, list) else None


def read_answer(body: bytes) -> RunTold:
    """What an answer of `/runs/wait` tells: the state alone. Raises AgentError."""
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
    """Reads `/runs/stream`: what each node changed, and texts as they are written."""

    def __init__(self, on_unknown: OnUnknown) -> None:
        self._on_unknown = on_unknown

    async def read(self, events: EventStream, on_run: Callable[[str], object]) -> RunTold:
        """What the run tells. It closes at its end; older servers say `end` first. Raises AgentError.

        `on_run` receives the id of the run, where the stream has it.
        """
        told, begun = RunTold(ended=False), False
        async for event in events:
            kind, _, _ = event.name.partition("|")
            data = read_text(event.data) if event.data.strip() else None
            begun = True
            if kind == "metadata" and isinstance(data, Mapping) and isinstance(data.get("run_id"), str):
                on_run(data["run_id"])
            if kind == "error":
                told.problem = _failure(data)
            if kind in ("error", "end"):
                told.ended = True
                break
            if self._take(told, kind, "|" in event.name, data):
                events.note_first_token()
        if not begun:
            raise cut_stream("any event")
        return told

    def _take(self, told: RunTold, kind: str, inside: bool, data: Any) -> bool:
        """Take one event; whether it has a piece of text."""
        if kind == "updates":
            told.take_update(data)
        elif kind == "values" and not inside:
            told.take_state(data)
        elif kind in _TOKENS:
            return _has_text(data)
        elif kind not in (*_SKIPPED, "values"):
            self._on_unknown("event", kind)
        return False


def _has_text(data: Any) -> bool:
    items = data if isinstance(data, list) else [data]
    return any(isinstance(m, Mapping) and kind_of(m) == AI and text_of(m).strip() for m in items)
