"""The mock servers and span receivers of a plan's agents: open them, check them, record real tools.

`open_servers` opens them for a run. `compare_real_tools` compares tool lists with the real servers, and
`forwarding_servers` with `CallRecorder` records calls to the real tools.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from anyio.abc import TaskGroup

from agentest.agents.call_source_addresses import UNUSED_KEYS, Addresses, model_addresses, with_user_variables
from agentest.agents.listener import HOST
from agentest.config.agent_types import AgentConfig, visibility_of_agent
from agentest.config.agents.companion_servers import McpMock, ModelGateway, Provider
from agentest.config.agents.server import Server
from agentest.config.file import LoadedConfig
from agentest.domain.messages import ToolSpec
from agentest.domain.tool_visibility import ToolVisibility, cannot_be_seen
from agentest.domain.transcript import ToolCall
from agentest.mocks.binding import ANY_ARGUMENTS, tool_specs
from agentest.mocks.resolver import MockResolver
from agentest.plugin import PLUGINS
from agentest.plugins.servers.active_conversations import Registry, ServerGroup, ServerInputs
from agentest.plugins.servers.mcp import real_server
from agentest.plugins.servers.port import Identity
from agentest.plugins.servers.server_calls import MockServerCalls, ServerCalls
from agentest.plugins.servers.worker_calls import MockProxy
from agentest.runner import plan as plans
from agentest.runner.call_sources import CallObservations, RunResources, ServerReports
from agentest.runner.prepare import Prepared, RunRequest, configure, prepared_for
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.support.errors import ConfigError, errors_as
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import Client, open_client
from agentest.support.templates import fill_known
from agentest.support.text import count, nearest
from agentest.support.trace_context import new_key


class RunServers(ServerCalls):
    """The servers of a run, in the process that has opened them."""

    def __init__(self, plan: plans.Plan, registry: Registry) -> None:
        super().__init__(registry.under_way)
        self.registry = registry
        self._plan = plan

    def addresses_of(self, agent: str) -> Addresses:
        """Return the addresses of an agent's servers."""
        group = self.registry.group_of(agent)
        return group.addresses if group else Addresses()

    def server_for(self, agent: str, server: Server, lane: int | None) -> Server:
        return with_server_addresses(server, self.addresses_of(agent).in_lane(lane))

    def changing_addresses(self, agent: str) -> str | None:
        """Name the addresses that change in every run. None if all servers have fixed ports."""
        free = [f"`{key}`" for key, each in self._plan.agents[agent].beside.items() if each.port is None]
        return f"the address of {' and '.join(free)} of agent {agent!r}, at a free port" if free else None

    def lane_ended(self, agent: str, lane: int) -> None:
        group = self.registry.group_of(agent)
        if group and group.model_traffic:
            group.model_traffic.close_lane(lane)

    def serve_worker(self, worker: Any, tasks: TaskGroup, recordings: Any) -> MockProxy:
        return MockProxy(self.registry, worker, tasks, recordings)


async def open_servers(resources: RunResources) -> RunServers:
    """Open the mock servers of all agents of the plan (`OpenCallSources`)."""
    plan = resources.prepared.plan
    registry = Registry(
        tuple(_groups(plan)),
        resources.reports.on_note,
        on_refused=resources.reports.observed.count_unclaimed,
        on_reached=lambda group: resources.reports.observed.add_reached(group.reached),
    )
    _check_gateways(plan, registry.groups)
    _check_ports(plan, registry.groups)
    _check_own_servers(plan, registry)
    for group in registry.groups:
        agents = [plan.agents[name] for name in group.agents]
        opening = _inputs(resources, registry, group)
        group.addresses = await _open(agents, opening)
        _check_mocks_are_served(opening, agents)
    return RunServers(plan, registry)


