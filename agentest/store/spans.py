"""Read the spans that agents sent from the file of a run, for one conversation or for many."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentest.support.json_text import Json, encoded, json_or

SPANS = "spans.jsonl"  # the file in a run's folder, which the receiver of spans writes
MOST_SPANS = 2_000  # the maximum number of spans that are read for a conversation
MOST_BYTES = 10_000_000  # the maximum total size of their lines
_MOST_LINE = 10_000_000  # the maximum bytes of a line that Agentest writes; longer lines are ignored
_PIECE = 1_000_000

_Place = tuple[str, str, str]


def spans_of(
    folder: Path, scenario: str, agent: str, conversation_id: str, most: int = MOST_SPANS
) -> list[Json]:
    """Return the spans of a conversation in order of arrival, as JSON; empty if the run stored none.

    The file is read line by line, so it can have any size and may still grow. If spans are missing, the last
    entry is not a span: `cut` is true if the run stored no more, or `leftOut` counts those beyond `most` or
    MOST_BYTES.

    Raises OSError if the file exists but is unreadable.
    """
    key, id = (scenario, agent, conversation_id), encoded(conversation_id)
    return _within_limits(key, (line for _, line in _lines(folder / SPANS) if id in line), most)


class SpanIndex:
    """Finds the spans of many conversations in a file, which is read once, on the first request."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SPANS
        self._starts: dict[_Place, array[int]] | None = None

    def of(self, scenario: str, agent: str, conversation_id: str) -> list[Json]:
        """Return the same as `spans_of`, from the file at the time of the first request. Raises OSError."""
        if self._starts is None:
            self._starts = {}
            for start, line in _lines(self._path):
                if key := _conversation_key(json_or(line)):
                    self._starts.setdefault(key, array("q")).append(start)
        key = scenario, agent, conversation_id
        starts = self._starts.get(key)
        return _within_limits(key, self._at(starts), MOST_SPANS) if starts else []

    def _at(self, starts: Iterable[int]) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            for start in starts:
                file.seek(start)
                yield file.readline(_MOST_LINE)


def _within_limits(key: _Place, lines: Iterable[bytes], most: int) -> list[Json]:
    spans: list[Json] = []
    ends: Json = {}
    left_out, room = 0, MOST_BYTES
    for line in lines:
        span = json_or(line)
        if _conversation_key(span) != key:
            continue
        if span.get("cut"):
            ends["cut"] = True
        elif left_out or len(spans) == most or len(line) > room:
            left_out += 1
        else:
            spans.append(span)
            room -= len(line)
    if left_out:
        ends["leftOut"] = left_out
    scenario, agent, id = key
    who = {"conversationId": id, "scenario": scenario, "agent": agent}
    return [*spans, {**who, **ends}] if ends else spans


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    start = 0
    with file:
        while line := file.readline(_MOST_LINE):
            if line.endswith(b"\n"):
                yield start, line
            start += len(line)
            while line and not line.endswith(b"\n"):  # too long to be ours, or still incomplete
                line = file.readline(_PIECE)
                start += len(line)


def _conversation_key(span: Any) -> _Place | None:
    if not isinstance(span, dict):
        return None
    return str(span.get("scenario")), str(span.get("agent")), str(span.get("conversationId"))
