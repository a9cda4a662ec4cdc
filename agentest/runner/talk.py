"""One conversation that a person holds with an agent through a scenario's mocks, wherever they type."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio

from agentest.config.agent_types import AgentConfig, hands_calls_over
from agentest.config.agents.over_http import HttpAgent
from agentest.config.file import LoadedConfig
from agentest.conversation.simulated_user import Said, User
from agentest.conversation.turn_loop import with_state
from agentest.domain.end_reason import Ending
from agentest.domain.results import RunWarning, ScenarioResult
from agentest.domain.transcript import (
    UNANSWERED,
    Blame,
    Conversation,
    Failure,
    ToolCall,
    Turn,
    UnfinishedTurn,
)
from agentest.mocks.answering import Given, Outcome
from agentest.mocks.calls import RecordedCall
from agentest.mocks.resolver import MockResolver
from agentest.models.factory import Models
from agentest.runner.agents import connected_agents, start_servers, with_ports
from agentest.runner.plan import Unit, agents_under_test, make_plan
from agentest.runner.prepare import Prepared, Request, configure, discover_scenarios, prepared_for
from agentest.runner.run import unclaimed_calls
from agentest.runner.sources import OnMocks, live_conversations
from agentest.scenarios.discovery import Discovered, PathChoice, search
from agentest.scenarios.model import Scenario
from agentest.support.errors import UsageError
from agentest.support.files import shown_path
from agentest.support.redaction import without_secrets

STOPPED = "the conversation was stopped in the middle of a turn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The agent can be talked to."""

    unit: Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoke:
    """The person said something."""

    turn_index: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replied:
    """The agent's reply closed a turn."""

    turn: Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What the person should know."""

    text: str


Happening = Ready | Spoke | Replied | Noted
Tell = Callable[[Happening], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What has come of it."""

    conversation: Conversation | None
    """None: it was stopped before it began."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Of calls that belonged to no conversation."""


def _no_mocks(_: str, __: MockResolver) -> None:
    """Whoever looks at nothing."""


