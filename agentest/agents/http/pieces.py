"""What paths are asked for: a whole answer, or one event of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentest.agents.reading import read_any, read_text
from agentest.support.http.sse import Event
from agentest.support.json_path import JsonPath

DONE = "[DONE]"


@dataclass(frozen=True, slots=True)
class Piece:
    """A JSON value or a text, and what `@` stands for in it."""

    value: Any
    whole: Any
    """Of an event the text as it came, of an answer its value."""
    name: str | None = None
    """The event's; None: it is none with a name."""

    def find(self, path: JsonPath) -> Any:
        """What stands at a path; None for nothing.

        An event that is no object has the keys `event` and `data`, beside being itself.
        """
        if path.is_all:
            return self.whole
        found = path.find(self.value)
        if found is None and self.name is not None and not isinstance(self.value, Mapping):
            return path.find({"event": self.name, "data": self.value})
        return found


def of_answer(value: Any, text: str | None = None) -> Piece:
    """A whole answer; `text` is what `@` stands for in it, if not its value."""
    return Piece(value, value if text is None else text)


def of_event(event: Event, *, is_text: bool = False) -> Piece:
    """A server-sent event: of an object, `event` is its name, unless it has a key of this name.

    `is_text`: whether events are texts, which may look like half an object. Else that raises AgentError.
    """
    value = read_any(event.data) if is_text else _value(event.data)
    if isinstance(value, Mapping):
        value = {"event": event.name, **value}
    return Piece(value, event.data, event.name)


def of_line(line: str, *, is_text: bool = False) -> Piece:
    """A line of JSON, or of text where lines are texts. Else raises AgentError."""
    return Piece(read_any(line) if is_text else read_text(line, "a line of the agent's stream"), line)


def _value(data: str) -> Any:
    """The JSON value of an event's data, or its text. Raises AgentError for half an object."""
    return read_text(data) if data.lstrip().startswith("{") else read_any(data)
