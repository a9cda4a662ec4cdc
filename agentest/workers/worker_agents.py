"""Start agents in each worker, and forward their output, spans and refused calls to the run.

A worker may be on another machine, so the mock servers and trace receivers of such an agent run in the worker
as well. All other agents use those of the run's process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext

from anyio.abc import TaskGroup

from agentest.mock_servers.port import ActiveConversation, ActivePeriod, Conversations, Identity, WaitingBlock
from agentest.runner.agents import in_worker, part_of, start_servers, with_ports
from agentest.runner.prepare import Prepared
from agentest.runner.session import RunSession
from agentest.runner.sources import Origin
from agentest.support.errors import UsageError
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import Client, open_client
from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.channel import (
    AgentDied,
    CallRefused,
    MockServerReached,
    Send,
    ServerOutputLines,
    SpanReceived,
    WorkerAgentMessage,
)


@dataclass(frozen=True, slots=True)
class WorkerResources:
    """Resources other than models that a worker's conversations need."""

    prepared: Prepared
    """The run with the ports of all agents, as this worker reaches them."""
    client: Client
    conversations: Conversations
    """Running conversations that receive calls from mock servers, in this worker or in the run's process."""


async def open_worker_agents(
    session: RunSession,
    worker: int,
    stack: AsyncExitStack,
    tasks: TaskGroup,
    send: Send,
    hosted: Conversations,
) -> WorkerResources:
    """Start the agents that each worker starts, with their mock servers and receivers. The stack stops them.

    Args:
        worker: number of this worker, from 1.
        hosted: conversations whose calls come from the run's process.

    Raises UsageError.
    """
    prepared = stack.enter_context(with_ports(in_worker(session.prepared, worker)))
    part = part_of(prepared, per_worker=True)
    if not part.plan.agents:
        client = await stack.enter_async_context(open_client(AddressGuard()))
        return WorkerResources(prepared, client, hosted)

    def say(text: str) -> None:
        session.say(f"worker {worker}: {text}")

    try:
        started = await start_servers(
            part,
            stack,
            tasks,
            session.on_note,
            keep_span=lambda line: send(SpanReceived(line)),
            say=say,
            keep_output=lambda log, lines: send(ServerOutputLines(log, lines)),
            on_end=lambda: send(AgentDied()),
        )
    except UsageError as error:
        raise type(error)(prepared.loaded.redact(f"worker {worker}: {error}")) from None
    if started.registry is None:
        return WorkerResources(prepared, started.client, hosted)
    started.registry.on_refused = lambda refusal: send(CallRefused(refusal.agent, refusal.tool, refusal.why))
    started.registry.on_reached = lambda group: send(MockServerReached(group.reached))
    return WorkerResources(
        prepared, started.client, ConversationsByAgent(part.plan.agents, started.registry, hosted)
    )


class ConversationsByAgent:
    """Running conversations, split by agents with servers in this worker and agents with servers in the run's
    process.
    """

    def __init__(self, agents: Collection[str], local: Conversations, others: Conversations) -> None:
        self._agents = frozenset(agents)
        self._own = local
        self._others = others

    def under_way(
        self, who: Identity, serving: ActiveConversation, outside: WaitingBlock = nullcontext
    ) -> AbstractAsyncContextManager[ActivePeriod]:
        """Wait until the conversation may begin, and answer its calls until the block ends."""
        conversations = self._own if who.agent in self._agents else self._others
        return conversations.under_way(who, serving, outside)


def store_agent_reports(origin: Origin) -> Callable[[WorkerAgentMessage], None]:
    """In the run's process: create a handler that stores what agents started by workers report."""

    def keep(message: WorkerAgentMessage) -> None:
        match message:
            case ServerOutputLines() if origin.keep_output:
                origin.keep_output(message.log, message.lines)
            case SpanReceived() if origin.keep_span:
                origin.keep_span(message.line)
            case MockServerReached():
                origin.reached.update(message.reached)
            case CallRefused():
                from agentest.mock_servers.registry import UnclaimedCall

                call = UnclaimedCall(agent=message.agent, tool=message.tool, why=message.why)
                origin.refused[call] = origin.refused.get(call, 0) + 1

    return keep
