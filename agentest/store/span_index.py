"""The spans of many conversations: the file of a run is read through once, and then by places."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentest.support.json_text import Json

MOST_SPANS = 2_000
"""Of one conversation that are read."""
_MOST_LINE = 10_000_000
"""Bytes of a line that we may have written; a longer one is not ours."""

_Place = tuple[str, str, str]


class SpanIndex:
    """Finds spans of conversations in a file, which is read when it is first asked, and need not be there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._starts: dict[_Place, array[int]] | None = None

    def of(self, scenario: str, agent: str, conversation: str) -> list[Json]:
        """The spans of a conversation, in their order in the file. Raises OSError.

        Where not all are there, the last entry is no span: `cut` is true (the run kept no more of them) or
        `leftOut` says how many more the file has.
        """
        if self._starts is None:
            self._starts = self._read()
        starts = self._starts.get((scenario, agent, conversation), array("q"))
        found = list(self._at(starts[:MOST_SPANS])) if starts else []
        left_out = len(starts) - MOST_SPANS
        return [*found, {"leftOut": left_out}] if left_out > 0 else found

    def _read(self) -> dict[_Place, array[int]]:
        starts: dict[_Place, array[int]] = {}
        for start, span in self._lines():
            place = (str(span.get("scenario")), str(span.get("agent")), str(span.get("conversationId")))
            starts.setdefault(place, array("q")).append(start)
        return starts

    def _lines(self) -> Iterator[tuple[int, Json]]:
        """Where each line begins, and what it says; what is no span of ours is left out."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            start = 0
            while line := file.readline(_MOST_LINE):
                span = _json(line) if line.endswith(b"\n") else None
                if isinstance(span, dict):
                    yield start, span
                start += len(line)

    def _at(self, starts: array[int]) -> Iterator[Json]:
        with self._path.open("rb") as file:
            for start in starts:
                file.seek(start)
                yield json.loads(file.readline(_MOST_LINE))


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
