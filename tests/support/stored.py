"""Runs as stored JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentest.domain.results import RunResult
from agentest.store.reader import KILLED, read_checked
from agentest.store.run_results import conversations_in_memory, document


def to_json(result: RunResult) -> dict[str, Any]:
    """The document of a run that still has its conversations."""
    written: dict[str, Any] = json.loads(b"".join(document(result, conversations_in_memory)))
    return written


def read_json(path: Path) -> dict[str, Any]:
    """The document of a results.json or a journal; that of a killed run is made from its finished part."""
    document, run = read_checked(path)
    return to_json(run) if run.stopped == KILLED else document
