"""The servers that stand beside the agents of a plan: opened, and what they found out at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from agentest.adk_plugin import FOLDER
from agentest.config.agent_types import AgentConfig, sight_of
from agentest.config.agents.server import Server
from agentest.domain.messages import ToolSpec
from agentest.domain.results import RunWarning
from agentest.domain.tool_visibility import Sight
from agentest.mock_servers.opening import Opening
from agentest.mock_servers.port import Addresses
from agentest.mock_servers.registry import WAYS_TO_NAME, Group, Registry, Unclaimed
from agentest.mock_servers.telemetry import with_own
from agentest.mocks.schemas import ANY_ARGUMENTS, tool_specs
from agentest.runner.plan import Plan, wished_unmocked_tools
from agentest.runner.prepare import Prepared
from agentest.support.errors import ConfigError
from agentest.support.http.client import Client
from agentest.support.spelling import nearest
from agentest.support.templates import filled_where_known
from agentest.support.text import count


async def open_servers(
    prepared: Prepared,
    client: Client,
    stack: AsyncExitStack,
    on_note: Callable[[str], None],
    keep_span: Callable[[bytes], object] | None = None,
) -> Registry:
    """Open the servers of all agents of the plan; the stack closes them. Raises ConfigError.

    `keep_span` receives the spans of agents, each a line of JSON.
    """
    plan = prepared.plan
    registry = Registry(tuple(_groups(plan)), on_note)
    _check_ports(plan, registry.groups)
    _check_own_servers(plan, registry)
    config, options = prepared.loaded.config, prepared.request.options
    for group in registry.groups:
        agents = [plan.agents[name] for name in group.agents]
        opening = Opening(
            registry=registry,
            group=group,
            tools=_tools_of(plan, group.agents),
            only_way=_is_only_way(agents),
            passthrough=wished_unmocked_tools(config, options) == "passthrough",
            root=prepared.request.root,
            client=client,
            stack=stack,
            on_note=on_note,
            redact=prepared.loaded.redact,
            spoken=_spoken_of(plan, group.agents),
            mocked_in=_places_of_mocks(plan, group.agents),
            keep_span=keep_span,
            left_out=plan.left_out,
        )
        group.addresses = await _opened(agents[0], opening)
        _check_mocks_are_served(opening, agents)
    return registry


def _check_mocks_are_served(opening: Opening, agents: Sequence[AgentConfig]) -> None:
    """Raise ConfigError where a mock is of a tool that no mock server has: the real tool would run."""
    group = opening.group
    if not agents[0].mock_servers or any(_may_have_others(agent) for agent in agents):
        return
    handed_over = {tool.name for agent in agents for tool in agent.sent_tools}
    lost = [tool.name for tool in opening.tools if tool.name not in group.tools | handed_over]
    if not lost:
        return
    name, mcp = lost[0], agents[0].mcp_mock
    lists = [f"mcp_mock.tools ({mcp.tools})" if mcp.tools else "mcp_mock.upstream"] if mcp else []
    lists += [f"rest_mock.openapi ({rest.openapi})"] if (rest := agents[0].rest_mock) else []
    near = nearest(name, sorted(group.tools))
    meant = f"Did you mean {near!r}? " if near else ""
    record = "; or, if the real server has it now, record the list again (agentest mcp-tools)" if mcp else ""
    hands_over = any(agent.natural_sight is Sight.RETURNED for agent in agents)
    handed = "; or, if the agent hands it to the caller, tool_visibility: returned" if hands_over else ""
    raise ConfigError(
        f"tool {name!r} has a mock{opening.mocked_in.get(name, '')}, and {' and '.join(lists)} of agent "
        f"{group.agents[0]!r} does not list it: the mock would never be called, and if the agent has such a "
        f"tool, the real one would run. {meant}Leave the mock out{record}{handed}"
    )


def _may_have_others(agent: AgentConfig) -> bool:
    """Whether mocks may be of tools that the agent hands over, or that its protocol would report."""
    return sight_of(agent) is Sight.RETURNED


def _is_only_way(agents: Sequence[AgentConfig]) -> bool:
    """Whether mocks reach the tools of agents with the same servers by one of these alone."""
    handed_to_us = all(sight_of(agent) is Sight.RETURNED for agent in agents)
    return not handed_to_us and len(agents[0].mock_servers) == 1


async def _opened(agent: AgentConfig, opening: Opening) -> Addresses:
    """Open what an agent has; a server's module is imported only where there is one."""
    mcp = rest = otlp = None
    if agent.mcp_mock:
        from agentest.mock_servers.mcp.server import open_mcp_server

        mcp = await open_mcp_server(agent.mcp_mock, opening)
    if agent.rest_mock:
        from agentest.mock_servers.rest.server import open_rest_server

        rest = await open_rest_server(agent.rest_mock, opening)
    if agent.traces:
        from agentest.tracing.server import open_traces_server

        otlp = await open_traces_server(agent.traces, opening)
    return Addresses(mcp=mcp, rest=rest, otlp=otlp)


