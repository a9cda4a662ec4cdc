"""The agents of a plan, opened: their servers started, all of them reachable, and those in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from agentest.agents.open import check_reachable, make_agents
from agentest.agents.port import Agent
from agentest.agents.server.process import Heard, running_server
from agentest.config.agents.server import Server
from agentest.runner.prepare import Prepared
from agentest.runner.pulse import awaited
from agentest.runner.seeing import check_mocks
from agentest.runner.servers import OwnServer
from agentest.support.http.client import Client, open_client
from agentest.support.http.guard import AddressGuard

if TYPE_CHECKING:  # imported where an agent has servers beside it
    from agentest.mock_servers.registry import Registry


KeepOutput = Callable[[str, str], object]
"""Receives what servers print: the name of one, and whole lines without secrets."""


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
    keep_output: KeepOutput | None = None,
    on_end: Callable[[], object] = lambda: None,
) -> Started:
    """Open the servers beside the plan's agents, start those of the configuration, and check that all agents
    can be reached.

    The stack ends them. `keep_span` receives the spans of agents, each a line of JSON; `say` at once what is
    waited for when it takes long (default: `on_note`), and that a server has died, of which `on_note`
    receives more; `keep_output` what servers print; `on_end` is called when one has died.

    Raises UsageError, also where mocks would not reach an agent's tools.
    """
    check_mocks(prepared.plan)
    on_death, say = say or _unsaid, say or on_note
    client = await stack.enter_async_context(open_client(AddressGuard()))
    registry = None
    if any(agent.beside for agent in prepared.plan.agents.values()):
        from agentest.runner.beside import open_servers

        async with awaited("for the servers beside the agents to be ready", say):
            registry = await open_servers(prepared, client, stack, on_note, keep_span)
    starting = _Starting(prepared, registry, client, tasks, on_note, on_death, keep_output, on_end)
    for own in prepared.own_servers.of_any(prepared.plan.agents):
        async with awaited(_for_server(own), say):
            await stack.enter_async_context(starting.running(own))
    for name, agent in prepared.plan.agents.items():
        async with awaited(f"for agent {name!r} to be reached", say):
            await check_reachable(name, agent, client)
    return Started(client, registry)


def _unsaid(_: str) -> None:
    """Say nothing: what receives notes says it."""


def _for_server(own: OwnServer) -> str:
    return f"for {own.called} to answer at {own.server.ready}, at most {own.server.timeout_s:g} s"


@dataclass(frozen=True, slots=True)
class _Starting:
    """What all servers of a run are started with."""

    prepared: Prepared
    registry: Registry | None
    client: Client
    tasks: TaskGroup
    on_note: Callable[[str], None]
    on_death: Callable[[str], object]
    keep_output: KeepOutput | None
    on_end: Callable[[], object]

    def running(self, own: OwnServer) -> AbstractAsyncContextManager[None]:
        """Have a server running meanwhile."""
        server, untold = _told(own, self.prepared, self.registry)
        return running_server(
            server,
            self.prepared.request.root,
            self.client,
            self.tasks,
            self.prepared.loaded.redact,
            self.on_note,
            untold=untold,
            called=own.called,
            heard=self._heard(own),
        )

    def _heard(self, own: OwnServer) -> Heard:
        def hear(lines: str) -> None:
            own.printed.add(lines)
            if self.keep_output:
                self.keep_output(own.log, lines)

        def end(status: int) -> None:
            own.printed.end(status)
            self.on_end()
            self.on_death(f"{own.called} exited with status {status}")

        return Heard(hear, end)


def _told(own: OwnServer, prepared: Prepared, registry: Registry | None) -> tuple[Server, str | None]:
    """The server as it is started, and what only this run can tell it."""
    for name in own.agents:
        if group := registry.group_of(name) if registry else None:
            from agentest.runner.beside import told_addresses, untold_address

            agent = prepared.plan.agents[name]
            return told_addresses(own.server, group.addresses), untold_address(name, agent)
    return own.server, None


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
