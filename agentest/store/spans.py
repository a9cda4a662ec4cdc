"""The spans that an agent sent of one conversation, out of the file in which a run keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


def spans_of(
    folder: Path, scenario: str, agent: str, conversation_id: str, most: int = MOST_SPANS
) -> list[Json]:
    """The spans of a conversation in the order in which they came, as JSON; none where the run kept none.

    A file of any size is read a line at a time, also while the run still writes to it. Where not all are
    there, the last entry is no span: `cut` is true (the run kept no more of them), or `leftOut` says how many
    more the file has than `most`, or than fit into MOST_BYTES.

    Raises OSError where the file is there and cannot be read.
    """
    who = {"conversationId": conversation_id, "scenario": scenario, "agent": agent}
    spans: list[Json] = []
    ends: Json = {}
    left_out, room = 0, MOST_BYTES
    for line in _lines_with(folder / SPANS, encoded(conversation_id)):
        span = _read(line)
        if not isinstance(span, dict) or any(span.get(key) != value for key, value in who.items()):
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
    return [*spans, {**who, **ends}] if ends else spans


def _lines_with(path: Path, text: bytes) -> Iterator[bytes]:
    """The whole lines of a file that hold a text; nothing where there is no file."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while line := file.readline(_MOST_LINE):
            if not line.endswith(b"\n"):
                while line and not line.endswith(b"\n"):  # too long to be ours, or not written to its end yet
                    line = file.readline(_PIECE)
            elif text in line:
                yield line


def _read(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
