"""The interface between the turn loop and agents.

`Agent` is what every protocol implements. A `TurnContext` goes in, and an `AgentReply` comes out. `Resources`
are what the agents of a run share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import anyio

from agentest.domain.messages import Message, Session, ToolRequest, ToolSpec
from agentest.domain.tool_visibility import Approval, Approve
from agentest.domain.transcript import Remark, SentRequest, ToolCall, Usage
from agentest.support.dates import today
from agentest.support.errors import AgentError, AgentestError, CannotSend
from agentest.support.http.client import Sender
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, shortened

if TYPE_CHECKING:
    from agentest.agents.call_source_addresses import Addresses


@dataclass(frozen=True, slots=True)
class AgentReply:
    """One reply of the agent: text, tool requests, or both."""

    text: str | None
    tool_requests: tuple[ToolRequest, ...] = ()
    usage: Usage = field(default_factory=Usage)
    latency_ms: float = 0.0
    retries: int = 0
    model_calls: int | None = None
    """Model calls made for this reply. None if the agent does not report them."""
    observed: tuple[ToolCall, ...] = ()
    """Calls that the agent made and answered itself, if its protocol reports them."""
    retells: bool = False
    """True if `observed` may repeat calls of earlier replies, as a snapshot of the history does. A call with
    a known id, name and arguments is not counted again."""
    remarks: tuple[Remark, ...] = ()  # texts that the agent sent before its final text
    author: str | None = None
    """Which of several agents wrote the text. None if the protocol does not report it."""
    state: Mapping[str, Any] | None = None
    """The session's state after this reply. None if the protocol does not report it."""
    state_before: Mapping[str, Any] | None = None
    """The session's initial state, reported with the first reply."""
    state_error: str | None = None
    first_token_ms: float | None = None
    """Time until the first piece of text, measured like `latency_ms`. None if it all arrived at once."""
    tells_calls: bool = False
    """True if this reply shows that the agent reports all its calls, which its type alone does not show."""
    approvals: int = 0  # number of requests for approval that the scenario's `approve` has answered
    calls_hidden: str | None = None
    """Why this reply cannot report calls although its type can, as the end of a sentence. "": it shows that
    earlier replies hid none."""


class AppFailed(Exception):
    """An ASGI application raised or violated ASGI. This is the agent's error; the message is one sentence."""


class NoReply(AgentError):
    """The agent has no reply, after `retries` retries and the calls in `observed`.

    `retells` means the same as in `AgentReply`.
    """

    def __init__(
        self, message: str, retries: int = 0, observed: tuple[ToolCall, ...] = (), *, retells: bool = False
    ) -> None:
        super().__init__(message)
        self.retries = retries
        self.observed = observed
        self.retells = retells


class AccessDenied(CannotSend):
    """The agent rejects the first request of a conversation: the address, path or credentials are wrong.

    If it rejects all of the run's, nothing is known about it, so its scenarios are errored, not failed.
    """


AGENT_ANSWERED: ContextVar[bool] = ContextVar("agentest_agent_answered", default=False)
"""True once the agent has accepted a request of the conversation that runs in this context."""
SENT_REQUESTS: ContextVar[deque[SentRequest] | None] = ContextVar("agentest_sent_requests", default=None)
"""Receives the HTTP exchanges of the turn that runs in this context."""


class MockBypassed(CannotSend):
    """The agent ran its own tools instead of the scenario's mocks, in the calls in `observed`."""

    def __init__(self, message: str, observed: Sequence[ToolCall] = (), *, tools: Sequence[str] = ()) -> None:
        """Create the error. `tools` are the real tools that ran; empty if another party refused the call."""
        super().__init__(message)
        self.observed = tuple(observed)
        self.tools = tuple(tools)


ResolveTool = Callable[[str, Any], Any]
RecordState = Callable[[Mapping[str, Any]], None]


class RecordTool(Protocol):
    """Records a call that the agent made itself."""

    def __call__(self, name: str, args: Mapping[str, Any] | None = None, result: Any = None) -> None: ...


class RecordUsage(Protocol):
    """Adds tokens to those of the turn."""

    def __call__(self, *, prompt_tokens: int = 0, completion_tokens: int = 0) -> None: ...


