"""Start agents in each worker, and forward their output, spans and refused calls to the run.

A worker may be on another machine, so the mock servers and trace receivers of such an agent run in the worker
as well. All other agents use those of the run's process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext

from anyio.abc import TaskGroup

from agentest.mock_servers.port import (
    ActiveConversation,
    ActivePeriod,
    Conversations,
    Identity,
    ModelAccess,
    WaitingBlock,
)
from agentest.runner.agents import in_worker, part_of, start_servers, with_ports
from agentest.runner.prepare import Prepared
from agentest.runner.session import RunSession
from agentest.runner.sources import Origin
from agentest.support.errors import UsageError
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import Client, open_client
from agentest.workers.channel import Send, remote

AGENTS = "agents"


async def open_worker_agents(
    session: RunSession,
    worker: int,
    stack: AsyncExitStack,
    tasks: TaskGroup,
    send: Send,
    hosted: Conversations,
) -> tuple[Prepared, Client, Conversations]:
    """Start the agents that each worker starts, with their mock servers and receivers. The stack stops them.

    Returns the run with the ports of all agents, as this worker reaches them, and the running conversations
    that receive calls from mock servers, in this worker or in the run's process.

    Args:
        worker: number of this worker, from 1.
        hosted: conversations whose calls come from the run's process.

    Raises UsageError.
    """
    prepared = stack.enter_context(with_ports(in_worker(session.prepared, worker)))
    part = part_of(prepared, per_worker=True)
    if not part.plan.agents:
        client = await stack.enter_async_context(open_client(AddressGuard()))
        return prepared, client, hosted

    run: AgentReports = remote(AGENTS, send)

    try:
        started = await start_servers(
            part,
            stack,
            tasks,
            session.on_note,
            keep_span=run.store_span,
            say=lambda text: session.say(f"worker {worker}: {text}"),
            keep_output=run.store_output,
            on_end=run.died,
        )
    except UsageError as error:
        raise type(error)(prepared.loaded.redact(f"worker {worker}: {error}")) from None
    if started.registry is None:
        return prepared, started.client, hosted
    started.registry.on_refused = lambda refusal: run.count_refusal(refusal.agent, refusal.tool, refusal.why)
    started.registry.on_reached = lambda group: run.add_reached(group.reached)
    return prepared, started.client, ConversationsByAgent(part.plan.agents, started.registry, hosted)


class ConversationsByAgent:
    """Running conversations, split by agents with servers in this worker and agents with servers in the run's
    process.
    """

    def __init__(self, agents: Collection[str], local: Conversations, others: Conversations) -> None:
        self._agents = frozenset(agents)
        self._own = local
        self._others = others

    def under_way(
        self,
        who: Identity,
        serving: ActiveConversation,
        outside: WaitingBlock = nullcontext,
        access: ModelAccess | None = None,
    ) -> AbstractAsyncContextManager[ActivePeriod]:
        """Wait until the conversation may begin, and answer its calls until the block ends."""
        conversations = self._own if who.agent in self._agents else self._others
        return conversations.under_way(who, serving, outside, access)


class AgentReports:
    """In the run's process: what a worker reports about the agents that it started itself.

    Args:
        died: called when the server of such an agent has exited unexpectedly.
    """

    def __init__(self, origin: Origin, died: Callable[[], None]) -> None:
        self._origin = origin
        self.died = died

    def store_output(self, log: str, lines: str) -> None:
        """Store complete, redacted lines that a server printed."""
        if self._origin.keep_output:
            self._origin.keep_output(log, lines)

    def store_span(self, line: bytes) -> None:
        """Store a span, as a line of JSON."""
        if self._origin.keep_span:
            self._origin.keep_span(line)

    def add_reached(self, reached: frozenset[tuple[str, str]]) -> None:
        """Record that clients of agents connected to mock servers, as (agent, server) keys."""
        self._origin.reached.update(reached)

    def count_refusal(self, agent: str, tool: str, why: str) -> None:
        """Count a call that one of the worker's mock servers refused."""
        from agentest.mock_servers.registry import UnclaimedCall

        call = UnclaimedCall(agent=agent, tool=tool, why=why)
        self._origin.refused[call] = self._origin.refused.get(call, 0) + 1
