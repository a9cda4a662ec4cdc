"""The values and protocols that servers and conversations exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from agentest.agents.call_source_addresses import Addresses
from agentest.domain.changes import Fault, InjectedFault
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ModelBriefing, ModelRequest, ToolCall, Usage
from agentest.support.errors import AgentestError
from agentest.support.json_text import well_formed
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.runner.call_sources import WaitingBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identifiers of a conversation for servers."""

    key: str  # unique for every conversation of every run: 24 hex digits, with which its trace ids begin
    session_id: str | None  # the id of its session, if no other conversation has the same one
    conversation_id: str
    scenario: str
    agent: str

    def __str__(self) -> str:
        return f"conversation {self.conversation_id} of agent {self.agent!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedCall:
    """A tool call that a mock server received."""

    tool: str
    arguments: Any  # the arguments object, or the value that was sent in its place
    call_id: str | None = None
    problem: str | None = None
    """The reason why the arguments are invalid, if the server knows one; then no mock is called."""
    check: Callable[[Any], str | None] | None = None
    """Returns the reason why a mock's answer is invalid, or None; None if the server cannot know."""
    caller_runs: bool = False
    """True if the caller itself runs the real tool, if there is no mock and the tool may run."""
    would_run: bool = False
    """True if the server can call the real tool, which happens if there is no mock and the tool may run."""
    made: ToolCall | None = None
    """The call with its result, if the model's provider made it, so that no mock is called."""
    again: bool = False  # True if `made` was reported before, without its result


class CallOutcome(StrEnum):
    """The outcomes of a call."""

    ANSWERED = "answered"  # answered by a mock, or by the real tool if there is no mock and it may run
    FAILED = "failed"  # the mock raised an exception, which means that the tool fails
    INVALID = "invalid"  # the arguments are invalid
    UNMOCKED = "unmocked"  # nothing answers the call, and that ends the conversation
    REAL = "real"  # there is no mock, and the real tool may run: `number` identifies the call for the report
    REFUSED = "refused"  # the call belongs to no active conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswer:
    """The answer to a call, independent of protocols."""

    how: CallOutcome
    result: Any = None  # the mock's answer, a JSON value
    message: str = ""  # the problem, for the caller; empty only for ANSWERED
    number: int = -1
    real: Any = None  # the real tool's answer as its server sent it
    status: int | None = None
    """The HTTP status that the mock set; `result` is then the body, whatever the outcome."""
    headers: tuple[tuple[str, str], ...] = ()
    approve: bool | None = None
    """What the scenario's user answers if the real tool asks; None: the scenario has no answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealAnswer:
    """The answer of a real tool."""

    result: Any  # the recorded form, a JSON value
    raw: Any = None  # the form that its server sent, to be passed on
    failed: bool = False
    status: int | None = None  # the HTTP status, if the call was a request
    approval: Approval | None = None  # what the user answered, if the tool has asked


@dataclass(slots=True)
class Elicitation:
    """The user's answer if a real tool asks a question during a call."""

    approve: bool | None
    approval: Approval | None = None  # the answer, once the tool has asked

    def answer(self) -> bool | None:
        """Return the answer and note that the tool has asked; None if the scenario has no answer."""
        if self.approve is not None:
            self.approval = Approval.GRANTED if self.approve else Approval.DENIED
        return self.approve


ELICITATION: ContextVar[Elicitation | None] = ContextVar("agentest_elicitation", default=None)
"""The answer for the call of a real tool that runs in this context."""

CallReal = Callable[[], Awaitable[RealAnswer]]
"""Calls the real tool. Raises AgentestError if it is unreachable."""


