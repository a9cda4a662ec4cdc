"""Parse server-sent events as the WHATWG specifies: any line ending, comments, multi-line data."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncIterable, AsyncIterator
from typing import NamedTuple

AT_ONCE = 100  # number of events after which other tasks run, because a piece may contain thousands


class Event(NamedTuple):
    """One event of a stream."""

    data: str
    name: str = "message"


class EventParser:
    """Parses a byte stream, split anywhere, into events."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._line: list[str] = []
        self._data: list[str] = []
        self._name = ""
        self._after_cr = False
        self._started = False

    def feed(self, piece: bytes) -> list[Event]:
        """Return the events that this piece completes, in order. Events without `data` are ignored."""
        events: list[Event] = []
        for line in self._lines(self._decoder.decode(piece)):
            if line == "":
                if self._data:
                    events.append(Event("\n".join(self._data), self._name or "message"))
                self._data, self._name = [], ""
                continue
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            elif field == "event":
                self._name = value.removeprefix(" ")
        return events

    def rest(self) -> list[Event]:
        """Return the last event, completed by the stream's end instead of an empty line."""
        return self.feed(b"\n\n") if self._line or self._data else []

    def _lines(self, text: str) -> list[str]:
        if not text:
            return []
        if not self._started:
            self._started = True
            text = text.removeprefix("\ufeff")
        # A CR ends the line immediately; a following LF, perhaps in the next piece, belongs to it.
        split_pair = self._after_cr and text.startswith("\n")
        self._after_cr = text.endswith("\r")
        text = text[1:] if split_pair else text
        first, *others = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if first:
            self._line.append(first)  # kept in pieces, because a long line would be copied for each small one
        if not others:
            return []
        lines = ["".join(self._line), *others[:-1]]
        self._line = [others[-1]] if others[-1] else []
        return lines


async def events(pieces: AsyncIterable[bytes]) -> AsyncIterator[Event]:
    """Yield every event of a stream, in order."""
    parser = EventParser()
    async for piece in pieces:
        for number, event in enumerate(parser.feed(piece)):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            yield event
    for event in parser.rest():
        yield event
