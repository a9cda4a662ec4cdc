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

from agentest.agents.port import Agent, of_lane
from agentest.conversation.turn_loop import ConversationSpec, OnTurn, TurnLoop, session_id_of
from agentest.conversation.turn_progress import CallSource
from agentest.conversation.user import MutatedUser, OfflineUser, RedactedUser, ScriptedUser, User
from agentest.domain.end_reason import Ending
from agentest.domain.messages import UserText
from agentest.domain.results import RunWarning
from agentest.domain.transcript import Blame, Conversation, Failure
from agentest.mocks.resolver import MockResolver
from agentest.models.port import CallKey, Models
from agentest.plugin import PLUGINS
from agentest.runner.agents import (
    awaits_calls,
    check_mocks,
    connected_agents,
    part_of,
    start_servers,
    with_ports,
)
from agentest.runner.call_sources import (
    ChangeUser,
    LiveConversation,
    ServerReports,
    SourcesOfAgents,
    WaitingBlock,
)
from agentest.runner.known_tools import known_tools, read_mock_server_tools, tools_of_unit
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.runner.session import RunSession
from agentest.support.dates import prompt_date
from agentest.support.deadlines import FUNCTION_S
from agentest.support.errors import ConfigError
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import count

if TYPE_CHECKING:
    from agentest.conversation.simulated_tools import SimulatedTools

PickUser = Callable[[Unit, int], User]
OnMocks = Callable[[str, MockResolver], None]
"""Receives the id of each conversation that begins, and its mocks."""
_MIN_MOCK_TIMEOUT_S = FUNCTION_S / 2
"""The minimum time limit of a mock, in seconds. The agent's timeout may be shorter."""


@dataclass(frozen=True, slots=True)
class ConversationRequest:
    """A request for one conversation of a unit."""

    unit: Unit
    number: int  # its number in the unit, from 1
    id: str
    on_turn: OnTurn
    outside: WaitingBlock = nullcontext
    attempt: int = 0


class ConversationSource(Protocol):
    """Provides the conversations of a unit."""

    async def converse(self, request: ConversationRequest) -> Conversation:
        """Return the conversation."""

    def user_instructions(self, unit: Unit) -> str | None:
        """Return the instructions of the model that plays the live user; None if there is no such model."""


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
    call_sources: SourcesOfAgents = field(default_factory=dict)
    reports: ServerReports = field(default_factory=ServerReports)
    """Where agents and call sources of this process and of workers report what happens."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Warnings about an earlier run's calls that belonged to no conversation."""
    earlier: EarlierConversation | None = None
    """The conversations of an earlier run; None: conversations are live."""

    def is_reached(self, agent: str, key: str) -> bool:
        """Return True if a client of the agent ever connected to this mock server, or in an earlier run."""
        return self.earlier is not None or (agent, key) in self.reports.observed.reached

    def warnings_of_unclaimed_calls(self, prepared: Prepared) -> tuple[RunWarning, ...]:
        """Return warnings about calls that belonged to no conversation, in an earlier part of the run too."""
        resumed = prepared.resumed_run.unclaimed if prepared.resumed_run else ()
        return (*self.unclaimed, *resumed, *self.reports.observed.warnings(prepared))


class SourceFactory(Protocol):
    """A source of conversations that is not open yet."""

    async def open(self, session: RunSession, opened: AsyncExitStack, tasks: TaskGroup) -> Origin:
        """Open what the conversations need; `opened` closes it. Raises UsageError."""


@dataclass(frozen=True, slots=True)
class LiveAgents:
    """Live conversations with the agents of the plan."""

    on_mocks: OnMocks | None = None
    keep_span: Callable[[bytes], object] | None = None
    keep_output: Callable[[str, str], object] = lambda *_: None
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
        reports = ServerReports(
            on_note=on_note, say=session.say, keep_output=self.keep_output, keep_span=self.keep_span
        )
        started = await start_servers(prepared, opened, tasks, reports, for_workers=session.has_workers)

        async def make(models: Models, stack: AsyncExitStack) -> ConversationSource:
            on_stray = reports.observed.count_stray
            agents = await connected_agents(prepared, started.client, stack, on_note, on_stray=on_stray)
            if models.judge:
                _read_mock_server_tools(prepared)
            return LiveConversations(
                prepared, agents, models, call_sources=started.call_sources, on_mocks=self.on_mocks
            )

        return Origin(make, started.call_sources, reports)