class RealCall(Protocol):
    """A call that the agent's own tool answers. It was recorded when it started."""

    approval: Approval | None

    def answered(self, result: Any) -> None: ...

    def failed(self, error: BaseException) -> None: ...

    def not_run(self, approval: Approval) -> None: ...


class InProcessTurn:
    """A turn of code in this process, for what stands between that code and its tools."""

    in_progress: ClassVar[list[InProcessTurn]] = []  # the turns whose code may call tools now

    def __init__(self) -> None:
        self.ended: AgentestError | None = None
        """The error that ended the turn, such as a missing mock. Frameworks may swallow it."""
        self.is_over = False  # True when the conversation has ended: calls are no longer answered
        self.gates: dict[type, Any] = {}  # class → its instance that stands before the tools in this turn

    def end(self, error: AgentestError) -> None:
        """End the turn with an error about a call that may belong to it."""
        self.ended = self.ended or error


def _not_in_a_conversation(*_: Any, **__: Any) -> None:
    raise AgentError("nothing can be recorded here: this context belongs to no conversation")


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The conversation as an agent sees it, and its access to the scenario's mocks.

    `resolve_tool(name, args)` answers a call through the mocks and records it. Await it in an async handler,
    and call it directly in a sync handler. `record_tool(name, args, result)` records a call that the agent
    made and answered itself. `record_usage(prompt_tokens=…, completion_tokens=…)` adds tokens to those of the
    turn. Both are called directly in either kind of handler and raise AgentError for invalid values.
    """

    conversation_id: str
    scenario: str
    turn_index: int
    resolve_tool: ResolveTool = _not_in_a_conversation
    session: Session | None = None
    _: KW_ONLY
    session_id: str
    """Unique for every conversation of every run, unless `session` sets it. Store sessions under this id:
    `conversation_id` is the same in every run, so an old session would continue."""
    date: str = field(default_factory=today)
    """The date or date-time of the conversation in ISO 8601: the scenario's, else today."""
    record_state: RecordState = lambda _: None
    """Records the session's state after this turn, a JSON object. The last call counts."""
    record_tool: RecordTool = _not_in_a_conversation
    record_usage: RecordUsage = _not_in_a_conversation
    approve: Approve | None = None
    """The scenario's answer when the agent asks for approval. None: it has none."""
    tools: tuple[ToolSpec, ...] = ()
    """The scenario's mocks as tool definitions, for agents that receive their tools with the request."""
    real_call: Callable[[str, Any], RealCall | None] = lambda *_: None
    """Starts a call (name, arguments) that the agent's own tool may answer, because it has no mock and
    `unmocked_tools` is `passthrough`. Returns None if it may not: call `resolve_tool` then."""
    in_process: InProcessTurn | None = None  # the turn, where code in this process may call tools in it
    mocks_inside: bool = False
    """True if mocks may have answered calls that the agent seems to make itself. The turn loop then checks
    that no real tool ran instead of a mock."""
    servers: Addresses | None = None
    """The addresses of the mock servers for this conversation, if there are any."""

    @property
    def mcp_url(self) -> str | None:
        """The URL of the MCP mock server. None if the agent has no `mcp_mock`."""
        return self.servers.mcp if self.servers else None

    @property
    def rest_url(self) -> str | None:
        """The base URL of the REST mock server. None if the agent has no `rest_mock`."""
        return self.servers.rest if self.servers else None


OnStray = Callable[[str, str], None]
"""Receives an agent's name, and why a message that it sent belongs to no conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources that the agents of a run share."""

    client: Sender
    timeout_s: float  # the longest time that one request may take, in seconds
    threads: anyio.CapacityLimiter
    root: Path  # the folder that import paths are relative to
    closing: AsyncExitStack
    on_note: Callable[[str], None]  # receives notes to show at the end of the run
    on_secret: Callable[[Iterable[str]], None] = lambda _: None
    """Receives secrets to redact from now on, such as tokens and cookies received during the run."""
    on_stray: OnStray | None = None  # None: such messages become notes


