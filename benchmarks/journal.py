"""What a run of Agentest said of itself, read from its journal line by line: whole results are large."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / ".agentest" / "journal.jsonl", encoding="utf-8") as journal:
        for line in journal:
            yield json.loads(line)


def conversations(folder: Path) -> Iterator[dict[str, Any]]:
    """The conversations of the run in `folder`, in the shape of results.json."""
    return (line["conversation"] for line in _lines(folder) if line["type"] == "conversation")


def summary(folder: Path) -> dict[str, Any]:
    """The summary of the run in `folder`. Raises ValueError when it did not come to its end."""
    last = None
    for last in _lines(folder):  # noqa: B007 - the last line is wanted
        pass
    if last is None or last["type"] != "end":
        raise ValueError(f"{folder}: the journal does not end with the run's summary")
    found: dict[str, Any] = last["run"]["summary"]
    return found


def ids(folder: Path) -> set[str]:
    """The ids of the conversations of the run in `folder`. Raises ValueError when one is there twice."""
    found: set[str] = set()
    for conversation in conversations(folder):
        if conversation["conversationId"] in found:
            raise ValueError(f"{folder}: conversation {conversation['conversationId']} is there twice")
        found.add(conversation["conversationId"])
    return found