def _read_mock_server_tools(prepared: Prepared) -> list[str]:
    return list(read_mock_server_tools({unit.agent: unit.traits.tools for unit in prepared.plan.units}))


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Finished conversations of an earlier run, to be judged again."""

    conversations: Mapping[str, Sequence[Conversation]]  # scope of a unit → its conversations
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
    pick_user: PickUser | None = None  # chooses a user to replace the scenario's own
    call_sources: SourcesOfAgents = field(default_factory=dict)
    on_mocks: OnMocks | None = None

    async def converse(self, request: ConversationRequest) -> Conversation:
        live, managed = self._live(request), self.prepared.managed_servers
        if self.on_mocks:
            self.on_mocks(request.id, live.mocks)
        user = self._user(live)
        async with AsyncExitStack() as stack:
            calls: list[CallSource] = []
            for sources in self.call_sources.get(request.unit.agent, {}).values():
                calls += await stack.enter_async_context(sources.conversation(live))
            loop = TurnLoop(
                live.spec,
                live.agent if live.lane is None else of_lane(live.agent, live.lane),
                user,
                live.mocks,
                calls,
                on_turn=request.on_turn,
                redact=self.prepared.loaded.redact.error,
                servers=managed.of(live.unit.agent, live.lane) if managed.servers else None,
            )
            conversation = await loop.run()
            for finish in live.finishers:
                conversation = await finish(conversation)
            live.ended = conversation
        return conversation

    def _live(self, request: ConversationRequest) -> LiveConversation:
        unit, scenario = request.unit, request.unit.scenario
        spec = ConversationSpec(
            request.id,
            scenario.name,
            unit.max_turns,
            scenario.session,
            session_id_of(scenario.session, request.id),
            scenario.date,
            keeps_state=scenario.keeps_state,
            history=scenario.history,
            attachments=scenario.attachments,
            approve=scenario.approve_in,
        )
        return LiveConversation(
            prepared=self.prepared,
            unit=unit,
            number=request.number,
            attempt=request.attempt,
            agent=self.agents.get(unit.scope) or self.agents[unit.agent],
            models=self.models,
            spec=spec,
            mocks=self._mocks(request),
            outside=request.outside,
            is_played=self.pick_user is not None,
        )

    def _mocks(self, request: ConversationRequest) -> MockResolver:
        prepared, unit = self.prepared, request.unit
        unmocked_tools = "passthrough" if unit.traits.only_sees_calls else prepared.unmocked_tools
        simulates = unit.scenario.simulates_tools or unmocked_tools == "simulate"
        if unmocked_tools == "simulate":
            unmocked_tools = "error"
        return MockResolver(
            unit.scenario.tools,
            scenario=unit.scenario.name,
            conversation_id=request.id,
            unmocked_tools=self._simulated_tools(request)
            if simulates
            else unmocked_tools or ("passthrough" if unit.scenario.case else "error"),
            recorded=unit.scenario.recorded,
            timeout_s=max(_MIN_MOCK_TIMEOUT_S, prepared.loaded.config.request_timeout_ms / 1000),
            redact=prepared.loaded.redact,
            state=unit.scenario.state,
        )

    def _simulated_tools(self, request: ConversationRequest) -> SimulatedTools:
        from agentest.conversation.simulated_tools import SimulatedTools  # needed only for simulated tools

        unit, scenario, known = request.unit, request.unit.scenario, request.unit.traits.tools
        return SimulatedTools(
            self.models.user,
            CallKey("user", unit.scope, request.number, sample=request.attempt),
            facts=[f"It is now {prompt_date(scenario.date)}.", *scenario.knowledge],
            tools=known_tools(known, scenario.tools, scenario.named_tools).text,
            returns={each.name: each.returns for each in tools_of_unit(known, {}) if each.returns},
        )

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

    def _user(self, live: LiveConversation) -> User:
        user = self.pick_user(live.unit, live.number) if self.pick_user else self._own_user(live)
        scenario = live.unit.scenario
        if scenario.attack:
            attacking: ChangeUser = PLUGINS.hook("attacking user", "explore")
            user = attacking(live, user)
        if scenario.mutations:  # of a script they are in its texts
            from agentest.scenarios.mutations import mutated_message

            user = MutatedUser(user, partial(mutated_message, scenario.mutations, scenario.name))
        return user

    def _own_user(self, live: LiveConversation) -> User:
        scenario = live.unit.scenario
        script = [UserText(turn.user_message, turn.attachments) for turn in scenario.turns]
        if scenario.scripted:
            return ScriptedUser(script)
        user = self._simulated_user(live)
        return ScriptedUser(script, user) if script else user

    def _simulated_user(self, live: LiveConversation) -> User:
        scenario, plan = live.unit.scenario, live.unit.scenario.plan
        model = self.models.user_for(plan.model if plan else None)
        if model is None:
            return OfflineUser(scenario)
        from agentest.conversation.simulated_user import PlanUser, SimulatedUser, UserTools

        user: User
        scope, number, attempt = live.unit.scope, live.number, live.attempt
        if plan:
            user = PlanUser(model, plan, scope, number, attempt=attempt, date=scenario.date)
        else:
            tools = UserTools(live.mocks.with_tools(scenario.user_tools)) if scenario.user_tools else None
            user = SimulatedUser(model, scenario, scope, number, attempt=attempt, tools=tools)
            if tools:
                live.finishers.append(tools.recorded)
        redact = self.prepared.loaded.redact
        return RedactedUser(user, redact.transcript) if redact.hides_transcripts else user


@dataclass(frozen=True, slots=True)
class FinishedConversations:
    """Replays the conversations of an earlier run, turn by turn, without any agent."""

    earlier: EarlierConversation

    async def converse(self, request: ConversationRequest) -> Conversation:
        stored = self.earlier(request.unit, request.number)
        # A conversation without its end cannot be judged: a check might pass or fail only because of that.
        unusable = stored.shortened or stored.invalid is not None
        conversation = stored if unusable or stored.failure else _check_script_length(stored, request.unit)
        unusable = unusable or conversation is not stored
        closed_turns = 0 if unusable else len(conversation.turns)
        for closed in range(1, closed_turns + 1):
            request.on_turn(conversation.turns[:closed])
        return conversation

    def user_instructions(self, unit: Unit) -> str | None:
        del unit  # users were checked when their conversations ran
        return None


def _check_script_length(conversation: Conversation, unit: Unit) -> Conversation:
    actual, expected = len(conversation.turns), len(unit.scenario.turns)
    if not unit.scenario.scripted or actual == expected:
        return conversation
    turns = count(actual, "turn")
    why = f"it ran with {turns}, and the script now has {expected}: run the scenario again"
    return replace(conversation, ending=Ending.ERROR, failure=Failure(Blame.INTERNAL, why))
