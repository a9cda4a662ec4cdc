"""The one place where an exception becomes the failure of a conversation."""

from __future__ import annotations

from collections.abc import Callable

from agentest.agents.port import MockBypassed
from agentest.domain.transcript import Blame, Failure
from agentest.support.errors import (
    AgentestError,
    CannotSend,
    HeldUp,
    MockError,
    ModelError,
    ProcessExitError,
    SessionMismatch,
)


def failure_of(error: Exception, redact: Callable[[str], str]) -> Failure:
    """Who is to blame for an error that ended a conversation, and what it says without secrets."""
    bypassed = error.tools if isinstance(error, MockBypassed) else ()
    return Failure(_blame(error), redact(_message(error)), bypassed)


def _blame(error: Exception) -> Blame:
    if isinstance(error, ModelError):
        return Blame.MODEL
    if isinstance(error, MockError):
        return Blame.MOCK
    if isinstance(error, CannotSend | HeldUp | SessionMismatch | ProcessExitError):
        return Blame.INTERNAL
    # AgentError, and an AgentestError that a mock raised to say that the agent went too far.
    return Blame.AGENT if isinstance(error, AgentestError) else Blame.INTERNAL


def _message(error: Exception) -> str:
    if isinstance(error, AgentestError):
        return str(error) or type(error).__name__
    return f"internal error: {type(error).__name__}: {error}"
