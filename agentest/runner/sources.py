"""The sources of a run's conversations: live agents, or an earlier run.

To add a source, implement `SourceFactory` and `ConversationSource`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anyio.abc import TaskGroup

from agentest.agents.port import Agent, AgentCopies, is_conversational
from agentest.conversation.turn_loop import ConversationSpec, OnTurn, TurnLoop, session_id_of, with_state
from agentest.conversation.turn_progress import CallSource
from agentest.conversation.user import MutatedUser, OfflineUser, RedactedUser, ScriptedUser, User
from agentest.domain.end_reason import Ending
from agentest.domain.messages import UserText
from agentest.domain.results import RunWarning
from agentest.domain.transcript import Blame, Conversation, Failure, Turn
from agentest.mocks.resolver import MockResolver
from agentest.models.port import CallKey, Models
from agentest.runner.agents import (
    OnOutput,
    awaits_calls,
    check_mocks,
    connected_agents,
    part_of,
    start_servers,
    with_ports,
)
from agentest.runner.plan import Unit, unmocked_tools_setting
from agentest.runner.prepare import Prepared
from agentest.runner.session import RunSession
from agentest.runner.tools import known_tools, read_mock_server_tools, tools_of_unit
from agentest.scenarios.calls import is_one_tool
from agentest.support.dates import format_date
from agentest.support.errors import ConfigError
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import count
from agentest.support.trace_context import new_key

if TYPE_CHECKING:
    from agentest.conversation.simulated_tools import SimulatedTools
    from agentest.conversation.simulated_user import UserTools
    from agentest.domain.attacks import Attack
    from agentest.mock_servers.port import Conversations, Identity, ModelAccess, WaitingBlock
    from agentest.mock_servers.registry import Registry, UnclaimedCall
    from agentest.plugins.explore.attacker import AttackUser

PickUser = Callable[[Unit, int], User]
OnMocks = Callable[[str, MockResolver], None]
"""Receives the id of each conversation that begins, and its mocks."""
_MIN_MOCK_TIMEOUT_S = 30.0
"""The minimum time limit of a mock, in seconds. The agent's timeout may be shorter."""


class ConversationSource(Protocol):
    """Provides the conversations of a unit."""

    async def converse(
        self,
        unit: Unit,
        number: int,
        conversation_id: str,
        on_turn: OnTurn,
        outside: WaitingBlock = nullcontext,
        attempt: int = 0,
    ) -> Conversation:
        """Return the conversation of this number (from 1).

        Args:
            on_turn: receives all closed turns whenever one closes.
            outside: opens a block in which the conversation waits for others to end.
            attempt: number of earlier attempts at this conversation.
        """
        ...

    def user_instructions(self, unit: Unit) -> str | None:
        """Return the instructions of the model that plays the live user; None if there is no such model."""
        ...


EarlierConversation = Callable[[Unit, int], Conversation]
"""Returns the conversation of a unit that an earlier run completed, by its number from 1."""
MakeSource = Callable[[Models, AsyncExitStack], Awaitable[ConversationSource]]
"""Creates the source in the process that uses it, after the models are open, because one may play the user.

The stack closes everything that it opens. Raises ConfigError.
"""


@dataclass(frozen=True, slots=True)
class Origin:
    """An open source of conversations, in the run's own process."""

    make: MakeSource
    registry: Registry | None = None
    """The conversations in progress, if agents have mock servers or spans."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Warnings about an earlier run's calls that belonged to no conversation."""
    earlier: EarlierConversation | None = None
    """The conversations of an earlier run; None: conversations are live."""
    keep_span: Callable[[bytes], object] | None = None
    keep_output: OnOutput | None = None
    """Receive the spans and the output of agents that workers started."""
    refused: dict[UnclaimedCall, int] = field(default_factory=dict)
    """Calls at those agents' servers that belonged to no conversation → how often."""
    reached: set[tuple[str, str]] = field(default_factory=set)
    """(Agent, key of a mock server) for agents that workers started and that connected to the server."""

    def is_reached(self, agent: str, key: str) -> bool:
        """Return True if a client of the agent ever connected to this mock server, or in an earlier run."""
        group = self.registry.group_of(agent) if self.registry else None
        reached = self.reached | (group.reached if group else frozenset())
        return self.earlier is not None or (agent, key) in reached

    def warnings_of_unclaimed_calls(self, prepared: Prepared) -> tuple[RunWarning, ...]:
        """Return warnings about calls that belonged to no conversation, in an earlier part of the run too."""
        return (
            *self.unclaimed,
            *_unclaimed_call_warnings(prepared, self.refused),
            *(prepared.resumed_run.unclaimed if prepared.resumed_run else ()),
            *unclaimed_call_warnings(prepared, self.registry),
        )


