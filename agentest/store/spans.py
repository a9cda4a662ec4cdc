"""The spans that an agent sent, out of the file in which a run keeps them: of one conversation, or many."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentest.support.json_text import Json, encoded

SPANS = "spans.jsonl"
"""The file in a run's folder; `tool_servers.traces.kept` writes its lines."""
MOST_SPANS = 2_000
"""Of one conversation that are read."""
MOST_BYTES = 10_000_000
"""Of their lines together."""
_MOST_LINE = 10_000_000
"""Bytes of a line that we may have written; a longer one is not ours."""
_PIECE = 1_000_000

_Place = tuple[str, str, str]
"""Scenario, agent and id of a conversation."""


def spans_of(
    folder: Path, scenario: str, agent: str, conversation_id: str, most: int = MOST_SPANS
) -> list[Json]:
    """The spans of a conversation in the order in which they came, as JSON; none where the run kept none.

    A file of any size is read a line at a time, also while the run still writes to it. Where not all are
    there, the last entry is no span: `cut` is true (the run kept no more of them), or `leftOut` says how many
    more the file has than `most`, or than fit into MOST_BYTES.

    Raises OSError where the file is there and cannot be read.
    """
    place, id = (scenario, agent, conversation_id), encoded(conversation_id)
    return _shown(place, (line for _, line in _lines(folder / SPANS) if id in line), most)


class SpanIndex:
    """Finds spans of many conversations in a file, which is read through once, when it is first asked."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SPANS
        self._starts: dict[_Place, array[int]] | None = None

    def of(self, scenario: str, agent: str, conversation_id: str) -> list[Json]:
        """What `spans_of` finds, of the file as it was when it was read through. Raises OSError."""
        if self._starts is None:
            self._starts = self._read()
        place = scenario, agent, conversation_id
        starts = self._starts.get(place)
        return _shown(place, self._at(starts), MOST_SPANS) if starts else []

    def _read(self) -> dict[_Place, array[int]]:
        starts: dict[_Place, array[int]] = {}
        for start, line in _lines(self._path):
            if place := _place_of(_json(line)):
                starts.setdefault(place, array("q")).append(start)
        return starts

    def _at(self, starts: Iterable[int]) -> Iterator[bytes]:
        with self._path.open("rb") as file:
            for start in starts:
                file.seek(start)
                yield file.readline(_MOST_LINE)


def _shown(place: _Place, lines: Iterable[bytes], most: int) -> list[Json]:
    """Those spans among lines that are of a conversation, as many as there is room for."""
    spans: list[Json] = []
    ends: Json = {}
    left_out, room = 0, MOST_BYTES
    for line in lines:
        span = _json(line)
        if _place_of(span) != place:
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
    scenario, agent, id = place
    who = {"conversationId": id, "scenario": scenario, "agent": agent}
    return [*spans, {**who, **ends}] if ends else spans


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a file, and where each begins; nothing where there is no file."""
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
            while line and not line.endswith(b"\n"):  # too long to be ours, or not written to its end yet
                line = file.readline(_PIECE)
                start += len(line)


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _place_of(span: Any) -> _Place | None:
    """Whose span a line is; None: it is no span."""
    if not isinstance(span, dict):
        return None
    return str(span.get("scenario")), str(span.get("agent")), str(span.get("conversationId"))