class Talking:
    """A conversation of a person with an agent, from opening the agent to closing it."""

    def __init__(
        self,
        prepared: Prepared,
        unit: Unit,
        conversation_id: str,
        user: User,
        tell: Tell,
        on_mocks: OnMocks = _no_mocks,
    ) -> None:
        """`user` is the person; `tell` receives what happens, in the task that runs this, without secrets."""
        self._prepared = prepared
        self._unit = unit
        self._id = conversation_id
        self._user = user
        self._tell = tell
        self._on_mocks = on_mocks
        self._mocks: MockResolver | None = None
        self._turns: tuple[Turn, ...] = ()
        self._said: Spoke | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._stopped = False

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns that are closed by now."""
        return self._turns

    def stop(self) -> None:
        """End it at once, wherever it is; what was opened is closed."""
        self._stopped = True
        if self._tasks:
            self._tasks.cancel_scope.cancel()

    async def run(self) -> Held:
        """Hold the conversation to its end. Raises UsageError where it cannot begin."""
        held: Held | None = None
        problem: UsageError | None = None
        async with anyio.create_task_group() as self._tasks:
            if self._stopped:
                self._tasks.cancel_scope.cancel()
            try:
                async with AsyncExitStack() as stack:
                    held = await self._held(stack, self._tasks)
            except UsageError as error:  # kept: a task group would wrap it
                problem = error
            self._tasks.cancel_scope.cancel()
        if problem and not self._stopped:
            raise type(problem)(self._prepared.loaded.redact(str(problem)))
        return held or Held(conversation=self._broken_off())

    async def _held(self, stack: AsyncExitStack, tasks: anyio.abc.TaskGroup) -> Held:
        prepared = stack.enter_context(with_ports(self._prepared))
        started = await start_servers(prepared, stack, tasks, self._note)
        agents = await connected_agents(prepared, started.client, stack, self._note)
        self._tell(Ready(unit=self._unit))
        if lacking := without_user_tools(self._unit):
            self._note(lacking)
        source = live_conversations(
            prepared,
            agents,
            Models(),
            pick_user=lambda *_: _Heard(self._user, self._spoke),
            registry=started.registry,
            on_mocks=self._begin,
        )
        conversation = await source.converse(self._unit, 1, self._id, self._closed)
        return Held(conversation=conversation, unclaimed=unclaimed_calls(self._prepared, started.registry))

    def _begin(self, conversation_id: str, mocks: MockResolver) -> None:
        self._mocks = mocks
        self._on_mocks(conversation_id, mocks)

    def _note(self, text: str) -> None:
        self._tell(Noted(text=self._prepared.loaded.redact(text)))

    def _spoke(self, said: Spoke) -> None:
        self._said = said
        self._tell(said)

    def _closed(self, turns: tuple[Turn, ...]) -> None:
        self._turns, self._said = turns, None
        self._tell(Replied(turn=without_secrets(turns[-1], self._prepared.loaded.redact)))

    def _broken_off(self) -> Conversation | None:
        """What there is of a conversation that was stopped."""
        if self._mocks is None:
            return None
        calls_of = self._mocks.calls_of
        turns = tuple(replace(turn, tool_calls=calls_of(turn.turn_index)) for turn in self._turns)
        if self._said is None:
            ended = Conversation(self._id, turns, Ending.SATISFIED)
            kept = self._unit.scenario.keeps_state
            return with_state(ended, self._mocks.end_state()) if kept else ended
        index = self._said.turn_index
        unfinished = UnfinishedTurn(index, self._said.text, calls_of(index))
        failure = Failure(Blame.INTERNAL, STOPPED)
        return Conversation(self._id, turns, Ending.ERROR, failure, unfinished)


@dataclass(frozen=True, slots=True)
class _Heard:
    """A user of whom it is told what they say."""

    user: User
    tell: Callable[[Spoke], None]

    async def next_message(self, turns: Sequence[Turn]) -> Said | Ending:
        said = await self.user.next_message(turns)
        if isinstance(said, Said):
            self.tell(Spoke(turn_index=len(turns), text=said.text))
        return said


FREE = "conversation without a scenario"
"""The name of the scenario where none is chosen: it has no mocks, so that every call is answered by hand."""
MOST_TURNS = 200
"""A person knows when to stop: the limits of scenarios are for those who do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What there is to choose from."""

    scenarios: tuple[Scenario, ...]
    broken: tuple[str, ...]
    """Of each file that cannot be read, and of each scenario that was refused: where and why."""
    agents: tuple[str, ...]
    """The agents under test first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which scenario and which agent."""

    file: str | None = None
    """From the folder of the configuration; None: no scenario."""
    scenario: str | None = None
    """Its whole name."""
    agent: str | None = None
    """None: as the scenario and the configuration have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenTalk:
    """A conversation that can begin."""

    prepared: Prepared
    unit: Unit

    @property
    def agent(self) -> AgentConfig:
        return self.prepared.plan.agents[self.unit.agent]

    @property
    def starts_servers(self) -> bool:
        return bool(self.prepared.own_servers.of_any([self.unit.agent]))

    @property
    def reached(self) -> bool:
        """Whether calls of the agent come to us, to be answered by mocks or by hand."""
        return hands_calls_over(self.agent) or bool(self.agent.mock_servers)

    @property
    def _answers_meanwhile(self) -> bool:
        """Whether the agent is at its answer while its call waits; else it has answered with the call."""
        inside = self.unit.about.mocks_inside or not isinstance(self.agent, HttpAgent)
        return bool(self.agent.mock_servers) or inside

    @property
    def about_calls(self) -> str:
        """What a person who answers calls by hand should know of this agent."""
        if not self.reached:
            return (
                f"Agent {self.unit.agent!r} runs its tools itself (type: {self.agent.type}): its real tools "
                "run, their calls are shown with the reply as far as it tells of them, and none can wait "
                "here. With mock servers (mcp_mock, rest_mock) they could."
            )
        if self._answers_meanwhile:
            limit_s = self.prepared.loaded.config.request_timeout_ms / 1000
            return (
                "While a call waits here, the agent's own time limits go on, and so does ours for its whole "
                f"answer: {limit_s:g} s (request_timeout_ms)."
            )
        return "While a call waits here, no request to the agent is open; its own time limits may go on."