def told_addresses(server: Server, addresses: Addresses) -> Server:
    """An agent's server that is started with the addresses, in its command and its environment."""
    values = addresses.by_placeholder

    def told(text: str) -> str:
        return filled_where_known(text, values)

    command = server.command
    env = with_own(addresses.by_variable, {name: told(text) for name, text in server.env.items()})
    if addresses.mcp:
        env["PYTHONPATH"] = _with_adk_plugin(env.get("PYTHONPATH", os.environ.get("PYTHONPATH")))
    changed = {"command": told(command) if isinstance(command, str) else list(map(told, command)), "env": env}
    return server.model_copy(update=changed)


def _with_adk_plugin(path: str | None) -> str:
    """The folders in which Python looks for modules, and last that of the plugin for google-adk."""
    return os.pathsep.join([*([path] if path else []), str(FOLDER)])


def untold_address(name: str, agent: AgentConfig) -> str | None:
    """The addresses that are new in every run, in words; None: all servers of ours have fixed ports."""
    free = [f"`{key}`" for key, server in agent.beside.items() if server.port is None]
    return f"the address of {' and '.join(free)} of agent {name!r}, at a free port" if free else None


def _groups(plan: Plan) -> Iterator[Group]:
    """The agents that have servers; those that are told the same addresses share them."""
    known: list[tuple[object, list[str]]] = []
    for name, agent in plan.agents.items():
        if not agent.beside:
            continue
        shared = (agent.mcp_mock, agent.rest_mock, agent.traces, agent.server)
        names = next((names for settings, names in known if settings == shared), None)
        if names is None:
            known.append((shared, [name]))
        else:
            names.append(name)
    for _, names in known:
        exclusive = any(plan.agents[name].exclusive for name in names)
        called = bool(plan.agents[names[0]].mock_servers)
        places = {name: plan.agents[name].address for name in names}
        yield Group(tuple(names), Addresses(), exclusive=exclusive, called=called, places=places)


def _check_own_servers(plan: Plan, registry: Registry) -> None:
    """Raise ConfigError where one server of agents would have to be told different addresses."""
    owners: list[str] = []
    for name, agent in plan.agents.items():
        first = next((other for other in owners if plan.agents[other].server == agent.server), None)
        if agent.server is None or first is None:
            owners.append(name)
        elif registry.group_of(first) is not registry.group_of(name):
            raise ConfigError(
                f"agents {first!r} and {name!r} have the same `server`, which can be told the address of one "
                "mock server alone: give both the same `mcp_mock`, `rest_mock` and `traces`, or each a "
                "`server` of its own"
            )


def _check_ports(plan: Plan, groups: Sequence[Group]) -> None:
    """Raise ConfigError where servers that differ have one port."""
    taken: dict[int, str] = {}
    for group in groups:
        for key, server in plan.agents[group.agents[0]].beside.items():
            place = f"{key} of agent {group.agents[0]!r}"
            if server.port in taken:
                raise ConfigError(
                    f"{place} and {taken[server.port]} have the same port, {server.port}, and are not the "
                    "same: give each its own port, or both the same settings"
                )
            if server.port:
                taken[server.port] = place


def _tools_of(plan: Plan, agents: Sequence[str]) -> tuple[ToolSpec, ...]:
    """The mocks of all scenarios that are held with these agents; of each the one that says most."""
    tools: dict[str, ToolSpec] = {}
    for unit in plan.units:
        if unit.agent in agents:
            for spec in tool_specs(unit.scenario.tools):
                if spec.name not in tools or tools[spec.name].parameters == ANY_ARGUMENTS:
                    tools[spec.name] = spec
    return tuple(tools.values())


def _spoken_of(plan: Plan, agents: Sequence[str]) -> frozenset[str]:
    """The tools that the trajectories of these agents' scenarios name."""
    units = [unit for unit in plan.units if unit.agent in agents]
    return frozenset(name for unit in units for name in unit.scenario.named_tools)


def _places_of_mocks(plan: Plan, agents: Sequence[str]) -> dict[str, str]:
    places: dict[str, str] = {}
    for unit in plan.units:
        if unit.agent in agents:
            for name in unit.scenario.tools:
                places.setdefault(
                    name, f" of scenario {unit.scenario.name!r} ({unit.file}:{unit.scenario.line})"
                )
    return places


def warnings_of_unclaimed(
    plan: Plan, refused: Mapping[Unclaimed, int], redact: Callable[[str], str]
) -> tuple[RunWarning, ...]:
    """A warning for each kind of call that was refused, as it belonged to no conversation."""
    warnings = (_warning(plan, one, number) for one, number in refused.items())
    return tuple(replace(warning, message=redact(warning.message)) for warning in warnings)


def _warning(plan: Plan, one: Unclaimed, number: int) -> RunWarning:
    first = next(unit for unit in plan.units if unit.agent == one.agent)
    promised = plan.agents[one.agent].exclusive
    alone = "" if promised else "set exclusive: true (one conversation at a time); or, to hold many at once, "
    message = (
        f"{count(number, 'call')} of tool {one.tool!r} that came to the servers beside agent {one.agent!r} "
        f"{'was' if number == 1 else 'were'} refused: {one.why}. What it would have broken is not known, so "
        "this run is errored. If the agent makes such calls after its reply, have it reply after them; where "
        "they come without a name, or with the trace of an earlier conversation, "
        f"{alone}{WAYS_TO_NAME}"
    )
    return RunWarning(message, one.agent, first.file, first.scenario.line)
