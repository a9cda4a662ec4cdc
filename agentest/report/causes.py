"""Root causes in the words that all reports share."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.domain.results import CauseKind, RootCause
from agentest.support.text import count


def cause_badness(cause: RootCause) -> str:
    """How bad a root cause is: its severity, or that nobody knows."""
    return "errored" if cause.kind is CauseKind.ERRORED else cause.severity.label


def cause_facts(cause: RootCause, *, several_agents: bool) -> Iterator[str]:
    """How bad it is, how many conversations show it, and where to look first."""
    yield cause_badness(cause)
    if cause.conversations > 1:
        yield count(cause.conversations, "conversation")
    if several_agents and cause.agents:
        yield ", ".join(cause.agents)
    if cause.example.conversation_id:
        first = "" if cause.conversations == 1 else "first: "
        turn = "" if cause.example.turn_index is None else f", turn {cause.example.turn_index}"
        yield f"{first}{cause.example.conversation_id}{turn}"
