"""The turn in progress: it collects replies and calls, and becomes a closed or an unfinished turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

from agentest.agents.port import AgentReply, MockBypassed
from agentest.agents.server_output import Positions
from agentest.domain.transcript import (
    AttachedFile,
    Blame,
    Failure,
    Remark,
    ServerOutput,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)
from agentest.mock_servers.port import SpanRequest, TurnTraces
from agentest.support.dates import moment_of
from agentest.support.errors import (
    AgentestError,
    CannotSend,
    MockError,
    ModelError,
    ProcessExitError,
    ProgramDelayed,
    SessionMismatch,
)
from agentest.support.replacing import replace


@dataclass(slots=True)
class TurnProgress:
    """The state of the current turn, stored where an error cannot lose it."""

    turn_index: int
    user_message: str
    attachments: tuple[AttachedFile, ...] = ()
    latency_ms: float = 0.0
    usage: Usage = field(default_factory=Usage)
    model_calls: int | None = None
    retries: int = 0
    requests: int = 0
    remarks: list[Remark] = field(default_factory=list)
    author: str | None = None
    state: Mapping[str, Any] | None = None
    state_error: str | None = None
    first_token_ms: float | None = None
    tells_calls: bool = False
    calls_hidden: str | None = None
    began_ns: int = field(default_factory=time_ns)
    asks: int = 0
    """Number of replies by the agent."""
    named: int = 0
    """Number of answered requests that carried the turn's trace context."""
    printed: Positions = field(default_factory=dict)
    """Positions in the output of the agent's servers when the turn began."""
    waited: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the conversation had waited, by participant, before the user's message."""
    messages: int = 0
    """Number of agent messages with calls, as far as reported."""
    stays_open: bool = False
    """True if a request opened a connection that later turns use."""

    def count_retries(self, retries: int) -> None:
        self.retries += retries
        self.requests += retries

    def in_rounds(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Make the rounds of calls, which each reply counts from 0, count from the start of the turn."""
        rounds = [call.round for call in calls if call.round is not None]
        begin, self.messages = self.messages, self.messages + max(rounds, default=-1) + 1
        return tuple(
            call if call.round is None else replace(call, round=begin + call.round) for call in calls
        )

    def note_times(self, reply: AgentReply) -> None:
        """Add the time of a reply, and note when the turn's first text arrived."""
        if self.first_token_ms is None and reply.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + reply.first_token_ms
        self.latency_ms += reply.latency_ms

    def note_session(self, reply: AgentReply, redact: Callable[[str], str]) -> None:
        """Store the author and the last reported state of the session."""
        self.author = reply.author
        if reply.state is not None or reply.state_error is not None:
            self.state, self.state_error = reply.state, reply.state_error and redact(reply.state_error)

    def note_remarks(self, reply: AgentReply, author: str) -> None:
        """Store text that precedes tool calls, which is not yet a reply."""
        self.remarks += reply.remarks
        if reply.tool_requests and reply.text and reply.text.strip():
            self.remarks.append(Remark(author, reply.text))

    def asked(self, key: str) -> SpanRequest:
        """Describe the turn for a search in the spans of the conversation with this key."""
        return SpanRequest(
            key=key,
            turn_index=self.turn_index,
            began_ns=self.began_ns,
            asks=self.asks,
            requests=self.named,
            stays_open=self.stays_open,
            wait=bool(self.asks or self.named),  # an agent that was never reached sends no spans
        )

    def note_traces(self, traces: TurnTraces) -> None:
        """Store what the spans report, unless the agent's own protocol reports it."""
        self.calls_hidden = self.calls_hidden or traces.missing
        self.usage = self.usage if self.usage.total_tokens else traces.usage
        self.model_calls = traces.model_calls if self.model_calls is None else self.model_calls

    def _waited_ms(self, who: str, waited: Mapping[str, float]) -> float:
        """Return how long the turn has waited for a participant, including the user before its message."""
        return (waited[who] - self.waited.get(who, 0.0)) * 1000

    def closed(self, text: str, calls: tuple[ToolCall, ...], waited: Mapping[str, float]) -> Turn:
        """Return the turn with its reply. `waited`: seconds of waiting so far, by participant."""
        return Turn(
            self.turn_index,
            self.user_message,
            text,
            calls,
            self.latency_ms,
            self.usage,
            self.retries,
            self.requests,
            tuple(self.remarks),
            self.author,
            self.state,
            self.state_error,
            self.attachments,
            self.model_calls,
            self.first_token_ms,
            self.tells_calls,
            self.calls_hidden,
            started_at=moment_of(self.began_ns),
            user_ms=self._waited_ms("user", waited),
            tools_ms=self._waited_ms("tools", waited),
        )

    def unfinished(
        self, calls: tuple[ToolCall, ...], output: tuple[ServerOutput, ...], waited: Mapping[str, float]
    ) -> UnfinishedTurn:
        """Return the incomplete turn. `waited`: as in `closed`."""
        return UnfinishedTurn(
            self.turn_index,
            self.user_message,
            calls,
            self.retries,
            self.requests,
            output,
            started_at=moment_of(self.began_ns),
            user_ms=self._waited_ms("user", waited),
            tools_ms=self._waited_ms("tools", waited),
            agent_ms=self._waited_ms("agent", waited),
        )


def failure_of(error: Exception, redact: Callable[[str], str]) -> Failure:
    """Return the blame and the redacted message of an error that ended a conversation."""
    bypassed = error.tools if isinstance(error, MockBypassed) else ()
    return Failure(_blame(error), redact(_message(error)), bypassed)


def _blame(error: Exception) -> Blame:
    if isinstance(error, ModelError):
        return Blame.MODEL
    if isinstance(error, MockError):
        return Blame.MOCK
    if isinstance(error, CannotSend | ProgramDelayed | SessionMismatch | ProcessExitError):
        return Blame.INTERNAL
    # AgentError, or an AgentestError by which a mock reports a violation of the agent.
    return Blame.AGENT if isinstance(error, AgentestError) else Blame.INTERNAL


def _message(error: Exception) -> str:
    if isinstance(error, AgentestError):
        return str(error) or type(error).__name__
    return f"internal error: {type(error).__name__}: {error}"
