"""What the turn under way has come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time_ns
from typing import Any

from agentest.agents.port import AgentReply, MockBypassed
from agentest.agents.server_output import Positions
from agentest.domain.transcript import (
    Attached,
    Blame,
    Failure,
    Remark,
    ServerOutput,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)
from agentest.mock_servers.port import AskedTurn, TurnTraces
from agentest.support.dates import moment_of
from agentest.support.errors import (
    AgentestError,
    CannotSend,
    HeldUp,
    MockError,
    ModelError,
    ProcessExitError,
    SessionMismatch,
)
from agentest.support.replacing import replace


@dataclass(slots=True)
class TurnProgress:
    """What the current turn has come to, kept where an error cannot lose it."""

    turn_index: int
    user_message: str
    attachments: tuple[Attached, ...] = ()
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
    """How often the agent has answered."""
    named: int = 0
    """How many requests that named the turn were answered."""
    printed: Positions = field(default_factory=dict)
    """Where the output of the agent's servers stood when the turn began."""
    waited: Mapping[str, float] = field(default_factory=dict)
    """How long the conversation had waited for whom before the user spoke, in seconds."""
    messages: int = 0
    """How many messages of the agent have brought calls, as far as that is told."""
    stays_open: bool = False
    """Whether one of them opened what later turns use."""

    def count_retries(self, retries: int) -> None:
        self.retries += retries
        self.requests += retries

    def in_rounds(self, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
        """Calls whose rounds one answer counts from 0, counted from the turn's first message."""
        told = [call.round for call in calls if call.round is not None]
        begin, self.messages = self.messages, self.messages + max(told, default=-1) + 1
        return tuple(
            call if call.round is None else replace(call, round=begin + call.round) for call in calls
        )

    def note_times(self, reply: AgentReply) -> None:
        """Add the time of a reply, and keep when the first text of the turn came."""
        if self.first_token_ms is None and reply.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + reply.first_token_ms
        self.latency_ms += reply.latency_ms

    def note_session(self, reply: AgentReply, redact: Callable[[str], str]) -> None:
        """Keep who speaks, and the last that is told of the session's state."""
        self.author = reply.author
        if reply.state is not None or reply.state_error is not None:
            self.state, self.state_error = reply.state, reply.state_error and redact(reply.state_error)

    def note_remarks(self, reply: AgentReply, author: str) -> None:
        """Keep what was said on the way; text beside tool requests is no reply yet."""
        self.remarks += reply.remarks
        if reply.tool_requests and reply.text and reply.text.strip():
            self.remarks.append(Remark(author, reply.text))

    def asked(self, key: str) -> AskedTurn:
        """The turn as it is asked for among the spans of the conversation with this key."""
        return AskedTurn(
            key=key,
            turn_index=self.turn_index,
            began_ns=self.began_ns,
            asks=self.asks,
            requests=self.named,
            stays_open=self.stays_open,
            wait=bool(self.asks or self.named),  # nobody sends spans of what never reached the agent
        )

    def note_traces(self, told: TurnTraces) -> None:
        """Keep what the spans of the turn tell, where its agent's own protocol says nothing of it."""
        self.calls_hidden = self.calls_hidden or told.missing
        self.usage = self.usage if self.usage.total_tokens else told.usage
        self.model_calls = told.model_calls if self.model_calls is None else self.model_calls

    def _waited_ms(self, who: str, waited: Mapping[str, float]) -> float:
        """How long the turn has waited for somebody, the user's own thinking included."""
        return (waited[who] - self.waited.get(who, 0.0)) * 1000

    def closed(self, text: str, calls: tuple[ToolCall, ...], waited: Mapping[str, float]) -> Turn:
        """The turn with its reply. `waited`: for whom the conversation has waited by now, in seconds."""
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
        """What there is of the turn that was never closed; `waited` as for `closed`."""
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
