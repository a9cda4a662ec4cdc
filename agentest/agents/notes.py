"""What users should know of an agent at the end of a run, told once of each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable


class Notes:
    """The notes of one agent, over all of its conversations."""

    def __init__(self, agent: str, on_note: Callable[[str], None]) -> None:
        self._agent = agent
        self._on_note = on_note
        self._times: Counter[str] = Counter()

    def add(self, kind: str, text: str) -> None:
        """Tell what there is to say, unless something of this kind was told before."""
        self._times[kind] += 1
        if self._times[kind] == 1:
            self._on_note(f"agent {self._agent!r}: {text}")

    def times(self, kind: str) -> int:
        """How often there was something to say of a kind."""
        return self._times[kind]