def _inputs(resources: RunResources, registry: Registry, group: ServerGroup) -> ServerInputs:
    prepared, plan = resources.prepared, resources.prepared.plan
    agents = [plan.agents[name] for name in group.agents]
    units = [unit for unit in plan.units if unit.agent in group.agents]
    tools: dict[str, ToolSpec] = {}  # of each tool the most detailed mock
    places: dict[str, str] = {}
    for unit in units:
        where = f" of scenario {unit.scenario.name!r} ({unit.file}:{unit.scenario.line})"
        for spec in tool_specs(unit.scenario.tools):
            if spec.name not in tools or tools[spec.name].parameters == ANY_ARGUMENTS:
                tools[spec.name] = spec
            places.setdefault(spec.name, where)
    handed_to_us = all(visibility_of_agent(agent) is ToolVisibility.RETURNED for agent in agents)
    gateway = agents[0].model_gateway
    return ServerInputs(
        registry=registry,
        group=group,
        tools=tuple(tools.values()),
        only_way=not handed_to_us and len(agents[0].mock_servers) == 1,
        passthrough=prepared.unmocked_tools == "passthrough",
        root=prepared.request.root,
        outputs=prepared.output_dir,
        client=resources.client,
        stack=resources.closing,
        on_note=resources.reports.on_note,
        redact=prepared.loaded.redact,
        alone=prepared.request.options.engine_feature.name == "local",
        spoken=frozenset(name for unit in units for name in unit.scenario.named_tools),
        mocked_in=places,
        # If the agent's model is replayed, its requests never reach the network.
        replays=gateway is not None and (gateway.mode or prepared.request.options.tape) == "replay",
        keep_span=resources.reports.keep_span,
        left_out=plan.left_out,
    )


def _check_mocks_are_served(opening: ServerInputs, agents: Sequence[AgentConfig]) -> None:
    """Raise ConfigError if no mock server has a mocked tool, so that the real tool would run."""
    group = opening.group
    # Mocks of a `returned` agent may be for tools that it hands over.
    returned = any(visibility_of_agent(agent) is ToolVisibility.RETURNED for agent in agents)
    if not agents[0].mock_servers or returned:
        return
    handed_over = {tool.name for agent in agents for tool in agent.sent_tools}
    unserved = [tool.name for tool in opening.tools if tool.name not in group.tools | handed_over]
    if not unserved:
        return
    name, mcp = unserved[0], agents[0].mcp_mock
    lists = [f"mcp_mock.tools ({mcp.tools})" if mcp.tools else "mcp_mock.upstream"] if mcp else []
    lists += [f"rest_mock.openapi ({rest.openapi})"] if (rest := agents[0].rest_mock) else []
    near = nearest(name, sorted(group.tools))
    hint = f"Did you mean {near!r}? " if near else ""
    record = (
        "; or, if the real server has it now, record the list again (agentest mock-server tools)"
        if mcp
        else ""
    )
    hands_over = any(agent.natural_visibility is ToolVisibility.RETURNED for agent in agents)
    visibility_hint = (
        "; or, if the agent hands it to the caller, tool_visibility: returned" if hands_over else ""
    )
    raise ConfigError(
        f"tool {name!r} has a mock{opening.mocked_in.get(name, '')}, and {' and '.join(lists)} of agent "
        f"{group.agents[0]!r} does not list it: the mock would never be called, and if the agent has such a "
        f"tool, the real one would run. {hint}Leave the mock out{record}{visibility_hint}"
    )


async def _open(agents: Sequence[AgentConfig], opening: ServerInputs) -> Addresses:
    agent = agents[0]
    mcp = rest = model = otlp = None
    if agent.mcp_mock:
        from agentest.plugins.servers.mcp.server import open_mcp_server

        mcp = await open_mcp_server(agent.mcp_mock, opening)
    if agent.rest_mock:
        from agentest.plugins.servers.rest.server import open_rest_server

        rest = await open_rest_server(agent.rest_mock, opening)
    if agent.model_gateway:
        from agentest.plugins.servers.model_gateway.server import open_model_gateway

        overrides = {
            name: each.model_gateway.override
            for name, each in zip(opening.group.agents, agents, strict=True)
            if each.model_gateway
        }
        lanes = agent.server.copies if agent.server else 1
        named = all("model_url" in each.sent_placeholders for each in agents)
        settings = _with_upstream(agent, opening)
        model = await open_model_gateway(settings, overrides, opening, lanes, names_conversations=named)
    if agent.traces:
        from agentest.plugins.servers.traces.server import open_traces_server

        otlp = await open_traces_server(agent.traces, opening)
    return Addresses(mcp=mcp, rest=rest, model=model, otlp=otlp, replays_model=opening.replays)


def _with_upstream(agent: AgentConfig, opening: ServerInputs) -> ModelGateway:
    settings, upstream = agent.model_gateway, dict[Provider, str]()
    assert settings is not None
    own = agent.server.env if agent.server else getattr(agent, "env", {})
    with errors_as(ConfigError, f"{opening.key_location('model_gateway')}: the agent's variable "):
        for variables in (own, os.environ):
            for provider, url in model_addresses(variables, settings.port).values():
                upstream.setdefault(cast("Provider", provider), url)
    return settings.model_copy(update={"upstream": upstream | settings.upstream})


