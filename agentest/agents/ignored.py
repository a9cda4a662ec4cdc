"""What of an agent's stream was of no known type: counted, and told at the end of the run."""

from __future__ import annotations

from collections import Counter

from agentest.agents.port import Resources
from agentest.support.text import count, shortened

_MOST_TOLD = 10
_MOST_KINDS = 20
"""Of which the numbers are kept apart: an agent may make up one for every event."""
_SHOWN_CHARS = 60


class Ignored:
    """Counts what was ignored of one agent, over all of its conversations."""

    def __init__(self, agent: str, resources: Resources) -> None:
        self._agent = agent
        self._counts: Counter[tuple[str, str]] = Counter()
        self._on_note = resources.on_note
        resources.closing.callback(self._tell)

    def note(self, noun: str, kind: object) -> None:
        """Count one more. `noun` says what it is, like `event`; `kind` is the type that it had."""
        key = noun, shortened(str(kind), _SHOWN_CHARS)
        self._counts[key if key in self._counts or len(self._counts) < _MOST_KINDS else (noun, "…")] += 1

    def _tell(self) -> None:
        for (noun, kind), times in self._counts.most_common(_MOST_TOLD):
            were = "was" if times == 1 else "were"
            what = count(times, noun)
            self._on_note(f"agent {self._agent!r}: {what} of unknown type {kind!r} {were} ignored")
