"""What the turn loop knows of an agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import anyio

from agentest.domain.messages import Message, Session, ToolRequest, ToolSpec
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.mock_servers.port import Addresses
from agentest.support.dates import today
from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.client import Sender
from agentest.support.json_text import well_formed, well_formed_value
from agentest.support.text import count, shortened


@dataclass(frozen=True, slots=True)
class AgentReply:
    """One answer of the agent: text, or tools it wants called, or both."""

    text: str | None
    tool_requests: tuple[ToolRequest, ...] = ()
    usage: Usage = field(default_factory=Usage)
    latency_ms: float = 0.0
    retries: int = 0
    model_calls: int | None = None
    """How often it asked its model for this; None: it does not tell."""
    observed: tuple[ToolCall, ...] = ()
    """Calls that the agent has made and answered itself, where its protocol reports them."""
    retells: bool = False
    """Whether `observed` may hold calls again that earlier answers told of, as a snapshot of the history
    does: those with an id, name and arguments that are known are no new calls."""
    remarks: tuple[Remark, ...] = ()
    """What it said on the way to the text."""
    author: str | None = None
    """Who gave the text, of all who say something; None: the agent does not tell who says what."""
    state: Mapping[str, Any] | None = None
    """The state of its session after this reply; None: it does not tell."""
    state_before: Mapping[str, Any] | None = None
    """The state with which its session began, told with the first reply."""
    state_error: str | None = None
    """Why the state could not be read from an agent that has one."""
    first_token_ms: float | None = None
    """When the first piece of the text came, counted as `latency_ms`; None: it came all at once."""
    tells_calls: bool = False
    """Whether this answer shows that the agent tells of all its calls; its type alone does not say so."""
    calls_hidden: str | None = None
    """Why this answer cannot tell of calls, though those of its type do, as the end of a sentence."""


def well_formed_reply(reply: AgentReply) -> AgentReply:
    """The reply with texts that can be sent on: half a surrogate pair has no UTF-8 form.

    The `observed` calls become well-formed where they are recorded.
    """
    text = None if reply.text is None else well_formed(reply.text)
    told = reply.tool_requests or reply.remarks or reply.author or reply.state or reply.state_before
    if text is reply.text and not told:
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


class NoReply(AgentError):
    """The agent has no answer, after `retries` further attempts and the calls that were `observed`.

    `retells` is as in `AgentReply`.
    """

    def __init__(
        self,
        message: str,
        retries: int = 0,
        observed: tuple[ToolCall, ...] = (),
        *,
        retells: bool = False,
    ) -> None:
        super().__init__(message)
        self.retries = retries
        self.observed = observed
        self.retells = retells


class MockBypassed(CannotSend):
    """The agent has run tools of its own, in calls that were `observed`, in place of the scenario's mocks."""

    def __init__(self, message: str, observed: Sequence[ToolCall] = (), *, tools: Sequence[str] = ()) -> None:
        """`tools`: the real tools that ran; (): none did, as somebody else refused the call."""
        super().__init__(message)
        self.observed = tuple(observed)
        self.tools = tuple(tools)


ResolveTool = Callable[[str, Any], Any]
RecordState = Callable[[Mapping[str, Any]], None]


class RecordTool(Protocol):
    """Records a call that the agent has made itself."""

    def __call__(self, name: str, args: Mapping[str, Any] | None = None, result: Any = None) -> None: ...


class RecordUsage(Protocol):
    """Adds tokens to those of the turn."""

    def __call__(self, *, prompt_tokens: int = 0, completion_tokens: int = 0) -> None: ...


class RealCall(Protocol):
    """A call that the agent's own tool answers. It was recorded when it began."""

    def answered(self, result: Any) -> None: ...

    def failed(self, error: BaseException) -> None: ...


