"""Call sources: where a conversation gets the tool calls that do not arrive by its agent's protocol.

A run opens each source once (`OpenCallSources`), and each conversation of an agent whose settings name it in
`call_sources` runs inside of `CallSources.conversation`. Handlers are the core's own source; plug-ins hand in
others by `agentest.plugin.Plugin.call_source`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import field
from typing import Any

from anyio.abc import TaskGroup

from agentest.agents.port import Agent
from agentest.config.agent_types import AgentConfig
from agentest.config.agents.server import Server
from agentest.conversation.turn_loop import ConversationSpec
from agentest.conversation.turn_progress import CallSource
from agentest.conversation.user import User
from agentest.domain.results import RunWarning
from agentest.domain.transcript import Conversation
from agentest.mocks.resolver import MockResolver
from agentest.models.port import CallKey, Models, Role
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.support.http.client import Client
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count

WaitingBlock = Callable[[], AbstractAsyncContextManager[None]]
"""Opens a block for waiting, during which the conversation's slot is free and its time does not count."""


@dataclass(slots=True, kw_only=True)
class LiveConversation:
    """One conversation that is about to run, as its users and call sources see it."""

    prepared: Prepared
    unit: Unit
    number: int  # its number in the unit, from 1
    attempt: int
    agent: Agent
    models: Models
    spec: ConversationSpec
    mocks: MockResolver  # record the calls of every source, and answer them
    outside: WaitingBlock  # a source that has to wait for other conversations does it inside of this block
    is_played: bool = False  # True if a person plays the user
    lane: int | None = None
    """The copy of the agent's server that takes part, from 1. A call source sets it if there are several."""
    finishers: list[Callable[[Conversation], Awaitable[Conversation]]] = field(default_factory=list)
    """Complete the transcript, in order, when the turn loop has ended."""
    ended: Conversation | None = None  # the transcript, for sources that close; None as long as there is none

    @property
    def config(self) -> AgentConfig:
        """The settings of the agent."""
        return self.prepared.plan.agents[self.unit.agent]

    def key(self, role: Role) -> CallKey:
        """Return what identifies the conversation's questions to a model."""
        return CallKey(role, self.unit.scope, self.number, sample=self.attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnclaimedCall:
    """Refused calls to a tool that belonged to no active conversation."""

    agent: str  # the first agent that uses the server
    tool: str  # "" for a message to the agent's `reply_webhook`
    why: str
    remedy: str = ""  # what to do if the agent makes such calls, in whole sentences


@dataclass(slots=True)
class CallObservations:
    """Observations of call sources outside of conversations in the whole run."""

    unclaimed: dict[UnclaimedCall, int] = field(default_factory=dict)
    """Call that belonged to no conversation → how often."""
    reached: set[tuple[str, str]] = field(default_factory=set)
    """Each agent whose client connected to a server, with the server's key."""
    on_reached: Callable[[], object] = lambda: None

    def count_unclaimed(self, call: UnclaimedCall) -> None:
        """Count a call that belonged to no conversation."""
        self.unclaimed[call] = self.unclaimed.get(call, 0) + 1

    def count_stray(self, agent: str, why: str) -> None:
        """Count a message to an agent's `reply_webhook` that belonged to no conversation."""
        self.count_unclaimed(UnclaimedCall(agent=agent, tool="", why=why))

    def add_reached(self, reached: Iterable[tuple[str, str]]) -> None:
        """Record that clients of agents connected to servers."""
        self.reached.update(reached)
        self.on_reached()

    def warnings(self, prepared: Prepared) -> tuple[RunWarning, ...]:
        """Return a warning for each kind of call that belonged to no conversation."""
        return tuple(_warning(prepared, call, number) for call, number in self.unclaimed.items())


def _warning(prepared: Prepared, call: UnclaimedCall, number: int) -> RunWarning:
    first = next(unit for unit in prepared.plan.units if unit.agent == call.agent)
    if call.tool:
        message = (
            f"{count(number, 'call')} of tool {call.tool!r} that came to the mock servers of agent "
            f"{call.agent!r} {'was' if number == 1 else 'were'} refused: {call.why}. Its effect "
            f"is unknown, so this run is errored. {call.remedy}"
        )
    else:
        message = (
            f"{count(number, 'message')} of agent {call.agent!r} to `reply_webhook` belonged to no "
            f"conversation{'' if number == 1 else ', such as the first'}: {call.why}. The reply that it "
            "belongs to is unknown, so this run is errored"
        )
    return RunWarning(prepared.loaded.redact(message), call.agent, first.file, first.scenario.line)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReports:
    """The receivers of events of a run's servers and call sources."""

    on_note: Callable[[str], None] = lambda _: None  # receives notes for the user, for the end of the run
    say: Callable[[str], object] | None = None
    """Receives messages immediately, about long waits and dead servers. None: they become notes."""
    keep_output: Callable[[str, str], object] = lambda *_: None
    """Receives a server's output: the server's name, and whole lines without secrets."""
    keep_span: Callable[[bytes], object] | None = None
    """Receives the agents' spans, each a line of JSON; None to discard them."""
    on_end: Callable[[], object] = lambda: None
    observed: CallObservations = field(default_factory=CallObservations)


@dataclass(frozen=True, slots=True)
class RunResources:
    """The resources that a call source may use from its opening to the end of the run."""

    prepared: Prepared
    client: Client
    closing: AsyncExitStack
    reports: ServerReports


class CallSources:
    """One source of calls, open for a run. Only `conversation` has to be overridden."""

    @asynccontextmanager
    async def conversation(self, live: LiveConversation) -> AsyncIterator[Sequence[CallSource]]:
        """Accompany one conversation, from before its first message until it is over.

        Yields what records its calls with `live.mocks`, and may wait for its turn and set `live.lane` before.
        `live.ended` has the transcript afterwards, unless the run is being stopped.
        """
        del live
        yield ()

    def server_for(self, agent: str, server: Server, lane: int | None) -> Server:
        """Return the settings of an agent's own server, or a copy of it, with addresses that it must know."""
        del agent, lane
        return server

    def changing_addresses(self, agent: str) -> str | None:
        """Name what only a server that this run starts can know, for an error; None: nothing."""
        del agent
        return None

    def lane_ended(self, agent: str, lane: int) -> None:
        """Give no further conversation to this copy of the agent's server, which has exited."""

    def serve_worker(self, worker: Any, tasks: TaskGroup, recordings: Any) -> Any:
        """Return what the source's end in a worker calls, and closes; None if it has no such end.

        Args:
            worker: stands for that end. Its methods send messages and return nothing.
            tasks: where to wait for others.
            recordings: the `Tape` of the run; None if it records and replays nothing.
        """
        del worker, tasks, recordings


OpenCallSources = Callable[[RunResources], Awaitable[CallSources]]
"""Opens a source for the agents of a run. Raises ConfigError."""
OpenWorkerEnd = Callable[[RunResources, Any], Awaitable[CallSources]]
"""Opens the end of a source in a worker. The second argument stands for the other end, in the run's process,
which calls the methods of what is returned."""
SourcesOfAgents = Mapping[str, Mapping[str, CallSources]]  # agent → its call sources by name


async def open_call_sources(
    resources: RunResources, *, for_workers: bool = False, other_end: Callable[[str], Any] | None = None
) -> dict[str, dict[str, CallSources]]:
    """Open the call sources of all agents of the plan. Raises ConfigError.

    Args:
        for_workers: open only those with an end in each worker, because the others are open in workers alone.
        other_end: in a worker: returns what stands for a source of this name in the run's process.
    """
    from agentest.plugin import PLUGINS

    opened: dict[str, CallSources] = {}
    named = {name: agent.call_sources for name, agent in resources.prepared.plan.agents.items()}
    for name in dict.fromkeys(name for names in named.values() for name in names):
        feature = PLUGINS.get("call source", name)
        if other_end and "worker" in feature.facts:
            opened[name] = await feature.load("worker")(resources, other_end(name))
        elif "worker" in feature.facts or not for_workers:
            opened[name] = await feature.load()(resources)
    return {agent: {name: opened[name] for name in names if name in opened} for agent, names in named.items()}


ChangeUser = Callable[[LiveConversation, User], User]
"""Returns the user of a conversation in place of the scenario's own."""


class HandlerCalls(CallSources):
    """The calls of agents' code in this process."""

    @asynccontextmanager
    async def conversation(self, live: LiveConversation) -> AsyncIterator[Sequence[CallSource]]:
        from agentest.conversation.in_process_calls import InProcessCalls

        yield (InProcessCalls(live.mocks, mocks_inside=live.unit.traits.mocks_inside),)


async def open_handlers(_: RunResources) -> HandlerCalls:
    """Open the calls of handlers (`OpenCallSources`)."""
    return HandlerCalls()
