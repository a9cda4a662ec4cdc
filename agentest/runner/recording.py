"""Runs that record what real tools answer: no mock answers, and every call is kept."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from agentest.config.agent_types import AgentConfig, hands_calls_over, sight_of
from agentest.config.ways_to_see import ways_to_mock
from agentest.conversation.serving import Served
from agentest.domain.tool_visibility import Sight, cannot_be_seen
from agentest.domain.transcript import ToolCall
from agentest.mock_servers.port import Addresses, Identity
from agentest.mock_servers.registry import Registry
from agentest.mocks.resolver import MockResolver
from agentest.runner.beside import open_servers
from agentest.runner.plan import Plan, Unit, agents_under_test, placed
from agentest.runner.prepare import Prepared, Request, configure, prepared_for
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.support.errors import ConfigError
from agentest.support.http.client import open_client
from agentest.support.http.guard import AddressGuard
from agentest.support.text import count
from agentest.support.trace_context import new_key

_NAME = "recorded conversation"
_HANDS_ALL_OVER = ("chat_completions", "asgi", "anthropic_messages")
"""Types whose agents call no tool themselves."""
_MOST_TURNS = 1000
_OTHER_WAYS = (
    "have it send its traces here (traces: true); or name the agent object itself, where it is one of a "
    "framework in Python (type: custom)"
)
_UPSTREAM = {
    "mcp_mock": "the URL of the real MCP server, or the command that starts it",
    "rest_mock": "the base URL of the real API",
}


class Recorder:
    """Keeps the calls of every conversation, also of one that is broken off."""

    def __init__(self) -> None:
        self._held: dict[str, MockResolver] = {}

    def on_mocks(self, conversation_id: str, mocks: MockResolver) -> None:
        """A conversation begins (`run.sources.OnMocks`)."""
        self._held[conversation_id] = mocks

    @property
    def conversations(self) -> list[tuple[ToolCall, ...]]:
        """The calls so far of each conversation, in the order in which they began."""
        return [mocks.calls for mocks in self._held.values()]

    @property
    def statuses(self) -> list[tuple[int | None, ...]]:
        """Of each call of the `conversations` the status of HTTP with which the real tool answered."""
        return [mocks.statuses for mocks in self._held.values()]


def refused(registry: Registry | None) -> Iterator[str]:
    """What to say of calls that belonged to no conversation: they are not among the recorded."""
    for one, number in registry.unclaimed.items() if registry else ():
        yield f"left out {count(number, 'call')} of {one.tool!r}, which nobody answered: {one.why}"


@asynccontextmanager
async def serving(
    prepared: Prepared, recorder: Recorder, stack: AsyncExitStack, on_note: Callable[[str], None]
) -> AsyncIterator[Addresses]:
    """Let the servers beside the agent pass calls on to the real tools. All calls are of one conversation.

    Raises ConfigError.
    """
    unit = prepared.plan.units[0]
    if not prepared.plan.agents[unit.agent].mock_servers:
        raise ConfigError(
            f"agent {unit.agent!r} has no mock server that could stand before its real tools: write "
            "mcp_mock.upstream or rest_mock.upstream, or talk to it (--say)"
        )
    client = await stack.enter_async_context(open_client(AddressGuard()))
    registry = await open_servers(prepared, client, stack, on_note)
    who = Identity(key=new_key(), session_id=None, conversation_id=_NAME, scenario=_NAME, agent=unit.agent)
    mocks = MockResolver(
        {}, scenario=_NAME, conversation_id=_NAME, unmocked_tools="passthrough", redact=prepared.loaded.redact
    )
    recorder.on_mocks(_NAME, mocks)
    group = registry.group_of(unit.agent)
    assert group is not None
    async with registry.under_way(who, Served(who, mocks)):
        try:
            yield group.addresses
        finally:
            for note in refused(registry):
                on_note(note)


def with_real_tools(prepared: Prepared) -> Prepared:
    """The same run without mocks: the real tools answer. Raises ConfigError where none could be recorded."""
    plan = prepared.plan
    left_out = plan.left_out
    if left_out is not None:
        left_out = frozenset(name for unit in plan.units for name in unit.scenario.tools)
    for name, agent in plan.agents.items():
        check_recordable(name, agent)
    options = replace(prepared.request.options, unmocked_tools="passthrough")
    entries = tuple(_unmocked(entry) if isinstance(entry, Unit) else entry for entry in plan.entries)
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    notes = [*prepared.notes, *_notes(plan)]
    return replace(
        prepared,
        request=replace(prepared.request, options=options),
        plan=replace(plan, entries=entries, units=units, left_out=left_out),
        notes=tuple(notes),
    )


def _unmocked(unit: Unit) -> Unit:
    return replace(unit, scenario=replace(unit.scenario, tools={}, recorded=None))


def _notes(plan: Plan) -> Iterator[str]:
    mocked = sum(bool(unit.scenario.tools) for unit in plan.units)
    if mocked:
        which = "the scenario are" if mocked == 1 else f"{mocked} scenarios are"
        yield f"recording: the mocks of {which} left out, and the real tools run"


def check_recordable(name: str, agent: AgentConfig) -> None:
    """Raise ConfigError where no real tool of an agent could be seen to answer."""
    for key, server in (("mcp_mock", agent.mcp_mock), ("rest_mock", agent.rest_mock)):
        if server and not server.upstream and not (server is agent.mcp_mock and _asked_by_a_plugin(agent)):
            raise ConfigError(
                f"{key}.upstream of agent {name!r} is missing, so there is no real tool that could answer: "
                f"write there {_UPSTREAM[key]}"
            )
    if agent.mock_servers:
        return
    if sight_of(agent) is Sight.UNSEEN:
        raise ConfigError(
            f"nothing can be recorded: {cannot_be_seen(name)}. Where its tools are behind MCP or HTTP, name "
            "those servers, and give the agent the addresses of ours in their place (mcp_mock.upstream and "
            "{{mcp_url}}, rest_mock.upstream and {{rest_url}}). Else "
            f"{'; or '.join([*agent.ways_to_see, _OTHER_WAYS])}"
        )
    if agent.type in _HANDS_ALL_OVER:
        raise ConfigError(
            f"agent {name!r} (type: {agent.type}) hands its tool calls to Agentest, which has no real tools "
            "to call: there is nothing to record. Write the mocks yourself (`tools` of a scenario); or, "
            "where its tools are behind MCP or HTTP, name those: mcp_mock.upstream, rest_mock.upstream"
        )


def _asked_by_a_plugin(agent: AgentConfig) -> bool:
    """Whether the real tools are the agent's own, which a plugin in its server lets run."""
    return agent.type == "adk"


