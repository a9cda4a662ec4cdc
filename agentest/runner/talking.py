"""One conversation that a person holds with an agent through a scenario's mocks, wherever they type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import anyio

from agentest.conversation.loop import with_state
from agentest.conversation.users import Said, User
from agentest.domain.end_reason import Ending
from agentest.domain.results import RunWarning
from agentest.domain.transcript import Blame, Conversation, Failure, Turn, UnfinishedTurn
from agentest.mocks.resolver import MockResolver
from agentest.models.open import Models
from agentest.runner.agents import connected_agents, start_servers
from agentest.runner.plan import Unit
from agentest.runner.ports import with_ports
from agentest.runner.prepare import Prepared
from agentest.runner.run import unclaimed_calls
from agentest.runner.sources import OnMocks, live_conversations
from agentest.runner.talk_choice import without_user_tools
from agentest.support.errors import UsageError
from agentest.support.without_secrets import without_secrets

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
