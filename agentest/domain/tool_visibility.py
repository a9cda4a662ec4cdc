"""Tool visibility: how calls of an agent's tools become visible, and the messages if they do not."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ToolVisibility(StrEnum):
    """How the tool calls of an agent become visible."""

    RETURNED = "returned"  # the agent returns its calls to the caller, and mocks answer them
    REPORTED = "reported"  # the agent runs its tools itself, and its protocol reports the calls afterwards
    PARTIAL = "partial"
    """Calls to mock servers and returned calls are visible. The agent may make others."""
    UNSEEN = "unseen"  # the agent runs its tools itself, and no source reports the calls

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    ToolVisibility.RETURNED: "not seen yet",
    ToolVisibility.REPORTED: "reported by the agent",
    ToolVisibility.PARTIAL: "partly seen",
    ToolVisibility.UNSEEN: "unseen",
}


class SeenBy(StrEnum):
    """The source that reported a tool call."""

    CALLER = "caller"  # the agent returned the call to us
    AGENT = "agent"
    MOCK_SERVER = "mock-server"
    MODEL = "model"  # the agent's model asked for the call, through the model gateway
    SPANS = "spans"


class Approval(StrEnum):
    """The user's decision about a call that needs approval."""

    GRANTED = "granted"
    DENIED = "denied"
    PENDING = "pending"  # the user has not answered yet, so the call has not run


class ToolOutcome(StrEnum):
    """How a tool call went (`ToolCall.outcome`)."""

    ANSWERED = "answered"
    FAILED = "failed"  # the tool raised, or its answer is an error
    REFUSED = "refused"  # its arguments were refused, so that no tool ran
    UNMOCKED = "unmocked"  # it had no mock, which ended the conversation
    UNANSWERED = "unanswered"  # we had no answer, so that it was answered with null
    UNREPORTED = "unreported"  # the agent ran the tool and does not report the result
    CANCELLED = "cancelled"  # it ended before an answer came
    WAITING = "waiting"  # the user has not approved it yet
    DENIED = "denied"


DENIED = "the call was denied"  # the `error` of a call that the user has denied
Approve = bool | Mapping[str, bool]
"""What the user of a scenario answers when the agent asks for approval: to all requests, or by tool."""


def cannot_be_seen(agent: str) -> str:
    return f"calls of agent {agent!r} cannot be seen"
