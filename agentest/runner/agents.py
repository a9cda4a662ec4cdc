"""The agents of a plan: start their servers, check that all can be reached, connect to them.

Also: which ports servers get, which agents belong to workers, and how the calls of each agent were visible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import anyio
from anyio.abc import TaskGroup

from agentest.agents.factory import check_reachable, make_agents
from agentest.agents.port import Agent, OnStray, Resources, takes_attachments, takes_history
from agentest.config.agent_types import AgentConfig, returns_calls, ways_to_mock
from agentest.config.agents.over_http import HttpAgent
from agentest.domain.metrics import ABOUT_CALLS
from agentest.domain.results import RunWarning, ScenarioResult
from agentest.domain.tool_visibility import ToolVisibility
from agentest.runner.call_sources import RunResources, ServerReports, SourcesOfAgents, open_call_sources
from agentest.runner.plan import Plan, Unit
from agentest.runner.prepare import ManagedServer, ManagedServers, Prepared
from agentest.runner.session import report_wait
from agentest.support.errors import ConfigError, ServerError, errors_as
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import Client, open_client
from agentest.support.locking import free_ports
from agentest.support.text import first_names


class StartedServers(NamedTuple):
    """The resources that all agents of a run share."""

    client: Client
    call_sources: SourcesOfAgents


async def start_servers(
    prepared: Prepared,
    stack: AsyncExitStack,
    tasks: TaskGroup,
    reports: ServerReports,
    *,
    for_workers: bool = False,
) -> StartedServers:
    """Start all servers of the run, open its call sources, and check that every agent can be reached.

    The stack stops them. Raises UsageError, also if mocks would not reach an agent's tools.

    Args:
        for_workers: workers run the conversations, so that only the other ends of call sources are needed.
    """
    check_mocks(prepared.plan)
    say, agents = reports.say or reports.on_note, prepared.plan.agents
    client = await stack.enter_async_context(open_client(AddressGuard()))
    call_sources: SourcesOfAgents = {}
    if any(agent.call_sources for agent in agents.values()):
        async with report_wait("for the mock servers to be ready", say):
            resources = RunResources(prepared, client, stack, reports)
            call_sources = await open_call_sources(resources, for_workers=for_workers)
    if any(awaits_calls(agent) for agent in agents.values()):
        from agentest.agents.http.webhook import open_receivers

        await open_receivers(tuple(agents.values()), client, stack, reports.on_note)

    async def start(managed: ManagedServer) -> None:
        limit = f"at most {managed.server.timeout_s:g} s"
        async with report_wait(f"for {managed.called} to answer at {managed.server.ready}, {limit}", say):
            await stack.enter_async_context(_running(managed, prepared, client, tasks, reports, call_sources))

    servers = prepared.managed_servers.of_any(agents)
    for _, copies in groupby(servers, lambda managed: managed.agents if managed.lane else managed.name):
        await _start_together(start, list(copies))
    for name, agent in agents.items():
        async with report_wait(f"for agent {name!r} to be reached", say):
            await check_reachable(name, agent, client)
    return StartedServers(client, call_sources)


def _running(
    managed: ManagedServer,
    prepared: Prepared,
    client: Client,
    tasks: TaskGroup,
    reports: ServerReports,
    call_sources: SourcesOfAgents,
) -> AbstractAsyncContextManager[None]:
    from agentest.agents.server_process import ServerCallbacks, running_server

    server, unknown = managed.server, None
    # Agents with the same server have the same sources.
    informing = {
        source: agent for agent in reversed(managed.agents) for source in call_sources.get(agent, {}).values()
    }
    for source, agent in informing.items():
        server = source.server_for(agent, server, managed.lane)
        unknown = unknown or source.changing_addresses(agent)

    def output(lines: str) -> None:
        managed.printed.add(lines)
        reports.keep_output(managed.log, lines)

    def end(status: int) -> None:
        managed.printed.end(status)
        for source, agent in informing.items():
            if managed.lane is not None:
                source.lane_ended(agent, managed.lane)
        reports.on_end()
        if reports.say:  # `on_note` receives it as well
            reports.say(f"{managed.called} exited with status {status}")

    return running_server(
        server,
        prepared.request.root,
        client,
        tasks,
        ServerCallbacks(prepared.loaded.redact, reports.on_note, output, end),
        name=managed.called,
        required_knowledge=unknown,
    )


def awaits_calls(agent: AgentConfig) -> bool:
    """Return True if the agent sends its replies by itself."""
    return getattr(agent, "reply_webhook", None) is not None


async def _start_together(
    start: Callable[[ManagedServer], Awaitable[None]], servers: Sequence[ManagedServer]
) -> None:
    if len(servers) == 1:
        return await start(servers[0])
    errors: list[ServerError] = []

    async def start_one(managed: ManagedServer) -> None:
        try:
            await start(managed)
        except ServerError as error:  # the task group would wrap it
            errors.append(error)
            starting.cancel_scope.cancel()

    async with anyio.create_task_group() as starting:
        for managed in servers:
            starting.start_soon(start_one, managed)
    if errors:
        raise errors[0]


async def connected_agents(
    prepared: Prepared,
    client: Client,
    stack: AsyncExitStack,
    on_note: Callable[[str], None],
    on_secret: Callable[[Iterable[str]], None] = lambda _: None,
    on_stray: OnStray | None = None,
) -> dict[str, Agent]:
    """Connect to the reachable agents of the plan; the stack closes them.

    Raises ConfigError, also for a scenario with a `history` that its agent cannot be sent.
    """

    def hide(secrets: Iterable[str]) -> None:
        known = tuple(secrets)
        prepared.loaded.redact.learn(known)
        on_secret(known)

    resources = Resources(
        client=client,
        timeout_s=prepared.loaded.config.request_timeout_ms / 1000,
        threads=anyio.CapacityLimiter(prepared.concurrency),
        root=prepared.request.root,
        closing=stack,
        on_note=on_note,
        on_secret=hide,
        on_stray=on_stray,
    )
    own = prepared.with_own_requests()
    for config in own.plan.agents.values():
        hide(config.secrets)
    agents = await make_agents(own.plan.agents, resources, own.copies)
    for name in prepared.plan.agents:
        _check_beginnings(name, own.plan, agents)
    return agents


@contextmanager
def shared_ports(prepared: Prepared) -> Iterator[Prepared]:
    """Reserve, for the block, a port for each server that the run starts once for all workers."""
    with _with_free_ports(
        prepared, [managed for managed in _without_port(prepared) if not managed.server.per_worker]
    ) as known:
        yield known


@contextmanager
def with_ports(prepared: Prepared) -> Iterator[Prepared]:
    """Reserve, for the block, a free port for each server and agent that needs one and has none."""
    with _with_free_ports(prepared, _without_port(prepared)) as known:
        servers = known.managed_servers.servers
        ports = {
            name: [managed.port for managed in servers if managed.port and name in managed.agents]
            for name in known.plan.agents
        }
        placed = {
            name: tuple(map(agent.at_port, ports[name])) or (agent,)
            for name, agent in known.plan.agents.items()
        }
        agents = {name: copies[0] for name, copies in placed.items()}
        placed_servers = tuple(
            replace(managed, server=managed.server.at_port(managed.port)) if managed.port else managed
            for managed in servers
        )
        yield replace(
            known,
            plan=replace(known.plan, agents=agents),
            managed_servers=ManagedServers(placed_servers),
            copies={name: copies for name, copies in placed.items() if len(copies) > 1},
        )


def known_ports(prepared: Prepared) -> dict[str, int]:
    """Return the chosen ports by server name, for a process that prepares the run again."""
    return {managed.name: managed.port for managed in prepared.managed_servers.servers if managed.port}


def with_known_ports(prepared: Prepared, ports: Mapping[str, int]) -> Prepared:
    """Return the run with the ports that another process chose."""
    servers = (
        replace(managed, port=ports.get(managed.name, managed.port))
        for managed in prepared.managed_servers.servers
    )
    return replace(prepared, managed_servers=ManagedServers(tuple(servers)))


def in_worker(prepared: Prepared, worker: int) -> Prepared:
    """Return the run as a worker (from 1) sees it, with the servers that each worker starts for itself."""
    servers = prepared.managed_servers.servers
    servers_of_worker = (each.of_worker(worker) if each.server.per_worker else each for each in servers)
    return replace(prepared, managed_servers=ManagedServers(tuple(servers_of_worker)))


def is_opened_per_worker(agent: AgentConfig, *, is_remote: bool) -> bool:
    """Return True if each worker opens the agent's servers for itself.

    An agent that runs in workers has its servers there if workers may be on other machines (`is_remote`). A
    fixed port, or a `server` that receives the addresses, makes them shared by the run.
    """
    if agent.per_worker or not is_remote or agent.server or not agent.beside:
        return agent.per_worker
    over_network = isinstance(agent, HttpAgent) and agent.app is None
    return not over_network and all(server.port is None for server in agent.beside.values())


def part_of(prepared: Prepared, *, per_worker: bool) -> Prepared:
    """Return the run with only the agents, and their servers, that each worker opens for itself, or not."""
    is_remote = prepared.request.options.is_remote
    every = prepared.plan.agents.items()
    agents = {
        name: agent for name, agent in every if is_opened_per_worker(agent, is_remote=is_remote) is per_worker
    }
    servers = (each for each in prepared.managed_servers.servers if each.server.per_worker is per_worker)
    plan = replace(prepared.plan, agents=agents)
    return replace(prepared, plan=plan, managed_servers=ManagedServers(tuple(servers)))


def _without_port(prepared: Prepared) -> list[ManagedServer]:
    servers = prepared.managed_servers.of_any(prepared.plan.agents)
    return [managed for managed in servers if managed.server.awaits_port and managed.port is None]


@contextmanager
def _with_free_ports(prepared: Prepared, servers: list[ManagedServer]) -> Iterator[Prepared]:
    if not servers:
        yield prepared
        return
    with ExitStack() as stack:
        with errors_as(ServerError, f"no free port can be had for {servers[0].called}: ", OSError):
            ports = stack.enter_context(free_ports(len(servers)))
        yield with_known_ports(prepared, dict(zip((managed.name for managed in servers), ports, strict=True)))


_SHOWN_SCENARIOS = 3
_MOST_WAYS = 2
_BULLET = "\n  - "
_HIDDEN = {
    ToolVisibility.RETURNED: "it runs its tools itself, and the real ones have run",
    ToolVisibility.REPORTED: "it does not report them",
    ToolVisibility.PARTIAL: "it made calls that nothing reported",
}


def tool_visibility_of_run(plan: Plan, results: Mapping[str, ScenarioResult]) -> dict[str, ToolVisibility]:
    """Return how the tool calls of each agent were visible in the whole run.

    Reported, if every turn showed that the agent reports its calls although its type does not promise it.
    Partial, if mock servers answered calls that the agent did not report.
    """
    visibilities: dict[str, ToolVisibility] = {}
    for name in plan.agents:
        units = _units_of(plan, name)
        totals = [results[unit.scope].totals for unit in units if unit.scope in results]
        turns, traits = sum(each.turns for each in totals), units[0].traits
        visibilities[name] = traits.visibility
        if traits.unreported and any(each.withholds_calls for each in totals):
            visibilities[name] = ToolVisibility.PARTIAL
        elif traits.visibility in (ToolVisibility.UNSEEN, ToolVisibility.PARTIAL):
            all_reported = turns > 0 and turns == sum(each.reporting_turns for each in totals)
            if all_reported and traits.replies_show_calls:
                visibilities[name] = ToolVisibility.REPORTED
    return visibilities


def _units_of(plan: Plan, agent: str) -> list[Unit]:
    return [unit for unit in plan.units if unit.agent == agent]


def check_mocks(plan: Plan) -> None:
    """Raise ConfigError if scenarios mock tools that the agent runs itself, so that real tools would run."""
    for name, agent in plan.agents.items():
        mocked = [unit for unit in _units_of(plan, name) if unit.scenario.is_mocked]
        if mocked and not returns_calls(agent) and not agent.mocks_reach_tools:
            may_run = "remove the mocks (`tools`, --mocks), and set unmocked_tools: passthrough"
            first, *others = ways_to_mock(agent)[:_MOST_WAYS]
            remedies = [first, f"if its real tools may run: {may_run}", *others]
            visibility = mocked[0].traits.visibility.words
            raise ConfigError(
                f"the mocks of {_listed(mocked)} cannot reach the tools of agent {name!r}: it runs its tools "
                f"itself (type: {agent.type}, tool calls: {visibility}), so the real ones would run. "
                "No conversation was started. To go on:"
                f"{''.join(f'{_BULLET}{remedy}' for remedy in remedies)}"
            )


def _check_beginnings(name: str, plan: Plan, agents: Mapping[str, Agent]) -> None:
    """Raise ConfigError for scenarios with a history or files that their agent cannot receive."""

    def lacks_history(unit: Unit) -> bool:
        key = unit.scope if unit.scope in agents else name
        return not (takes_history(agents[key]) or "messages" in plan.agents[key].sent_placeholders)

    config, units = plan.agents[name], _units_of(plan, name)
    keys = " or ".join(f"`{key}`" for key in config.templated)
    way = f"write {{{{messages}}}} into its {keys}" if keys else "write the messages into `turns`"
    without = [unit for unit in units if unit.scenario.history and lacks_history(unit)]
    textual = [unit for unit in units if unit.scenario.attachments and not takes_attachments(agents[name])]
    for option, lacking, why in (
        ("history", without, f"receives the user's last message only. To go on: {way}, or"),
        ("attachments", textual, "is sent text alone. To go on:"),
    ):
        if lacking:
            raise ConfigError(
                f"the `{option}` of {_listed(lacking)} cannot be sent to agent {name!r} (type: "
                f"{config.type}), which {why} leave `{option}` out. No conversation was started"
            )


def _listed(units: Sequence[Unit]) -> str:
    names = [f"{u.scenario.name!r} ({u.file}:{u.scenario.line})" for u in units]
    return f"scenario{'' if len(units) == 1 else 's'} {first_names(names, _SHOWN_SCENARIOS)}"


def agents_without_calls(
    plan: Plan, results: Mapping[str, ScenarioResult], visibilities: Mapping[str, ToolVisibility]
) -> dict[RunWarning, Sequence[Unit]]:
    """Warn about each agent that never called a tool although its scenarios mention tool calls."""
    warnings: dict[RunWarning, Sequence[Unit]] = {}
    for name, visibility in visibilities.items():
        of_agent = [(unit, results[unit.scope]) for unit in _units_of(plan, name) if unit.scope in results]
        # Failures alone already explain missing calls.
        replied = [(unit, result) for unit, result in of_agent if result.totals.slowest]
        of_calls = [unit for unit, _ in replied if speaks_of_calls(unit)]
        called = any(result.totals.tool_calls for _, result in replied)
        if visibility is not ToolVisibility.UNSEEN and of_calls and not called:
            untold = f"{_HIDDEN[visibility]} (then set `tool_visibility: unseen`)"
            message = (
                f"not one tool call of agent {name!r} was seen in the whole run, though {_listed(of_calls)} "
                f"{'has' if len(of_calls) == 1 else 'have'} mocks, trajectories or expected calls. Either it "
                "needed none (then add a scenario in which it calls a tool), or "
                f"{plan.agents[name].why_silent or untold}"
            )
            warnings[RunWarning(message, name, of_calls[0].file, of_calls[0].scenario.line)] = of_calls
    return warnings


def speaks_of_calls(unit: Unit) -> bool:
    """Return True if an agent of which no call was seen questions the verdict on the unit."""
    # The criteria of an evaluation set determine if the calls that it expects count.
    graded = any(grader.name in ABOUT_CALLS for grader in unit.graders)
    expected = any(turn.reference and turn.reference.tool_calls for turn in unit.scenario.turns)
    return unit.scenario.speaks_of_calls or (graded and expected)
