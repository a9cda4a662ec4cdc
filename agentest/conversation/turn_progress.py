"""The turn in progress, and the sources of calls that arrive outside the agent's protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import field
from math import inf
from operator import attrgetter
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from agentest.agents.port import AccessDenied, Agent, AgentReply, MockBypassed, TurnContext
from agentest.domain.changes import InjectedFault
from agentest.domain.messages import ToolRequest
from agentest.domain.transcript import (
    AttachedFile,
    Blame,
    Failure,
    ModelBriefing,
    ModelRequest,
    Remark,
    ServerOutput,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)
from agentest.support.dates import moment_of
from agentest.support.errors import (
    AgentestError,
    CannotSend,
    MockError,
    ModelError,
    OwnFault,
    ProcessExitError,
    ProgramDelayed,
    SessionMismatch,
)
from agentest.support.json_text import well_formed, well_formed_value
from agentest.support.lazy_dataclasses import dataclass, replace

if TYPE_CHECKING:
    from agentest.agents.server_process import Positions


class CallSource:
    """A source of tool calls that arrive outside the agent's protocol.

    A conversation has the sources of its agent, and most agents have none. Each source records calls with the
    conversation's mocks. As an agent may swallow the error that ended its conversation at a source, the turn
    loop asks for it (`check`).
    """

    remedy = ""
    """How mocks can answer calls that the agent ran itself; "" if this source leads no calls to mocks."""
    own_tools: Container[str] = ()

    def begin_turn(self, turn_index: int) -> None:
        """Assign calls to this turn from now on."""

    @asynccontextmanager
    async def request(self, _: TurnProgress, ctx: TurnContext) -> AsyncIterator[TurnContext]:
        """Accompany one request to the agent. Yields the context with what the agent needs for its calls."""
        yield ctx

    async def check(self, cause_of: Exception | None = None) -> None:
        """Raise the error that ended the conversation at this source, if there is one.

        Args:
            cause_of: the agent's error, which may result from a call that this source did not answer.
        """

    async def complete(self, turn: TurnProgress) -> None:
        """Wait for the calls of an answered turn that are still missing."""

    async def complete_late(self) -> None:
        """Wait for the calls of all turns that arrive only when the conversation ends."""

    def came_late(self, _turn_index: int, _hidden: str) -> bool:
        """Return True if calls that were hidden when the turn closed, for this reason, are known by now."""
        return False

    def doubt_of(self, _: int) -> str | None:
        """Return why calls of a turn may be missing because they were refused; None if none were."""
        return None

    def close(self) -> None:
        """Accept no more calls, because the conversation has ended."""


class WaitingTimes(NamedTuple):
    """Seconds that a conversation has waited, by participant."""

    agent: float = 0.0
    user: float = 0.0
    tools: float = 0.0


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
    approvals: int = 0
    began_ns: int = field(default_factory=time_ns)
    reply_count: int = 0
    named: int = 0  # number of answered requests that carried the turn's trace context
    printed: Positions = field(default_factory=dict)
    """Positions in the output of the agent's servers when the turn began."""
    waited: WaitingTimes = WaitingTimes()  # the waits of the conversation before the user's message
    messages: int = 0  # number of agent messages with calls, as far as reported
    stays_open: bool = False  # True if a request opened a connection that later turns use
    model_requests: tuple[ModelRequest, ...] = ()
    briefing: ModelBriefing | None = None
    faults: tuple[InjectedFault, ...] = ()
    model_cost: float | None = None

    def count_retries(self, retries: int) -> None:
        self.retries += retries
        self.requests += retries

    def in_rounds(self, calls: Sequence[ToolCall]) -> Sequence[ToolCall]:
        """Make the rounds of calls, which each reply counts from 0, count from the start of the turn."""
        rounds = [call.round for call in calls if call.round is not None]
        if not rounds:
            return calls
        begin, self.messages = self.messages, self.messages + max(rounds) + 1
        return [call if call.round is None else replace(call, round=begin + call.round) for call in calls]

    def note(self, reply: AgentReply, agent: str, redact: Callable[[str], str]) -> None:
        """Store a reply except its text and calls. `agent`: the author of text before tool calls."""
        self.remarks += reply.remarks
        if reply.tool_requests and reply.text and reply.text.strip():
            self.remarks.append(Remark(agent, reply.text))
        self.author = reply.author
        if reply.state is not None or reply.state_error is not None:
            self.state, self.state_error = reply.state, reply.state_error and redact(reply.state_error)
        if self.first_token_ms is None and reply.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + reply.first_token_ms
        self.latency_ms += reply.latency_ms
        self.tells_calls = self.tells_calls or reply.tells_calls
        self.calls_hidden = self.calls_hidden or reply.calls_hidden
        self.approvals += reply.approvals
        self.usage += reply.usage
        if reply.model_calls:  # 0 means that the agent does not count its model calls
            self.model_calls = (self.model_calls or 0) + reply.model_calls
        if reply.retries:
            self.count_retries(reply.retries)

    def closed(
        self, text: str, calls: tuple[ToolCall, ...], waited: WaitingTimes, call_refused: str | None = None
    ) -> Turn:
        """Return the turn with its reply. `waited`: the waits of the conversation so far."""
        return Turn(
            agent_message=text,
            tool_calls=calls,
            remarks=tuple(self.remarks),
            state_after=self.state,
            call_refused=call_refused,
            **dict(zip(_ONLY_WITH_REPLY, _only_with_reply(self), strict=True)),
            **self._with_times(waited),
        )

    def unfinished(
        self, calls: tuple[ToolCall, ...], output: tuple[ServerOutput, ...], waited: WaitingTimes
    ) -> UnfinishedTurn:
        """Return the incomplete turn. `waited`: as in `closed`."""
        agent_ms = (waited.agent - self.waited.agent) * 1000
        return UnfinishedTurn(
            tool_calls=calls, server_output=output, agent_ms=agent_ms, **self._with_times(waited)
        )

    def _with_times(self, waited: WaitingTimes) -> dict[str, Any]:
        return {
            **dict(zip(_ALWAYS, _always(self), strict=True)),
            "started_at": moment_of(self.began_ns),
            "user_ms": (waited.user - self.waited.user) * 1000,
            "tools_ms": (waited.tools - self.waited.tools) * 1000,
            "model_ms": busy_ms(self.model_requests) if self.model_requests else None,
        }