def unclaimed_call_warnings(prepared: Prepared, registry: Registry | None) -> tuple[RunWarning, ...]:
    """Return warnings about calls to the run's servers that belonged to no conversation."""
    return _unclaimed_call_warnings(prepared, registry.unclaimed) if registry else ()


def _unclaimed_call_warnings(
    prepared: Prepared, calls: Mapping[UnclaimedCall, int]
) -> tuple[RunWarning, ...]:
    if not calls:
        return ()
    from agentest.plugins.servers.start import warnings_of_unclaimed

    return warnings_of_unclaimed(prepared.plan, calls, prepared.loaded.redact)


class SourceFactory(Protocol):
    """A source of conversations that is not open yet."""

    async def open(self, session: RunSession, opened: AsyncExitStack, tasks: TaskGroup) -> Origin:
        """Open what the conversations need; `opened` closes it. Raises UsageError."""
        ...


@dataclass(frozen=True, slots=True)
class LiveAgents:
    """Live conversations with the agents of the plan."""

    on_mocks: OnMocks | None = None
    keep_span: Callable[[bytes], object] | None = None
    """Receives the agents' spans, each a line of JSON."""
    keep_output: OnOutput | None = None
    """Receives the output of the servers that the run starts."""

    async def open(self, session: RunSession, opened: AsyncExitStack, tasks: TaskGroup) -> Origin:
        check_mocks(session.prepared.plan)
        for name, agent in session.prepared.plan.agents.items() if session.has_workers else ():
            if awaits_calls(agent):
                raise ConfigError(
                    f"agent {name!r} sends its replies to `reply_webhook`, which is in one process: run "
                    "without --workers and --engine"
                )
        local_part = part_of(session.prepared, per_worker=False) if session.has_workers else session.prepared
        prepared, on_note = opened.enter_context(with_ports(local_part)), session.on_note
        started = await start_servers(
            prepared, opened, tasks, on_note, self.keep_span, session.say, self.keep_output
        )

        async def make(models: Models, stack: AsyncExitStack) -> ConversationSource:
            agents = await connected_agents(prepared, started.client, stack, on_note, on_stray=count_stray)
            if models.judge:
                _read_mock_server_tools(prepared)
            return LiveConversations(
                prepared, agents, models, registry=started.registry, on_mocks=self.on_mocks
            )

        def count_stray(agent: str, why: str) -> None:
            from agentest.mock_servers.registry import UnclaimedCall

            call = UnclaimedCall(agent=agent, tool="", why=why)
            origin.refused[call] = origin.refused.get(call, 0) + 1

        origin = Origin(make, started.registry, keep_span=self.keep_span, keep_output=self.keep_output)
        return origin


def _read_mock_server_tools(prepared: Prepared) -> list[str]:
    """Read the tools of mock servers for judges. Returns notes about files that cannot be read."""
    return list(read_mock_server_tools({unit.agent: unit.traits.tools for unit in prepared.plan.units}))


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Finished conversations of an earlier run, to be judged again."""

    conversations: Mapping[str, Sequence[Conversation]]
    """Scope of a unit → its conversations."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Warnings about its calls that belonged to no conversation; their effect is still unknown."""

    async def open(self, session: RunSession, opened: AsyncExitStack, tasks: TaskGroup) -> Origin:
        del opened, tasks  # nothing to open
        if session.model_names.get("judge"):
            for note in _read_mock_server_tools(session.prepared):
                session.on_note(note)

        def earlier(unit: Unit, number: int) -> Conversation:
            return self.conversations[unit.scope][number - 1]

        async def make(*_: object) -> ConversationSource:
            return FinishedConversations(earlier)

        return Origin(make, unclaimed=self.unclaimed, earlier=earlier)


