"""Runs as stored JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentest.domain.results import RunResult
from agentest.domain.transcript import Conversation
from agentest.store.reader import read_checked, read_results, usable
from agentest.store.run_results import conversations_in_memory, document


def to_json(result: RunResult) -> dict[str, Any]:
    """The document of a run that still has its conversations."""
    written: dict[str, Any] = json.loads(b"".join(document(result, conversations_in_memory)))
    return written


def read_json(path: Path) -> dict[str, Any]:
    """The document of a results.json, or that of the run in a journal."""
    return read_checked(path)[0] if path.suffix == ".json" else to_json(read_results(path))


def conversations_of(run: RunResult) -> dict[tuple[str, str], tuple[Conversation, ...]]:
    """The conversations of a run by scenario and agent, as they are judged again."""
    return {
        (each.name, each.agent): tuple(usable(stored.conversation) for stored in each.conversations)
        for each in run.scenarios
        if each.conversations
    }
