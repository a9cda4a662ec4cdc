"""A conversation between a person and an agent, through a scenario's mocks.

`PersonConversation` runs it, `choices` and `chosen_talk` select scenario and agent, `PersonUser` is the
person as a user, and `CallInbox` lets the person inspect and answer tool calls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from pathlib import Path
from time import time

import anyio

from agentest.agents.call_source_addresses import Addresses
from agentest.agents.port import Agent, AgentReply, Resources, TurnContext
from agentest.config.agent_types import AgentConfig, returns_calls
from agentest.config.agents.over_http import HttpAgent
from agentest.config.file import LoadedConfig
from agentest.conversation.turn_loop import new_session_id, with_state
from agentest.conversation.turn_progress import open_conversation
from agentest.conversation.user import NextMessage, User
from agentest.domain.end_reason import Ending
from agentest.domain.messages import AgentMessage, Message, UserText
from agentest.domain.results import RunWarning
from agentest.domain.tool_visibility import ToolOutcome
from agentest.domain.transcript import Blame, Conversation, Failure, ToolCall, Turn, UnfinishedTurn
from agentest.mocks.answering import ManualAnswer
from agentest.mocks.calls import MockOutcome, RecordedCall
from agentest.mocks.resolver import MockResolver
from agentest.models.port import Models
from agentest.runner.agents import connected_agents, start_servers, with_ports
from agentest.runner.call_sources import CallObservations, ServerReports
from agentest.runner.plan import Unit, agents_under_test, make_plan
from agentest.runner.prepare import Prepared, RunRequest, configure, discover_scenarios, prepared_for
from agentest.runner.sources import ConversationRequest, LiveConversations, OnMocks
from agentest.scenarios.discovery import DiscoveredScenarios, PathChoice, search
from agentest.scenarios.model import Scenario
from agentest.support.errors import AgentError, UsageError
from agentest.support.files import shown_path
from agentest.support.http.client import Sender
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import without_secrets

STOPPED = "the conversation was stopped in the middle of a turn"
REPLY_TIMEOUT_S = 60.0


TalkEvent = Unit | UnfinishedTurn | Turn | str
"""The unit when its agent is ready, a message that the person sent, a turn with its reply, or a note."""
Tell = Callable[[TalkEvent], object]


@dataclass(slots=True)
class PersonConversation:
    """A conversation of a person with an agent, from opening the agent to closing it.

    For the agent's side it is the user, who reports each message that the person sends (`User`).
    """

    prepared: Prepared
    unit: Unit
    id: str
    user: User  # the person
    tell: Tell  # receives events without secrets, in the task that runs the conversation
    on_mocks: OnMocks = lambda *_: None
    turns: tuple[Turn, ...] = ()  # the turns that have closed
    began: float = field(default_factory=time)  # in seconds since 1970
    observed: CallObservations = field(default_factory=CallObservations)
    """What the call sources observed outside of the conversation."""
    unclaimed: tuple[RunWarning, ...] = ()  # warnings about calls that belonged to no conversation
    _mocks: MockResolver | None = None
    _said: UnfinishedTurn | None = None
    _tasks: anyio.abc.TaskGroup | None = None
    _stopped: bool = False

    def stop(self) -> None:
        """Stop immediately in any state, and close everything that was opened."""
        self._stopped = True
        if self._tasks:
            self._tasks.cancel_scope.cancel()

    async def run(self) -> Conversation | None:
        """Run the conversation to its end. Returns None if it was stopped before it began.

        Raises UsageError if it cannot begin.
        """
        result: Conversation | None = None
        problem: UsageError | None = None
        async with anyio.create_task_group() as self._tasks:
            if self._stopped:
                self._tasks.cancel_scope.cancel()
            try:
                async with AsyncExitStack() as stack:
                    result = await self._converse(stack, self._tasks)
            except UsageError as error:  # raised below: the task group would wrap it in an exception group
                problem = error
            self._tasks.cancel_scope.cancel()
        if problem and not self._stopped:
            raise type(problem)(self.prepared.loaded.redact(str(problem)))
        result = result or self._partial_transcript()
        self.turns = result.turns if result else ()
        return result

    async def _converse(self, stack: AsyncExitStack, tasks: anyio.abc.TaskGroup) -> Conversation:
        prepared = stack.enter_context(with_ports(self.prepared))
        reports = ServerReports(on_note=self._note, observed=self.observed)
        started = await start_servers(prepared, stack, tasks, reports)
        agents = await connected_agents(prepared, started.client, stack, self._note)
        self.tell(self.unit)
        if lacking := without_user_tools(self.unit):
            self._note(lacking)
        source = LiveConversations(
            prepared,
            agents,
            Models(),
            pick_user=lambda *_: self,
            call_sources=started.call_sources,
            on_mocks=self._begin,
        )
        conversation = await source.converse(ConversationRequest(self.unit, 1, self.id, self._on_turn))
        self.unclaimed = self.observed.warnings(self.prepared)
        return conversation

    def _begin(self, conversation_id: str, mocks: MockResolver) -> None:
        self._mocks = mocks
        self.on_mocks(conversation_id, mocks)

    def _note(self, text: str) -> None:
        self.tell(self.prepared.loaded.redact(text))

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        """Return the person's next message."""
        message = await self.user.next_message(turns)
        if isinstance(message, NextMessage):
            self._said = UnfinishedTurn(len(turns), message.text, ())
            self.tell(self._said)
        return message

    def _on_turn(self, turns: tuple[Turn, ...]) -> None:
        self.turns, self._said = turns, None
        self.tell(without_secrets(turns[-1], self.prepared.loaded.redact))

    def _partial_transcript(self) -> Conversation | None:
        if self._mocks is None:
            return None
        calls_of = self._mocks.record.of_turn
        turns = tuple(replace(turn, tool_calls=calls_of(turn.turn_index)) for turn in self.turns)
        if self._said is None:
            ended = Conversation(self.id, turns, Ending.SATISFIED)
            keeps_state = self.unit.scenario.keeps_state
            return with_state(ended, self._mocks.end_state()) if keeps_state else ended
        unfinished = replace(self._said, tool_calls=calls_of(self._said.turn_index))
        return Conversation(self.id, turns, Ending.ERROR, Failure(Blame.INTERNAL, STOPPED), unfinished)