_ALWAYS = ("turn_index", "user_message", "retries", "requests", "model_requests", "faults", "model_cost")
_ONLY_WITH_REPLY = (
    *("attachments", "latency_ms", "usage", "model_calls", "author", "state_error", "first_token_ms"),
    *("tells_calls", "calls_hidden", "approvals", "briefing"),
)
_always, _only_with_reply = attrgetter(*_ALWAYS), attrgetter(*_ONLY_WITH_REPLY)


def well_formed_reply(reply: AgentReply) -> AgentReply:
    """Replace lone surrogates in a reply's texts, because they cannot be encoded as UTF-8.

    The `observed` calls are cleaned where they are recorded.
    """
    text = None if reply.text is None else well_formed(reply.text)
    has_other_texts = (
        reply.tool_requests or reply.remarks or reply.author or reply.state or reply.state_before
    )
    if text is reply.text and not has_other_texts:
        return reply
    return replace(
        reply,
        text=text,
        tool_requests=tuple(
            ToolRequest(well_formed(r.id), well_formed(r.name), well_formed(r.arguments))
            for r in reply.tool_requests
        ),
        remarks=tuple(
            replace(r, author=well_formed(r.author), text=well_formed(r.text)) for r in reply.remarks
        ),
        author=reply.author and well_formed(reply.author),
        state=well_formed_value(reply.state),
        state_before=well_formed_value(reply.state_before),
    )


def open_conversation(agent: Agent) -> AbstractAsyncContextManager[Agent]:
    """Open a conversation with an agent: the agent itself, unless it has per-conversation state."""
    conversation = getattr(agent, "conversation", None)
    return nullcontext(agent) if conversation is None else conversation()


def failure_of(error: Exception, redact: Callable[[str], str]) -> Failure:
    """Return the blame and the redacted message of an error that ended a conversation."""
    if isinstance(error, ModelError):
        blame = Blame.MODEL
    elif isinstance(error, MockError):
        blame = Blame.MOCK
    elif isinstance(error, CannotSend | OwnFault | ProgramDelayed | SessionMismatch | ProcessExitError):
        blame = Blame.INTERNAL
    else:  # an AgentError, or an AgentestError by which a mock reports a violation of the agent
        blame = Blame.AGENT if isinstance(error, AgentestError) else Blame.INTERNAL
    ours = error if isinstance(error, AgentestError) else OwnFault.of(error)
    message = str(ours) or type(error).__name__
    bypassed = error.tools if isinstance(error, MockBypassed) else ()
    return Failure(blame, redact(message), bypassed, denied=isinstance(error, AccessDenied))


def busy_ms(requests: Sequence[ModelRequest]) -> float:
    """Return the time during which at least one request was under way."""
    total, until = 0.0, -inf
    for each in sorted(requests, key=attrgetter("begin_ms")):
        end = each.begin_ms + each.latency_ms
        total += max(0.0, end - max(each.begin_ms, until))
        until = max(until, end)
    return total