@dataclass(frozen=True, slots=True)
class LiveConversations:
    """Runs live conversations with open agents and models, as configured."""

    prepared: Prepared
    agents: Mapping[str, Agent]
    models: Models
    pick_user: PickUser | None = None
    """Chooses a user to replace the scenario's own."""
    registry: Conversations | None = None
    """The conversations in progress, to which servers assign calls; None: no agent has such servers."""
    on_mocks: OnMocks | None = None

    async def converse(
        self,
        unit: Unit,
        number: int,
        conversation_id: str,
        on_turn: OnTurn,
        outside: WaitingBlock = nullcontext,
        attempt: int = 0,
    ) -> Conversation:
        scenario = unit.scenario
        spec = ConversationSpec(
            conversation_id,
            scenario.name,
            unit.max_turns,
            scenario.session,
            session_id_of(scenario.session, conversation_id),
            scenario.date,
            keeps_state=scenario.keeps_state,
            approve=scenario.approve_in,
        )
        mocks = self._mocks(unit, conversation_id, number, attempt)
        if self.on_mocks:
            self.on_mocks(conversation_id, mocks)
        user_tools = self._user_tools(unit, mocks)
        user = self.pick_user(unit, number) if self.pick_user else None
        attacker = None
        if scenario.attack and user is None:
            user = attacker = self._attacker(scenario.attack, unit, number, attempt, mocks)
        user = user or self._user(unit, number, attempt, user_tools)
        if unit.scenario.mutations and not unit.scenario.scripted:
            from agentest.scenarios.mutations import mutated_message

            user = MutatedUser(user, partial(mutated_message, unit.scenario.mutations, unit.scenario.name))

        async def run(*sources: CallSource, lane: int | None = None) -> Conversation:
            agent, servers = self.agents[unit.agent], self.prepared.managed_servers.of(unit.agent, lane)
            if lane is not None and isinstance(agent, AgentCopies):
                agent = agent.of_lane(lane)
            redact = self.prepared.loaded.redact.error
            loop = TurnLoop(
                spec, agent, user, mocks, sources, on_turn=on_turn, redact=redact, servers=servers
            )
            conversation = await loop.run()
            if attacker:
                conversation = replace(conversation, attack=await attacker.outcome(conversation))
            return replace(conversation, user_calls=user_tools.calls) if user_tools else conversation

        config = self.prepared.plan.agents[unit.agent]
        in_process: list[CallSource] = []
        if config.in_process or config.type == "custom":
            from agentest.conversation.in_process_calls import InProcessCalls

            in_process.append(InProcessCalls(mocks, mocks_inside=unit.traits.mocks_inside))
        if self.registry is None or not config.beside:
            return await run(*in_process)
        from agentest.domain.tool_visibility import SeenBy
        from agentest.plugins.servers.server_calls import MockServerCalls, ModelCalls, TracedCalls

        served = MockServerCalls(_identity(unit, spec), mocks, unit.traits.tool_names)
        access = self._model_access(unit, number, attempt) if config.model_gateway else None
        async with self.registry.under_way(served.who, served, outside, access) as period:
            served.addresses = period.addresses
            others: list[CallSource] = []
            if period.traces:
                others.append(TracedCalls(mocks, period.traces, served.who.key, alone=_needs_spans(unit)))
            others += in_process
            if period.model:
                served.seen_by = SeenBy.MODEL
                others.append(ModelCalls(period.model, self.prepared.loaded.redact))
            lane = period.model.lane if period.model else None
            conversation = await run(served, *others, lane=lane)
            period.failed = conversation.failure is not None
            # The agent was waited for in the turn that never closed.
            answered_ms = sum(turn.latency_ms for turn in conversation.turns)
            timeout_ms = self.prepared.loaded.config.request_timeout_ms
            if period.failed and conversation.time.agent_ms - answered_ms >= timeout_ms:
                period.at_work_s = timeout_ms / 1000
            return conversation

    def _model_access(self, unit: Unit, number: int, attempt: int) -> ModelAccess:
        from agentest.mock_servers.port import ModelAccess, ModelFaults

        scenario, faults = unit.scenario, None
        timeout_s = self.prepared.loaded.config.request_timeout_ms / 1000
        if scenario.model_faults:
            # The agent has as much time again to go on without an answer.
            faults = ModelFaults(faults=scenario.model_faults, hang_s=timeout_s / 2)
        return ModelAccess(
            mocked=frozenset(scenario.tools),
            opening=scenario.turns[0].user_message if scenario.scripted else scenario.name,
            timeout_s=timeout_s,
            recorded=frozenset(each.name for each in scenario.recorded or ()),
            named=frozenset(scenario.named_tools),
            faults=faults,
            tape_key=CallKey("agent", unit.scope, number, sample=attempt),
            open_tape=self.models.agent_tape,
        )

    def _mocks(self, unit: Unit, conversation_id: str, number: int, attempt: int) -> MockResolver:
        prepared = self.prepared
        unmocked_tools = unmocked_tools_setting(prepared.loaded.config, prepared.request.options)
        gateway = prepared.plan.agents[unit.agent].model_gateway
        if gateway and not gateway.mocks:  # calls are only seen
            unmocked_tools = "passthrough"
        simulates = unit.scenario.simulates_tools or unmocked_tools == "simulate"
        if unmocked_tools == "simulate":
            unmocked_tools = "error"
        return MockResolver(
            unit.scenario.tools,
            scenario=unit.scenario.name,
            conversation_id=conversation_id,
            unmocked_tools=unmocked_tools or ("passthrough" if unit.scenario.case else "error"),
            simulator=self._simulated_tools(unit, number, attempt) if simulates else None,
            recorded=unit.scenario.recorded,
            timeout_s=max(_MIN_MOCK_TIMEOUT_S, prepared.loaded.config.request_timeout_ms / 1000),
            redact=prepared.loaded.redact,
            state=unit.scenario.state,
        )

    def _simulated_tools(self, unit: Unit, number: int, attempt: int) -> SimulatedTools:
        from agentest.conversation.simulated_tools import SimulatedTools  # needed only for simulated tools

        scenario, known = unit.scenario, unit.traits.tools
        return SimulatedTools(
            self.models.user,
            CallKey("user", unit.scope, number, sample=attempt),
            facts=[f"It is now {format_date(scenario.date)}.", *scenario.knowledge],
            tools=known_tools(known, scenario.tools, scenario.named_tools).text,
            returns={each.name: each.returns for each in tools_of_unit(known, {}) if each.returns},
        )

    def _user_tools(self, unit: Unit, mocks: MockResolver) -> UserTools | None:
        tools = unit.scenario.user_tools
        if not tools or self.pick_user:
            return None
        from agentest.conversation.simulated_user import UserTools

        return UserTools(mocks.with_tools(tools))

    def user_instructions(self, unit: Unit) -> str | None:
        plan = unit.scenario.plan
        if self.pick_user or unit.scenario.scripted or unit.scenario.attack:
            return None
        if not self.models.user_for(plan.model if plan else None):
            return None
        if plan:
            from agentest.conversation.simulated_user import plan_user_prompt

            return plan_user_prompt(plan, unit.scenario.date)
        from agentest.conversation.user_prompts import user_prompt

        return user_prompt(unit.scenario)

    def _user(self, unit: Unit, number: int, attempt: int, tools: UserTools | None) -> User:
        if unit.scenario.scripted:
            return ScriptedUser([UserText(t.user_message, t.attachments) for t in unit.scenario.turns])
        plan = unit.scenario.plan
        model = self.models.user_for(plan.model if plan else None)
        if model is None:
            return OfflineUser(unit.scenario)
        user: User
        if plan:
            from agentest.conversation.simulated_user import PlanUser

            user = PlanUser(model, plan, unit.scope, number, attempt=attempt, date=unit.scenario.date)
        else:
            from agentest.conversation.simulated_user import SimulatedUser

            user = SimulatedUser(model, unit.scenario, unit.scope, number, attempt=attempt, tools=tools)
        redact = self.prepared.loaded.redact
        return RedactedUser(user, redact.transcript) if redact.hides_transcripts else user

    def _attacker(
        self, attack: Attack, unit: Unit, number: int, attempt: int, mocks: MockResolver
    ) -> AttackUser:
        from agentest.judging.conversation_checks import breaks_ban
        from agentest.plugins.explore.attacker import AttackSetup, AttackUser, situation_of
        from agentest.scenarios.variations import objectives

        scenario, config = unit.scenario, self.prepared.plan.agents[unit.agent]
        aims, has_session = objectives(scenario), is_conversational(self.agents[unit.agent])
        aim = aims[(number - 1) % len(aims)]
        fixed = ""
        if config.beside:
            fixed = f"agent {unit.agent!r} has {', '.join(config.beside)}, which cannot forget calls"
        elif has_session and scenario.session and scenario.session.session_id:
            fixed = "the scenario sets the session's id, so there is no second one"

        async def is_broken(turns: Sequence[Turn]) -> bool:
            so_far = Conversation("", tuple(turns), Ending.MAX_TURNS)
            return await breaks_ban(scenario, with_state(so_far, mocks.end_state()))

        return AttackUser(
            AttackSetup(
                attack=attack,
                objective=replace(aim, request=f"{scenario.goal} {aim.request}".strip()),
                situation=situation_of(scenario),
                key=CallKey("user", unit.scope, number, sample=attempt),
                attacker=self.models.user,
                scorer=self.models.judge,
                broken=is_broken,
                fixed=fixed,
                resends=has_session,
                hide=self.prepared.loaded.redact.transcript,
            )
        )