def ways_to_mocks(agent: AgentConfig) -> list[str]:
    """How mocks could reach the tools of an agent, each in words; []: they do."""
    reached = hands_calls_over(agent) or agent.mock_servers
    return [] if reached else ways_to_mock(agent)


def one_conversation(
    request: Request, turns: Sequence[str], environ: MutableMapping[str, str] = os.environ
) -> Prepared:
    """A run of one conversation with one agent, and no scenario file. Raises UsageError.

    Args:
        turns: what the user says; (): somebody else decides.
    """
    loaded = configure(request, environ)
    under_test, known = agents_under_test(loaded.config, request.options.agent)
    if len(under_test) > 1:
        raise ConfigError(f"choose one agent with --agent: {', '.join(under_test)}")
    name = under_test[0]
    # What comes to its servers is of the one conversation, whether it says so or not.
    known[name] = known[name].model_copy(update={"exclusive": True})
    plan = _plan(_unit(name, request, turns), known, request)
    return with_real_tools(prepared_for(request, loaded, plan, (), environ))


def _plan(unit: Unit, known: Mapping[str, AgentConfig], request: Request) -> Plan:
    entries = tuple(placed([unit], known, request.root))
    units = tuple(entry for entry in entries if isinstance(entry, Unit))
    return Plan(entries, {unit.agent: known[unit.agent]}, False, (), units, left_out=None)


def _unit(agent: str, request: Request, turns: Sequence[str]) -> Unit:
    scenario = Scenario(
        name=_NAME,
        file=str(request.root / _NAME),
        line=0,
        turns=tuple(ScriptedTurn(text) for text in turns),
    )
    return Unit(
        scenario=scenario,
        agent=agent,
        file=_NAME,
        scope=f"{_NAME!r} @ {agent!r}",
        slug="",
        conversations=1,
        max_turns=len(turns) + 1 if turns else _MOST_TURNS,
        metrics=(),
        thresholds={},
    )