def without_user_tools(unit: Unit) -> str:
    """What a person should know who plays a user that has tools of its own; "": this one has none."""
    tools = ", ".join(unit.scenario.user_tools)
    if not tools:
        return ""
    return (
        f"The scenario gives its simulated user tools of its own ({tools}). They are for a model: you play "
        "the user here and cannot call them, so what they would change stays as it is."
    )


def choices(request: Request, environ: MutableMapping[str, str] = os.environ) -> Choices:
    """What there is. Reads the configuration and imports all scenario files. Raises UsageError."""
    loaded = configure(request, environ)
    discovered = discover_scenarios(request, loaded)
    under_test, known = agents_under_test(loaded.config, None)
    return Choices(
        scenarios=tuple(each for each in discovered.scenarios if not each.refused),
        broken=tuple(
            f"{shown_path(file, request.root)}:{line}: {problem}"
            for file, line, problem in discovered.problems
        ),
        agents=tuple(dict.fromkeys((*under_test, *known))),
    )


def chosen_talk(
    request: Request, choice: Choice, environ: MutableMapping[str, str] = os.environ
) -> ChosenTalk:
    """The conversation of a choice, checked as far as that goes without the agent. Raises UsageError.

    Args:
        request: of which root and configuration count.
    """
    loaded = configure(request, environ)
    paths = _paths(request.root, choice, loaded)
    options = replace(request.options, paths=paths, agent=choice.agent, offline=True)
    request = replace(request, options=options)
    discovered = discover_scenarios(request, loaded) if paths else _free(request, choice, loaded)
    plan = make_plan(loaded.config, discovered, options, request.root)
    prepared = prepared_for(request, loaded, plan, (), environ)
    return ChosenTalk(prepared=prepared, unit=replace(_one(plan.entries, choice), max_turns=MOST_TURNS))


def _paths(root: Path, choice: Choice, loaded: LoadedConfig) -> tuple[PathChoice, ...]:
    """The file of the choice. Raises UsageError for one that no run would import: importing runs it."""
    if choice.file is None or choice.scenario is None:
        return ()
    path = Path(os.path.normpath(root / choice.file))
    if path not in search(root, loaded.config.include, loaded.config.exclude, loaded.path).files:
        raise UsageError(f"{choice.file}: is no scenario file of this project (`include` says which are)")
    given = f"{choice.file}::{choice.scenario}"
    return (PathChoice(given=given, path=path, name=choice.scenario),)


def _free(request: Request, choice: Choice, loaded: LoadedConfig) -> Discovered:
    under_test, _ = agents_under_test(loaded.config, choice.agent)
    nowhere = str(request.root / FREE)
    return Discovered(scenarios=(Scenario(name=FREE, file=nowhere, line=0, agent=under_test[0]),))


def _one(entries: tuple[Unit | ScenarioResult, ...], choice: Choice) -> Unit:
    """The only conversation that is meant. Raises UsageError."""
    units = [entry for entry in entries if isinstance(entry, Unit)]
    if not units:
        raise UsageError("\n".join(_why_not(entries)) or f"{choice.file} defines no {choice.scenario!r}")
    if len(units) > 1:
        names = ", ".join(unit.agent for unit in units)
        raise UsageError(f"scenario {units[0].scenario.name!r} is run with several agents: choose {names}")
    return units[0]


def _why_not(entries: tuple[Unit | ScenarioResult, ...]) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, ScenarioResult):
            yield from (
                f"{entry.file}:{entry.line}: {entry.name} ({entry.verdict.status.value}): {reason.message}"
                for reason in entry.verdict.reasons
            )


class NotNow(Exception):
    """What a person wants is not to be done now; the message says why."""