def _needs_spans(unit: Unit) -> bool:
    """Return True if calls cannot be judged without the agent's spans.

    That is so if nothing else shows the calls, or if the scenario bans a tool that the agent may have from
    another source, because no list proves that it belongs to a mock server.
    """
    banned = {tool for each in unit.scenario.trajectories for tool in each.banned_tools}
    kinds = any(not is_one_tool(tool) for tool in banned)  # may match more tools than are mocked
    beside = unit.traits.spans_count and (kinds or bool(banned - unit.traits.tools.mock_servers.listed()))
    return unit.traits.visible_by_spans_only or beside


def _identity(unit: Unit, spec: ConversationSpec) -> Identity:
    shared = bool(spec.session and spec.session.session_id)  # by all conversations of the scenario
    from agentest.mock_servers.port import Identity

    return Identity(
        key=new_key(),
        session_id=None if shared else spec.session_id,
        conversation_id=spec.conversation_id,
        scenario=spec.scenario,
        agent=unit.agent,
    )


@dataclass(frozen=True, slots=True)
class FinishedConversations:
    """Replays the conversations of an earlier run, turn by turn, without any agent."""

    earlier: EarlierConversation

    async def converse(
        self,
        unit: Unit,
        number: int,
        conversation_id: str,
        on_turn: OnTurn,
        outside: WaitingBlock = nullcontext,
        attempt: int = 0,
    ) -> Conversation:
        del conversation_id, outside, attempt  # a finished conversation needs none of these
        stored = self.earlier(unit, number)
        # A conversation without its end cannot be judged: a check might pass or fail only because of that.
        unusable = stored.shortened or stored.invalid is not None
        conversation = stored if unusable or stored.failure else _check_script_length(stored, unit)
        unusable = unusable or conversation is not stored
        closed_turns = 0 if unusable else len(conversation.turns)
        for closed in range(1, closed_turns + 1):
            on_turn(conversation.turns[:closed])
        return conversation

    def user_instructions(self, unit: Unit) -> str | None:
        del unit  # users were checked when their conversations ran
        return None


def _check_script_length(conversation: Conversation, unit: Unit) -> Conversation:
    """Return the conversation, marked as failed if the script now has another number of turns to check."""
    actual, expected = len(conversation.turns), len(unit.scenario.turns)
    if not expected or actual == expected:
        return conversation
    turns = count(actual, "turn")
    why = f"it ran with {turns}, and the script now has {expected}: run the scenario again"
    return replace(conversation, ending=Ending.ERROR, failure=Failure(Blame.INTERNAL, why))
