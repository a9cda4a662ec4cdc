"""Comparing documents of two runs."""

from __future__ import annotations

from typing import Any

TIMES = {"startedAt", "time", "slowestTurns", "slowest", "latency", "sessionId", "changes"}
"""And all whose names end with `Ms`."""


def timeless(value: Any) -> Any:
    """A document without the parts that differ between runs."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in TIMES and not key.endswith("Ms")}
        return {key: timeless(item) for key, item in kept.items()}
    return [timeless(item) for item in value] if isinstance(value, list) else value
