"""Sight of an agent's tool calls: who tells us of them, and what is said where nobody does."""

from __future__ import annotations

from enum import StrEnum


class Sight(StrEnum):
    """How the tool calls of an agent come to be known."""

    RETURNED = "returned"
    """The agent hands its calls to the caller, and mocks answer them."""
    REPORTED = "reported"
    """The agent makes its calls itself; its protocol tells of them afterwards."""
    PARTIAL = "partial"
    """Some calls are seen: those at a mock server, and those handed over. The agent may make others."""
    UNSEEN = "unseen"
    """The agent makes its calls itself, and nobody tells of them."""

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Sight.RETURNED: "not seen yet",
    Sight.REPORTED: "reported by the agent",
    Sight.PARTIAL: "partly seen",
    Sight.UNSEEN: "unseen",
}


class SeenBy(StrEnum):
    """Who told of one tool call."""

    CALLER = "caller"
    """The agent handed the call to us."""
    AGENT = "agent"
    MOCK_SERVER = "mock-server"
    SPANS = "spans"


class Approval(StrEnum):
    """What became of a call for which the agent asks its user."""

    GRANTED = "granted"
    DENIED = "denied"
    PENDING = "pending"
    """Nobody has answered yet: the call has not run."""


def cannot_be_seen(agent: str) -> str:
    return f"calls of agent {agent!r} cannot be seen"


STATE_TOLD_BY = (
    "a google-adk agent does (type: adk, behind its server; adk_module, in this process), and a handler can "
    "by ctx.record_state (type: custom)"
)
REMARKS_TOLD_BY = "a google-adk agent does (type: adk, behind its server; adk_module, in this process)"


def state_unseen(agent: str) -> str:
    """What to say where the state of an agent's session is expected, and nobody tells of it."""
    return (
        f"the session state of agent {agent!r} cannot be seen: it does not tell of it; {STATE_TOLD_BY}. "
        "Otherwise leave out what checks the state"
    )


def remarks_unseen(agent: str) -> str:
    """What to say where a remark is expected that was not seen, of an agent that does not tell them all."""
    return (
        f"what is said on the way to the reply of agent {agent!r} cannot be seen: it does not tell who says "
        f"what; {REMARKS_TOLD_BY}. Otherwise leave out what checks remarks"
    )
