"""How a run is run."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.results import (
    Severity,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is run."""

    concurrency: int = 20
    debounce_s: float = 0.0
    fail_on: Severity = Severity.CRITICAL
    samples: int = 1
    batch: bool = False
    fail_fast: bool = False
    keep_conversations: bool = True
    """Whether results hold their conversations after they have been told of."""