class Agent(Protocol):
    """An agent under test. It stores no conversation state: each call receives the whole history.

    If the protocol has per-conversation state (a session id, cookies, a socket), the agent also has a method
    `conversation` (see `ConversationalAgent`), and the turn loop talks to the object that it opens.
    """

    name: str

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the reply to the conversation so far. Raises AgentError if there is none."""


@dataclass(slots=True)
class AgentCopies:
    """An agent whose server runs several times. A conversation talks to one of the copies (`of_lane`)."""

    name: str
    copies: tuple[Agent, ...]

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        return await self.copies[0].reply(messages, ctx)


def of_lane(agent: Agent, lane: int) -> Agent:
    """Return the copy with this number, from 1; the agent itself if its server runs once."""
    return agent.copies[lane - 1] if isinstance(agent, AgentCopies) else agent


@dataclass(eq=False)
class ConversationalAgent:
    """An agent with per-conversation state. Stores nothing about conversations itself."""

    name: str
    _begin: Callable[[], Agent]
    """Begins a conversation. Nothing is sent before its first `reply`.

    If a conversation has a method `close`, that is awaited in the end, and never raises; problems go to
    `on_note`.
    """
    takes_history: bool = False
    takes_attachments: bool = True

    @asynccontextmanager
    async def conversation(self) -> AsyncIterator[Agent]:
        """Open one conversation. Leaving the context closes its resources, also on cancellation."""
        conversation = self._begin()
        try:
            yield conversation
        finally:
            if close := getattr(conversation, "close", None):
                await close()

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Run a single turn in its own conversation. Raises AgentError if there is no reply."""
        async with self.conversation() as conversation:
            return await conversation.reply(messages, ctx)


def is_conversational(agent: Agent) -> bool:
    """Return True if an agent has per-conversation state, so that only a new conversation forgets."""
    return hasattr(_one_of(agent), "conversation")


def _one_of(agent: Agent) -> Agent:
    return agent.copies[0] if isinstance(agent, AgentCopies) else agent


def takes_attachments(agent: Agent) -> bool:
    """Return True if an agent's client can send files with the user's text.

    A client declares this with an attribute of the same name. Other clients would drop the files.
    """
    return bool(getattr(_one_of(agent), "takes_attachments", False))


def takes_history(agent: Agent) -> bool:
    """Return True if an agent's client sends messages from before the first turn.

    A client declares this with an attribute of the same name, unless `{{messages}}` in its settings shows it.
    """
    return bool(getattr(_one_of(agent), "takes_history", False))


OpenAgent = Callable[[str, Any, Resources], Agent | Awaitable[Agent]]
"""Creates an agent from its name and the settings of its type; may be async. Raises ConfigError for settings
that refer to something that does not exist. Each protocol's module has one, called `open_agent`."""


_MAX_NOTES = 10
_MAX_KINDS = 20
"""Most kinds that are counted separately, because an agent may invent a new one for every event."""
_SHOWN_CHARS = 60


class IgnoredCounter:
    """Counts ignored items of one agent over all conversations, and reports them at the end of the run."""

    def __init__(self, agent: str, resources: Resources) -> None:
        self._agent = agent
        self._counts: Counter[tuple[str, str]] = Counter()
        self._on_note = resources.on_note
        resources.closing.callback(self._report)

    def note(self, noun: str, kind: object) -> None:
        """Count one ignored item. `noun` is what it is, such as `event`; `kind` is its unknown type."""
        key = noun, shortened(str(kind), _SHOWN_CHARS)
        self._counts[key if key in self._counts or len(self._counts) < _MAX_KINDS else (noun, "…")] += 1

    def _report(self) -> None:
        for (noun, kind), times in self._counts.most_common(_MAX_NOTES):
            were = "was" if times == 1 else "were"
            what = count(times, noun)
            self._on_note(f"agent {self._agent!r}: {what} of unknown type {kind!r} {were} ignored")


class AgentNotes:
    """Notes about one agent, over all conversations."""

    def __init__(self, agent: str, on_note: Callable[[str], None]) -> None:
        self._agent = agent
        self._on_note = on_note
        self._times: Counter[str] = Counter()

    def add(self, kind: str, text: str) -> None:
        """Report a note, unless one of the same kind was reported before."""
        self._times[kind] += 1
        if self._times[kind] == 1:
            self._on_note(f"agent {self._agent!r}: {text}")

    def times(self, kind: str) -> int:
        """Return how often a note of this kind was added."""
        return self._times[kind]