FREE = "conversation without a scenario"
"""The scenario name if none is chosen. It has no mocks, so every call is answered by hand."""
MOST_TURNS = 200  # high, because a person knows when to stop; the limits of scenarios are for simulated users


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkChoices:
    """The scenarios and agents to choose from."""

    scenarios: tuple[Scenario, ...]
    broken: tuple[str, ...]
    """Location and reason for each file that cannot be read and each scenario that was refused."""
    agents: tuple[str, ...]  # the agents under test first


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkChoice:
    """The chosen scenario and agent."""

    file: str | None = None  # relative to the folder of the configuration; None: no scenario
    scenario: str | None = None  # the full name
    agent: str | None = None  # None: as the scenario and the configuration say


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTalk:
    """A conversation that is ready to begin."""

    prepared: Prepared
    unit: Unit

    @property
    def agent(self) -> AgentConfig:
        return self.prepared.plan.agents[self.unit.agent]

    def excludes(self, other: PreparedTalk) -> bool:
        """Return True if both start servers, or wait for the same exclusive agent."""
        queue = self.unit.traits.queue
        servers = (each.prepared.managed_servers.of_any([each.unit.agent]) for each in (self, other))
        return all(servers) or (queue is not None and queue == other.unit.traits.queue)

    @property
    def reached(self) -> bool:
        """True if Agentest receives the agent's calls, to be answered by mocks or by hand."""
        return returns_calls(self.agent) or bool(self.agent.mock_servers)

    @property
    def about_calls(self) -> str:
        """Return what a person who answers calls by hand should know about this agent."""
        if not self.reached:
            return (
                f"Agent {self.unit.agent!r} runs its tools itself (type: {self.agent.type}): its real tools "
                "run, their calls are shown with the reply as far as it reports them, and none can wait "
                "here. With mock servers (mcp_mock, rest_mock) they could."
            )
        # The agent's request stays open while its call waits, or the call ends its reply.
        inside = self.unit.traits.mocks_inside or not isinstance(self.agent, HttpAgent)
        if self.agent.mock_servers or inside:
            limit_s = self.prepared.loaded.config.request_timeout_ms / 1000
            return (
                "While a call waits here, the agent's own time limits go on, and so does ours for its whole "
                f"answer: {limit_s:g} s (request_timeout_ms)."
            )
        return "While a call waits here, no request to the agent is open; its own time limits may go on."