class ActiveConversation(Protocol):
    """An active conversation that answers calls."""

    async def answer(self, call: ServedCall) -> ServedAnswer:
        """Record the call and answer it. Raises nothing but cancellation."""

    async def answered(self, number: int, answer: RealAnswer) -> None:
        """Record the real tool's answer to a call with the outcome `CallOutcome.REAL`."""

    async def refused(self, why: str, *, ours: bool = False) -> None:
        """Record that a call was refused that may belong to this conversation; `ours`: because we failed.

        A missing call then proves nothing about the conversation.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRequest:
    """A turn whose spans are requested. It can be sent to another process."""

    key: str  # the key of the conversation
    turn_index: int
    began_ns: int  # the time of the first request to the agent, in nanoseconds since 1970
    asks: int  # the number of requests that the agent answered
    requests: int  # the number of answered requests that named the turn; 0 if an existing connection was used
    stays_open: bool = False  # True if one of them opened a connection that later turns use
    wait: bool = True  # True to wait for missing spans


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCall:
    """A tool call that spans report."""

    spans: frozenset[str]  # the ids of its spans, which identify repeated reports
    call: ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTraces:
    """The facts about a turn from its spans. It can be sent to another process."""

    calls: tuple[SpanCall, ...] = ()
    usage: Usage = Usage()
    model_calls: int | None = None
    missing: str | None = None  # the reason why there may be more; None if the turn is complete
    model_requests: tuple[ModelRequest, ...] = ()
    """The requests to the agent's model, as the model gateway saw them."""
    briefing: ModelBriefing | None = None  # what the agent told its model, if that is new
    faults: tuple[InjectedFault, ...] = ()
    secrets: tuple[str, ...] = ()  # keys of the agents, which have to be redacted
    models: Mapping[str, Usage] = field(default_factory=dict)  # model → its tokens; empty if they are unknown


class SpanSource(Protocol):
    """Provides conversations with the spans of their turns."""

    async def spans_of(self, request: SpanRequest) -> TurnTraces:
        """Return the spans of a turn once they are complete or the wait is over. Never raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFaults:
    """The faults that the requests of a conversation to its model meet."""

    faults: tuple[Fault, ...]
    hang_s: float
    """The seconds after which a model that times out answers with an error, if its client still waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """The facts of a conversation that the model gateway needs. It can be sent without `recordings`."""

    mocked: frozenset[str]  # names of tools with a mock
    opening: str  # what the conversation begins with, for as far as that is known
    timeout_s: float  # the time that the agent has for a reply, and may go on for when it is given up
    recorded: frozenset[str] = frozenset()
    """Names of tools with recorded answers, which may be real for other arguments."""
    named: frozenset[str] = frozenset()  # names of tools that the scenario expects, forbids or limits
    faults: ModelFaults | None = None
    tape_key: Any = None  # identifies its recordings
    recordings: Any = None  # the `Tape` that has them; None if nothing is recorded or replayed


class ModelConversation(Protocol):
    """A conversation under way whose agent calls its model through our gateway."""

    @property
    def lane(self) -> int | None:
        """The copy of the agent's server that has this conversation; None if there are no copies."""

    async def error_of(self, agent_error: Exception | None) -> AgentestError | None:
        """Return the error that ends the conversation at the gateway; None if there is none.

        Args:
            agent_error: the agent's error, which may result from what happened at the gateway.
        """

    def said(self, text: str) -> AbstractContextManager[None]:
        """Note that the user has said this, and that the agent works on it until the block ends."""

    async def has_heard(self) -> None:
        """Wait until the gateway, perhaps in another process, knows all that was said."""

    async def end_turn(self) -> TurnTraces:
        """Record calls whose results the model was never sent. Returns what the model did for the turn.

        Raises MockError if the agent does not use the gateway.
        """


@dataclass(slots=True)
class ActivePeriod:
    """The time during which a conversation is active."""

    addresses: Addresses
    failed: bool = False  # True if it ended with an error, so that the agent may continue with it for a while
    at_work_s: float = 0.0
    """The expected duration of that, if its agent had not answered when the conversation ended."""
    traces: SpanSource | None = None  # provides its spans; None if no spans are received
    model: ModelConversation | None = None
    """The conversation at the model gateway; None if there is no gateway."""


def shortened_without_secrets(text: str, most: int, redact: Callable[[str], str]) -> str:
    """Return the beginning of a text. Secrets are redacted first, because part of one is still a secret."""
    redacted = redact(well_formed(text[: 4 * most]))
    if len(text) <= 4 * most and len(redacted) <= most:
        return redacted
    # A secret may be cut where reading ended.
    kept = most if len(text) <= 4 * most else max(0, min(most, len(redacted) - most))
    return f"{redacted[:kept]}… ({len(text):,} characters)"


UnderWay = Callable[
    [Identity, ActiveConversation, "WaitingBlock", ModelAccess | None],
    AbstractAsyncContextManager[ActivePeriod],
]
"""Waits until a conversation may begin, whose calls are answered until the block ends. What a model gateway
needs to know is None if the agent has none."""