class Visitor:
    """A user whose messages come one by one, when the conversation waits for them."""

    def __init__(self, on_listening: Callable[[], object]) -> None:
        """`on_listening` is called whenever the next message is waited for."""
        self._on_listening = on_listening
        self._next: asyncio.Future[Said | Ending] | None = None

    @property
    def awaited(self) -> bool:
        return self._next is not None and not self._next.done()

    async def next_message(self, turns: Sequence[Turn]) -> Said | Ending:
        """What is said next."""
        del turns  # the person remembers
        self._next = asyncio.get_running_loop().create_future()
        self._on_listening()
        return await self._next

    def say(self, text: str) -> None:
        """Say something. Raises NotNow where nobody listens."""
        if self._next is None or self._next.done():
            raise NotNow("the agent is at work on the message before: wait for its reply, or stop it")
        self._next.set_result(Said(text))

    def leave(self) -> bool:
        """End the conversation where the next message is waited for; False: it is in the middle of a turn."""
        if self._next is None or self._next.done():
            return False
        self._next.set_result(Ending.SATISFIED)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSeen:
    """A call as it stands; told of again whenever more is known."""

    number: int
    """From 0, in the order in which calls became known."""
    call: ToolCall
    waiting: bool = False
    """Whether a person must answer it."""
    proposed: Outcome | None = None
    """What its mock answers, where it is waiting; None: nothing mocks the tool."""
    by_hand: bool = False
    """Whether a person gave the answer, or changed it."""

    @property
    def answered(self) -> bool:
        return self.call.error != UNANSWERED


@dataclass(slots=True)
class _Waiting:
    """A call that waits for a person."""

    proposed: Outcome | None
    answer: asyncio.Future[Given | None]


@dataclass(slots=True)
class _Known:
    """What is known of a call besides its record."""

    number: int
    by_hand: bool = False


@dataclass(slots=True)
class Desk:
    """Where calls come to a person: to be looked at, and answered by hand (`mocks.attending.Attendant`).

    A mock is asked in any case, so that sequences go on and states change whatever is answered in the end.
    """

    tell: Callable[[CallSeen], object]
    """Receives calls in the event loop's thread."""
    holds: bool = False
    """Whether every call waits for the person; one that nothing mocks always does."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _calls: dict[RecordedCall, _Known] = field(default_factory=dict)
    _waiting: dict[int, _Waiting] = field(default_factory=dict)

    def noticed(self, call: RecordedCall) -> None:
        """A call is new, or more is known of it. Agents in this process may tell from any thread."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._told(call)
        else:
            self._loop.call_soon_threadsafe(self._told, call)

    async def answer(self, call: RecordedCall, proposed: Outcome | None) -> Given | None:
        """What the person answers; None: what the mock proposes."""
        known = self._known(call)
        if proposed is not None and not self.holds:
            return None
        waiting = _Waiting(proposed, self._loop.create_future())
        self._waiting[known.number] = waiting
        self._told(call)
        try:
            given = await waiting.answer
        finally:
            del self._waiting[known.number]
        known.by_hand = given is not None
        return given

    def give(self, number: int, given: Given | None) -> None:
        """Answer a call that waits; None: as its mock proposes. Raises NotNow."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.answer.done():
            raise NotNow("this call does not wait for an answer any more")
        if given is None and waiting.proposed is None:
            raise NotNow("nothing mocks this tool: write its answer")
        waiting.answer.set_result(given)

    def hold(self, *, calls: bool) -> None:
        """Have every call wait from now on, or none; those that wait go on as their mocks propose."""
        self.holds = calls
        for waiting in self._waiting.values():
            if not calls and waiting.proposed is not None and not waiting.answer.done():
                waiting.answer.set_result(None)

    def _known(self, call: RecordedCall) -> _Known:
        return self._calls.setdefault(call, _Known(len(self._calls)))

    def _told(self, call: RecordedCall) -> None:
        known = self._known(call)
        waiting = self._waiting.get(known.number)
        self.tell(
            CallSeen(
                number=known.number,
                call=call.call,
                waiting=waiting is not None,
                proposed=waiting.proposed if waiting else None,
                by_hand=known.by_hand,
            )
        )