def with_server_addresses(server: Server, addresses: Addresses) -> Server:
    """Return an agent's server with the addresses filled into its command and environment."""
    values = addresses.by_placeholder

    def filled(text: str) -> str:
        return fill_known(text, values)

    command = server.command
    env = with_user_variables(
        addresses.by_variable, {name: filled(text) for name, text in server.env.items()}
    )
    known = {**os.environ, **env}
    if addresses.by_variable and any(map(known.get, ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"))):
        for name, other in (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy")):
            direct = known.get(name) or known.get(other) or ""
            env[name] = direct if direct == "*" else ",".join([*filter(None, [direct]), HOST, "localhost"])
    if addresses.replays_model:
        env = {name: key for name, key in UNUSED_KEYS.items() if name not in os.environ} | env
    if addresses.mcp:
        path = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        # The folder of the plugin for google-adk comes last.
        plugin = PLUGINS.find("hook", "agentest.adk_plugin.FILE")
        folders = [str(plugin.load().parent)] if plugin else []
        env["PYTHONPATH"] = os.pathsep.join([*([path] if path else []), *folders])
    changed = {
        "command": filled(command) if isinstance(command, str) else list(map(filled, command)),
        "env": env,
    }
    return server.model_copy(update=changed)


def _groups(plan: plans.Plan) -> Iterator[ServerGroup]:
    known: list[tuple[object, list[str]]] = []
    for name, agent in plan.agents.items():
        if not agent.beside:
            continue
        gateway = agent.model_gateway and agent.model_gateway.model_copy(update={"override": None})
        shared = (agent.mcp_mock, agent.rest_mock, gateway, agent.traces, agent.server)
        names = next((names for settings, names in known if settings == shared), None)
        if names is None:
            known.append((shared, [name]))
        else:
            names.append(name)
    for _, names in known:
        exclusive = any(plan.agents[name].exclusive for name in names)
        called = bool(plan.agents[names[0]].mock_servers)
        places = {name: plan.agents[name].address for name in names}
        yield ServerGroup(tuple(names), Addresses(), exclusive=exclusive, called=called, places=places)


def _check_own_servers(plan: plans.Plan, registry: Registry) -> None:
    for name, agent in plan.agents.items():
        first = next(other for other in plan.agents if plan.agents[other].server == agent.server)
        if agent.server and registry.group_of(first) is not registry.group_of(name):
            raise ConfigError(
                f"agents {first!r} and {name!r} have the same `server`, which can receive the "
                f"address of only one mock server: give both the same `mcp_mock`, `rest_mock`, "
                f"`model_gateway` (but for its "
                "`override`) and `traces`, or each a `server` of its own"
            )


def _check_gateways(plan: plans.Plan, groups: Sequence[ServerGroup]) -> None:
    owners: dict[str, tuple[str, ServerGroup]] = {}
    for group in groups:
        for name, place in group.places.items():
            agent = plan.agents[name]
            if not agent.model_gateway or agent.server or "model_url" in agent.sent_placeholders:
                continue
            other, known = owners.setdefault(place, (name, group))
            if known is not group:
                raise ConfigError(
                    f"agents {other!r} and {name!r} are the same running agent, at {place}, but their "
                    "`model_gateway` settings differ in more than `override`: an agent can receive "
                    "the address of only one gateway. Send it the address ({{model_url}}), or let "
                    "`server` start one agent for each"
                )


def _check_ports(plan: plans.Plan, groups: Sequence[ServerGroup]) -> None:
    owners: dict[int, str] = {}
    for group in groups:
        for key, server in plan.agents[group.agents[0]].beside.items():
            owner = f"{key} of agent {group.agents[0]!r}"
            if server.port in owners:
                raise ConfigError(
                    f"{owner} and {owners[server.port]} have the same port, {server.port}, but different "
                    "settings: give each its own port, or both the same settings"
                )
            if server.port:
                owners[server.port] = owner


_KEYS = "mcp_mock: {upstream: <URL or command of the real server>, tools: <FILE>}"


async def compare_real_tools(
    loaded: LoadedConfig, root: Path, agent: str | None, *, write: bool
) -> list[list[str]]:
    """Request the tools of each real server (of one agent), and `write` them. Raises UsageError.

    Returns lines about each server: what was found, each difference from the file, and what to do.
    """
    _, agents = plans.agents_under_test(loaded.config, agent)
    with errors_as(lambda problem: ConfigError(loaded.redact(problem)), "", ConfigError):
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_client(AddressGuard()))
            servers = _servers_to_compare(agents, agent)
            return [await _compare(*server, root, client, stack, write=write) for server in servers]


def _servers_to_compare(agents: Mapping[str, AgentConfig], wanted: str | None) -> list[tuple[str, McpMock]]:
    chosen = {wanted: agents[wanted]} if wanted else agents
    if not any(agent.mcp_mock and agent.mcp_mock.upstream for agent in chosen.values()):
        who = f"agent {wanted!r}" if wanted else "no agent"
        raise ConfigError(
            f"{who} has {'no' if wanted else 'a'} real MCP server in its settings: write {_KEYS}"
        )
    servers: list[tuple[str, McpMock]] = []
    for name, agent in chosen.items():
        settings = agent.mcp_mock
        if settings is None or settings.upstream is None or settings in [known for _, known in servers]:
            continue
        if settings.tools is None:
            raise ConfigError(
                f"mcp_mock of agent {name!r} does not say where its tools are defined: write {_KEYS}"
            )
        servers.append((name, settings))
    return servers


async def _compare(
    agent: str, settings: McpMock, root: Path, client: Client, stack: AsyncExitStack, *, write: bool
) -> list[str]:
    def location(key: str) -> str:
        return f"{key} of agent {agent!r}"

    exists = real_server.tools_path(settings, root).exists()
    if not exists and not write:
        raise ConfigError(
            f"{location('mcp_mock.tools')}: {settings.tools} is missing: run `{real_server.RECORD}`"
        )
    before = real_server.stored_tools(settings, root, location) if exists else None
    upstream = real_server.open_upstream(settings, client, root, location)
    assert upstream is not None
    stack.push_async_callback(upstream.close)
    now = await real_server.tools_of(upstream, location)
    changes = real_server.differences(before, now) if before is not None else []
    if write and (changes or before is None):
        real_server.store_tools(settings, root, location, now)
    head = f"{settings.tools}: {count(len(now), 'tool')} of {upstream.description}"
    if not changes:
        return [f"{head}, {'written' if before is None else 'as recorded'}"]
    return [
        f"{head}, {'updated, ' if write else ''}{count(len(changes), 'difference')}:",
        *(f"  the real server's {change}" for change in changes),
        *([] if write else [f"{real_server.RECORD} updates the file"]),
    ]


_NAME = "recorded conversation"
_MOST_TURNS = 1000
_OTHER_WAYS = (
    "have it send its traces here (traces: true); or name the agent object itself, if a Python "
    "framework made it (type: custom)"
)
_UPSTREAM = {
    "mcp_mock": "the URL of the real MCP server, or the command that starts it",
    "rest_mock": "the base URL of the real API",
}


class CallRecorder:
    """Records the calls of every conversation, even if it is aborted."""

    def __init__(self) -> None:
        self._held: dict[str, MockResolver] = {}

    def on_mocks(self, conversation_id: str, mocks: MockResolver) -> None:
        """Register a conversation that begins (`sources.OnMocks`)."""
        self._held[conversation_id] = mocks

    @property
    def conversations(self) -> list[tuple[ToolCall, ...]]:
        """The calls so far of each conversation, in the order in which the conversations began."""
        return [mocks.calls for mocks in self._held.values()]

    @property
    def statuses(self) -> list[tuple[int | None, ...]]:
        """The HTTP status of each real tool's answer, nested like `conversations`; None if it has none."""
        return [mocks.record.statuses for mocks in self._held.values()]


def refused(observed: CallObservations) -> Iterator[str]:
    """Warn about calls that were not recorded because they belonged to no conversation."""
    for call, number in observed.unclaimed.items():
        yield f"left out {count(number, 'call')} of {call.tool!r}, which nobody answered: {call.why}"


@asynccontextmanager
async def forwarding_servers(
    prepared: Prepared, recorder: CallRecorder, stack: AsyncExitStack, on_note: Callable[[str], None]
) -> AsyncIterator[Addresses]:
    """Let the agent's mock servers forward all calls to the real tools. Raises ConfigError."""
    unit = prepared.plan.units[0]
    if not prepared.plan.agents[unit.agent].mock_servers:
        raise ConfigError(
            f"agent {unit.agent!r} has no mock server in front of its real tools: write "
            "mcp_mock.upstream or rest_mock.upstream, or talk to it (--say)"
        )
    client = await stack.enter_async_context(open_client(AddressGuard()))
    observed = CallObservations()
    reports = ServerReports(on_note=on_note, observed=observed)
    servers = await open_servers(RunResources(prepared, client, stack, reports))
    who = Identity(key=new_key(), session_id=None, conversation_id=_NAME, scenario=_NAME, agent=unit.agent)
    mocks = MockResolver(
        {}, scenario=_NAME, conversation_id=_NAME, unmocked_tools="passthrough", redact=prepared.loaded.redact
    )
    recorder.on_mocks(_NAME, mocks)
    async with servers.registry.under_way(who, MockServerCalls(who, mocks)):
        try:
            yield servers.addresses_of(unit.agent)
        finally:
            for note in refused(observed):
                on_note(note)


def with_real_tools(prepared: Prepared) -> Prepared:
    """Return the run without mocks, so that real tools answer. Raises ConfigError if none can be recorded."""
    plan = prepared.plan
    left_out = plan.left_out
    if left_out is not None:
        left_out = frozenset(name for unit in plan.units for name in unit.scenario.tools)
    for name, agent in plan.agents.items():
        check_recordable(name, agent)
    options = replace(prepared.request.options, unmocked_tools="passthrough")
    entries = tuple(
        plans.map_units(
            plan.entries, lambda unit: replace(unit, scenario=replace(unit.scenario, tools={}, recorded=None))
        )
    )
    notes = prepared.notes
    if mocked := sum(bool(unit.scenario.tools) for unit in plan.units):
        which = "the scenario are" if mocked == 1 else f"{mocked} scenarios are"
        notes = (*notes, f"recording: the mocks of {which} not used, and the real tools run")
    return replace(
        prepared,
        request=replace(prepared.request, options=options),
        unmocked_tools=options.unmocked_tools,
        plan=replace(plan, entries=entries, units=plans.units_among(entries), left_out=left_out),
        notes=notes,
    )


def check_recordable(name: str, agent: AgentConfig) -> None:
    """Raise ConfigError if no real tool of the agent can be observed."""
    for key, server in (("mcp_mock", agent.mcp_mock), ("rest_mock", agent.rest_mock)):
        runs_them = server is agent.mcp_mock and agent.can_run_real_tools
        if server and not server.upstream and not runs_them:
            raise ConfigError(
                f"{key}.upstream of agent {name!r} is missing, so no real tool can answer: "
                f"write {_UPSTREAM[key]}"
            )
    if agent.mock_servers:
        return
    if visibility_of_agent(agent) is ToolVisibility.UNSEEN:
        raise ConfigError(
            f"cannot record: {cannot_be_seen(name)}. If its tools are behind MCP or HTTP, name those "
            "servers (mcp_mock.upstream, rest_mock.upstream), and give the agent the addresses of the mock "
            "servers instead ({{mcp_url}}, {{rest_url}}). Otherwise "
            f"{'; or '.join([*agent.ways_to_see, _OTHER_WAYS])}"
        )
    if not agent.has_own_tools:
        raise ConfigError(
            f"agent {name!r} (type: {agent.type}) hands its tool calls to Agentest, which has no real tools "
            "to call: there is nothing to record. Write the mocks yourself (`tools` of a scenario); or, "
            "if its tools are behind MCP or HTTP, name those: mcp_mock.upstream, rest_mock.upstream"
        )


def prepare_one_conversation(request: RunRequest, turns: Sequence[str]) -> Prepared:
    """Prepare one conversation without a scenario file; no `turns`: a caller's user. Raises UsageError."""
    loaded = configure(request)
    under_test, known = plans.agents_under_test(loaded.config, request.options.agent)
    if len(under_test) > 1:
        raise ConfigError(f"choose one agent with --agent: {', '.join(under_test)}")
    name = under_test[0]
    # Every call to its servers belongs to the one conversation, even if the call does not identify it.
    server = known[name].server
    alone = server and server.model_copy(update={"copies": 1})
    known[name] = known[name].model_copy(update={"exclusive": True, "server": alone})
    scenario = Scenario(
        name=_NAME, file=str(request.root / _NAME), line=0, turns=tuple(ScriptedTurn(text) for text in turns)
    )
    unit = plans.Unit(
        scenario=scenario,
        agent=name,
        file=_NAME,
        scope=f"{_NAME!r} @ {name!r}",
        slug="",
        conversations=1,
        max_turns=len(turns) + 1 if turns else _MOST_TURNS,
        metrics=(),
        thresholds={},
    )
    entries = tuple(plans.finalized_entries([unit], known, request.root, loaded.config))
    plan = plans.Plan(entries, {name: known[name]}, False, (), plans.units_among(entries), left_out=None)
    return with_real_tools(prepared_for(request, loaded, plan, ()))
