"""What a run keeps of an earlier one that was ended before it had finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentest.domain.events import ConversationFinished
from agentest.domain.results import ConversationResult, ModelUsage, RunWarning, ScenarioResult


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPart:
    """What is kept of a unit."""

    conversations: Mapping[int, ConversationResult] = field(default_factory=dict)
    """Number → result, of the conversations that had finished."""
    result: ScenarioResult | None = None
    """Where the unit had finished: nothing of it is left to run."""
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)
    """By role: what the earlier run is known to have used for the unit."""

    def is_all(self, conversations: int) -> bool:
        """Whether it is all of a unit with so many conversations."""
        return self.result is not None or len(self.conversations) >= conversations


NOTHING = KeptPart()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """What is kept of a run as a whole."""

    id: str
    answers: Path | None = None
    """The folder of what models answered in conversations that it left unfinished, if there is one."""
    conversations: Iterable[ConversationFinished] = ()
    """All that are kept, as they were stored; to be gone through more than once."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Of its calls that belonged to no conversation."""


def joined(*used: Mapping[str, ModelUsage]) -> dict[str, ModelUsage]:
    """What was used, by role, in all."""
    total: dict[str, ModelUsage] = {}
    for each in used:
        for role, usage in each.items():
            total[role] = total.get(role, ModelUsage()) + usage
    return total
