"""The agents of a plan, opened: their servers started, all of them reachable, and those in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from agentest.agents.open import check_reachable, make_agents
from agentest.agents.port import Agent
from agentest.agents.server.process import running_server
from agentest.config.agents.base import Server
from agentest.http.client import Client, open_client
from agentest.http.guard import AddressGuard
from agentest.run.prepare import Prepared
from agentest.run.pulse import awaited
from agentest.run.seeing import check_mocks

if TYPE_CHECKING:  # imported where an agent has servers beside it
    from agentest.tool_servers.registry import Registry


@dataclass(frozen=True, slots=True)
class Started:
    """What all agents of a run need: a client, and the conversations that mock servers give calls to."""

    client: Client
    registry: Registry | None
    """None: no agent has a server beside it."""


async def start_servers(
    prepared: Prepared,
    stack: AsyncExitStack,
    tasks: TaskGroup,
    on_note: Callable[[str], None],
    keep_span: Callable[[bytes], object] | None = None,
    say: Callable[[str], object] | None = None,
) -> Started:
    """Open the servers beside the plan's agents, start the agents' own, and check that all can be reached.

    The stack ends them. `keep_span` receives the spans of agents, each a line of JSON; `say` what is waited
    for when it takes long, at once (default: `on_note`).

    Raises UsageError, also where mocks would not reach an agent's tools.
    """
    check_mocks(prepared.plan)
    say = say or on_note
    client = await stack.enter_async_context(open_client(AddressGuard()))
    registry = None
    if any(agent.beside for agent in prepared.plan.agents.values()):
        from agentest.run.beside import open_servers

        async with awaited("for the servers beside the agents to be ready", say):
            registry = await open_servers(prepared, client, stack, on_note, keep_span)
    for server, untold in _own_servers(prepared, registry):
        redact = prepared.loaded.redact
        running = running_server(server, prepared.request.root, client, tasks, redact, on_note, untold=untold)
        async with awaited(_for_server(server), say):
            await stack.enter_async_context(running)
    for name, agent in prepared.plan.agents.items():
        async with awaited(f"for agent {name!r} to be reached", say):
            await check_reachable(name, agent, client)
    return Started(client, registry)


def _for_server(server: Server) -> str:
    return f"for the agent's server to answer at {server.ready}, at most {server.timeout_s:g} s"


def _own_servers(prepared: Prepared, registry: Registry | None) -> list[tuple[Server, str | None]]:
    """What is to be started, and what only this run can tell it.

    Agents that differ only in what they are sent live on one server.
    """
    servers: list[tuple[Server, str | None]] = []
    for name, agent in prepared.plan.agents.items():
        group = registry.group_of(name) if registry else None
        if agent.server is None:
            continue
        server, untold = agent.server, None
        if group:
            from agentest.run.beside import told_addresses, untold_address

            server, untold = told_addresses(server, group.addresses), untold_address(name, agent)
        if all(server != known for known, _ in servers):
            servers.append((server, untold))
    return servers


async def connected_agents(
    prepared: Prepared,
    client: Client,
    stack: AsyncExitStack,
    on_note: Callable[[str], None],
    on_secret: Callable[[Iterable[str]], None] = lambda _: None,
) -> dict[str, Agent]:
    """The agents of the plan, which are known to be reachable; those that live in this process are started.

    The stack closes them. Raises ConfigError.

    Args:
        on_secret: receives what this process hides from now on, for others to hide it, too.
    """

    def hide(secrets: Iterable[str]) -> None:
        known = tuple(secrets)
        prepared.loaded.redact.learn(known)
        on_secret(known)

    timeout_s = prepared.loaded.config.request_timeout_ms / 1000
    agents, root = prepared.plan.agents, prepared.request.root
    return await make_agents(agents, client, timeout_s, prepared.concurrency, root, stack, on_note, hide)