def _nobody_records(*_: Any, **__: Any) -> None:
    raise AgentError("nobody records here: this context belongs to no conversation")


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What an agent may know of the conversation, and its way to the scenario's mocks.

    `resolve_tool(name, args)` answers through the mocks and records the call: awaited in an async handler,
    called plainly in a plain one. `record_tool(name, args, result)` records a call that the agent has made
    and answered itself, `record_usage(prompt_tokens=…, completion_tokens=…)` adds tokens to those of the
    turn: both are called plainly in either, and raise AgentError for values that they cannot take.
    """

    conversation_id: str
    scenario: str
    turn_index: int
    resolve_tool: ResolveTool
    session: Session | None = None
    _: KW_ONLY
    session_id: str
    """New for every conversation of every run, unless `session` names one. `conversation_id` is the same in
    every run: an agent that keeps sessions by it would go on with yesterday's conversation."""
    date: str = field(default_factory=today)
    """The date or date-time of the conversation, in ISO 8601: the scenario's, else today."""
    record_state: RecordState = lambda _: None
    """Tells which state the agent's session has after this turn, a JSON object; the last word counts."""
    record_tool: RecordTool = _nobody_records
    record_usage: RecordUsage = _nobody_records
    tools: tuple[ToolSpec, ...] = ()
    """The scenario's mocks as tools, for agents that are told which tools there are."""
    real_call: Callable[[str, Any], RealCall | None] = lambda *_: None
    """Begins a call (name, arguments) that the agent's own tool may answer: it has no mock, and
    `unmocked_tools` is `passthrough`. None: it must not, and `resolve_tool` is to be asked."""
    gate: object | None = None
    """What stands between the agent and its tools in this turn (`objects.gate.Gate`); None: nothing yet."""
    mocks_inside: bool = False
    """Whether mocks may have answered calls that the agent is seen to make itself; then the turn loop, which
    knows, checks that no real tool ran in place of one."""
    servers: Addresses | None = None
    """Where the servers beside the agent answer the calls of this conversation; None: there are none."""

    @property
    def mcp_url(self) -> str | None:
        """The MCP server whose tools this scenario's mocks answer; None: the agent has no `mcp_mock`."""
        return self.servers.mcp if self.servers else None

    @property
    def rest_url(self) -> str | None:
        """The base URL at which this scenario's mocks answer; None: the agent has no `rest_mock`."""
        return self.servers.rest if self.servers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the agents of a run share."""

    client: Sender
    timeout_s: float
    """The longest that one request may take."""
    threads: anyio.CapacityLimiter
    """Threads for handlers that block."""
    root: Path
    """The folder from which import paths are resolved."""
    closing: AsyncExitStack
    """Closes, at the end of the run, what agents put there."""
    on_note: Callable[[str], None]
    """Receives what the user should know at the end."""
    on_secret: Callable[[Iterable[str]], None] = lambda _: None
    """Receives what must not be shown from now on: tokens and cookies that came during the run."""


class Agent(Protocol):
    """An agent under test. It keeps nothing of a conversation: every request brings the whole history.

    Where the protocol has something to keep (a session's id, cookies, a socket), the agent has a method
    `conversation` (`HoldsConversations`), and what that opens is talked to.
    """

    name: str

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The agent's answer to the conversation so far. Raises AgentError when it has none."""
        ...


class HoldsConversations(Protocol):
    """An agent that keeps something of each conversation."""

    def conversation(self) -> AbstractAsyncContextManager[Agent]:
        """Who answers in one conversation and closes what it has opened when that ends, also by cancellation.

        Nothing is sent before its first `reply`. Closing raises nothing: `on_note` is told what goes wrong.
        """
        ...


def in_conversation(agent: Agent) -> AbstractAsyncContextManager[Agent]:
    """Who answers for an agent in one conversation: the agent itself, unless it keeps something of it."""
    conversation = getattr(agent, "conversation", None)
    return nullcontext(agent) if conversation is None else conversation()


def takes_attachments(agent: Agent) -> bool:
    """Whether an agent's client can be given files beside the user's text.

    Only one that says so, by an attribute of this name: a client that does not know of files would drop them.
    """
    return bool(getattr(agent, "takes_attachments", False))


OpenAgent = Callable[[str, Any, Resources], Agent | Awaitable[Agent]]
"""Makes an agent from its name and the settings of its type; may be async. Raises ConfigError for settings
that name something that does not exist. The module of each protocol has one, called `open_agent`."""


_MOST_TOLD = 10
_MOST_KINDS = 20
"""Of which the numbers are kept apart: an agent may make up one for every event."""
_SHOWN_CHARS = 60


class Ignored:
    """Counts what was ignored of one agent, over all of its conversations."""

    def __init__(self, agent: str, resources: Resources) -> None:
        self._agent = agent
        self._counts: Counter[tuple[str, str]] = Counter()
        self._on_note = resources.on_note
        resources.closing.callback(self._tell)

    def note(self, noun: str, kind: object) -> None:
        """Count one more. `noun` says what it is, like `event`; `kind` is the type that it had."""
        key = noun, shortened(str(kind), _SHOWN_CHARS)
        self._counts[key if key in self._counts or len(self._counts) < _MOST_KINDS else (noun, "…")] += 1

    def _tell(self) -> None:
        for (noun, kind), times in self._counts.most_common(_MOST_TOLD):
            were = "was" if times == 1 else "were"
            what = count(times, noun)
            self._on_note(f"agent {self._agent!r}: {what} of unknown type {kind!r} {were} ignored")


class Notes:
    """The notes of one agent, over all of its conversations."""

    def __init__(self, agent: str, on_note: Callable[[str], None]) -> None:
        self._agent = agent
        self._on_note = on_note
        self._times: Counter[str] = Counter()

    def add(self, kind: str, text: str) -> None:
        """Tell what there is to say, unless something of this kind was told before."""
        self._times[kind] += 1
        if self._times[kind] == 1:
            self._on_note(f"agent {self._agent!r}: {text}")

    def times(self, kind: str) -> int:
        """How often there was something to say of a kind."""
        return self._times[kind]
