"""Whether the calls of one turn or conversation can be seen."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.sight import cannot_be_seen
from agentest.transcript import Conversation, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class SightOfCalls:
    """What is known of an agent's calls as such.

    Attributes:
        agent: its name.
        blind: why its calls cannot be seen, and what to do about it; None: they can.
        told_counts: whether answers that tell of calls make an agent seen whose calls otherwise cannot be.
    """

    agent: str
    blind: str | None
    told_counts: bool

    def hidden(self, told: Turn | Conversation) -> str | None:
        """Why calls cannot be seen, by what the answers themselves show of it, and by the agent's sight."""
        if told.call_refused:
            return told.call_refused
        if told.calls_hidden and self.blind is None:
            return f"{cannot_be_seen(self.agent)}: {told.calls_hidden}"
        return None if told.tells_calls and self.told_counts else self.blind