def without_user_tools(unit: Unit) -> str:
    """Return a note for a person who plays a user that has its own tools; "" if it has none."""
    tools = ", ".join(unit.scenario.user_tools)
    if not tools:
        return ""
    return (
        f"The scenario gives its simulated user tools of its own ({tools}). Only a simulated "
        f"user can call them: while you play the user, what they would change stays as it is."
    )


def choices(request: RunRequest) -> TalkChoices:
    """Return the choices. Reads the configuration and imports all scenario files. Raises UsageError."""
    loaded = configure(request)
    discovered = discover_scenarios(request, loaded)
    under_test, known = agents_under_test(loaded.config, None)
    return TalkChoices(
        scenarios=tuple(each for each in discovered.scenarios if not each.refused),
        broken=tuple(
            f"{shown_path(file, request.root)}:{line}: {problem}"
            for file, line, problem in discovered.problems
        ),
        agents=tuple(dict.fromkeys((*under_test, *known))),
    )


def prepare_talk(request: RunRequest, choice: TalkChoice) -> PreparedTalk:
    """Return the chosen conversation, checked as far as possible without the agent. Raises UsageError."""
    loaded = configure(request)
    paths = _paths(request.root, choice, loaded)
    options = replace(request.options, paths=paths, agent=choice.agent, offline=True)
    request = replace(request, options=options)
    discovered = discover_scenarios(request, loaded) if paths else _without_scenario(request, choice, loaded)
    plan = make_plan(loaded, discovered, options, request.root)
    prepared = prepared_for(request, loaded, plan)
    units = [entry for entry in plan.entries if isinstance(entry, Unit)]
    if not units:
        raise UsageError(plan.refusals or f"{choice.file} defines no {choice.scenario!r}")
    if len(units) > 1:
        names = ", ".join(unit.agent for unit in units)
        raise UsageError(f"scenario {units[0].scenario.name!r} is run with several agents: choose {names}")
    return PreparedTalk(prepared=prepared, unit=replace(units[0], max_turns=MOST_TURNS))


def _paths(root: Path, choice: TalkChoice, loaded: LoadedConfig) -> tuple[PathChoice, ...]:
    """Return the chosen file. Raises UsageError for one that no run would import: importing executes it."""
    if choice.file is None or choice.scenario is None:
        return ()
    path = Path(os.path.normpath(root / choice.file))
    if path not in search(root, loaded.config.include, loaded.config.exclude, loaded.path).files:
        raise UsageError(f"{choice.file}: is not a scenario file of this project (`include` says which are)")
    return (PathChoice(text=f"{choice.file}::{choice.scenario}", path=path, name=choice.scenario),)


def _without_scenario(request: RunRequest, choice: TalkChoice, loaded: LoadedConfig) -> DiscoveredScenarios:
    under_test, _ = agents_under_test(loaded.config, choice.agent)
    nowhere = str(request.root / FREE)
    return DiscoveredScenarios(scenarios=(Scenario(name=FREE, file=nowhere, line=0, agent=under_test[0]),))


class ActionNotPossible(Exception):
    """The person's action is not possible now; the message says why."""


class PersonUser:
    """A user whose messages arrive one by one, when the conversation waits for them."""

    def __init__(self, on_listening: Callable[[], object]) -> None:
        self._on_listening = on_listening
        self._next: asyncio.Future[NextMessage | Ending] | None = None

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        """Wait for the next message."""
        del turns  # the person remembers them
        self._next = asyncio.get_running_loop().create_future()
        self._on_listening()
        return await self._next

    def say(self, text: str) -> None:
        """Send a message. Raises ActionNotPossible if the conversation does not wait for one."""
        if self._next is None or self._next.done():
            raise ActionNotPossible(
                "the agent is at work on the message before: wait for its reply, or stop it"
            )
        self._next.set_result(NextMessage(text))

    def leave(self) -> bool:
        """End the conversation if it waits for a message. Returns False in the middle of a turn."""
        if self._next is None or self._next.done():
            return False
        self._next.set_result(Ending.SATISFIED)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallState:
    """The current state of a call; reported again after every change."""

    number: int  # from 0, in the order in which calls became known
    call: ToolCall
    waiting: bool = False  # True if a person must answer it
    proposed: MockOutcome | None = None  # the mock's answer to a waiting call; None: no mock
    by_hand: bool = False  # True if a person gave or changed the answer

    @property
    def answered(self) -> bool:
        return self.call.outcome is not ToolOutcome.CANCELLED


@dataclass(slots=True)
class _InboxCall:
    number: int
    by_hand: bool = False
    proposed: MockOutcome | None = None
    answer: asyncio.Future[ManualAnswer | None] | None = None


@dataclass(slots=True)
class CallInbox:
    """Shows calls to a person, who can answer them by hand (`mocks.answering.Attendant`).

    The mock is called in any case, so that sequences advance and states change whatever the final answer is.
    """

    tell: Callable[[CallState], object]  # receives calls in the event loop's thread
    holds: bool = False  # True if every call waits for the person. Calls without a mock always wait.
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _calls: dict[RecordedCall, _InboxCall] = field(default_factory=dict)

    def noticed(self, call: RecordedCall) -> None:
        """Report a new or changed call. Agents in this process may call it from any thread."""
        try:
            is_same_loop = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_same_loop = False
        if is_same_loop:
            self._report(call)
        else:
            self._loop.call_soon_threadsafe(self._report, call)

    async def answer(self, call: RecordedCall, proposed: MockOutcome | None) -> ManualAnswer | None:
        """Wait for the person's answer; None: use the mock's."""
        known = self._known(call)
        if proposed is not None and not self.holds:
            return None
        known.proposed, known.answer = proposed, self._loop.create_future()
        self._report(call)
        try:
            answer = await known.answer
        finally:
            known.answer = None
        known.by_hand = answer is not None
        return answer

    def give(self, number: int, answer: ManualAnswer | None) -> None:
        """Answer a waiting call; None: use its mock's answer. Raises ActionNotPossible."""
        known = next((each for each in self._calls.values() if each.number == number), None)
        if known is None or known.answer is None or known.answer.done():
            raise ActionNotPossible("this call does not wait for an answer any more")
        if answer is None and known.proposed is None:
            raise ActionNotPossible("nothing mocks this tool: write its answer")
        known.answer.set_result(answer)

    def hold(self, *, calls: bool) -> None:
        """Make every call wait from now on, or none; waiting calls then get their mocks' answers."""
        self.holds = calls
        for known in self._calls.values():
            if not calls and known.answer and not known.answer.done() and known.proposed is not None:
                known.answer.set_result(None)

    def _known(self, call: RecordedCall) -> _InboxCall:
        return self._calls.setdefault(call, _InboxCall(len(self._calls)))

    def _report(self, call: RecordedCall) -> None:
        known = self._known(call)
        waiting = known.answer is not None
        proposed = known.proposed if waiting else None
        self.tell(
            CallState(
                number=known.number, call=call.call, waiting=waiting, proposed=proposed, by_hand=known.by_hand
            )
        )


@dataclass(slots=True)
class ShortTalk:
    """One conversation without mocks: tool calls that the agent hands over are not answered."""

    conversation: Agent
    name: str
    session_id: str
    servers: Addresses | None
    _messages: list[Message] = field(default_factory=list)

    async def say(self, text: str) -> AgentReply:
        """Send a message and return the reply. Raises AgentError, also for a reply that is empty."""
        turn = sum(isinstance(message, UserText) for message in self._messages) + 1
        self._messages.append(UserText(text))
        context = TurnContext(self.name, "agentest", turn, session_id=self.session_id, servers=self.servers)
        reply = await self.conversation.reply(tuple(self._messages), context)
        if not reply.text and not reply.tool_requests:
            raise AgentError("the reply has neither text nor tool calls")
        self._messages.append(AgentMessage(reply.text))
        return reply


@asynccontextmanager
async def short_talk(
    agent: Agent, name: str = "agentest-1", *, servers: Addresses | None = None
) -> AsyncIterator[ShortTalk]:
    """Open a conversation without mocks, and close it when the block ends."""
    async with open_conversation(agent) as conversation:
        yield ShortTalk(conversation, name, new_session_id(name), servers)


def lone_resources(client: Sender, closing: AsyncExitStack) -> Resources:
    """Return the resources of an agent over HTTP that is part of no run."""
    return Resources(
        client=client,
        timeout_s=REPLY_TIMEOUT_S,
        threads=anyio.CapacityLimiter(1),
        root=Path(),
        closing=closing,
        on_note=lambda _: None,
    )
