"""The workers of a run as its own process sees them: who is alive, and which conversation runs where."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import field
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from agentest.runner.conversation_run import RunningConversation
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count as counted
from agentest.workers.channel import deliver

RemoteWorker = Any
RemoteConversation = Any
"""Stand-ins for a `worker.Worker` and its `OngoingConversation`, whose module imports this one."""

POOL, WORKER, OBSERVED = "pool", "worker", "observed"


def call_source_part(name: str) -> str:
    """Return the name of the two objects by which the ends of a call source call each other."""
    return f"calls of {name}"


OnMessage = Callable[[Any], None]
OnDisconnect = Callable[[], None]


class Connection(Protocol):
    """The run's end of the channel to one worker."""

    def send(self, message: object) -> None:
        """Send a message without waiting, after all earlier ones. It is lost if the worker is gone."""

    async def close(self) -> None:
        """Close the channel after the other end has read everything."""

    def kill(self) -> None:
        """Kill the worker immediately."""

    async def death(self) -> str:
        """Return how a disconnected worker ended, to follow "the worker": `was killed by SIGKILL`."""


class WorkerSource(Protocol):
    size: int
    needed: int  # number of workers that must be ready before the run begins
    called: str  # the name of a worker in messages: `worker process`

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> Connection:
        """Connect another worker, at the start or to replace one that has died. Raises UsageError.

        Neither callback is called before this returns.

        Args:
            on_message: receives every message from the worker, in order.
            on_disconnect: called once when the worker has ended and all its messages have arrived; not called
                after `close`.
        """


def _new_set_event() -> anyio.Event:
    event = anyio.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class ConversationSlot:
    """The concurrency slot of a conversation, which may be free while the conversation waits for others."""

    wanted: anyio.Event = field(default_factory=_new_set_event)
    had: anyio.Event = field(default_factory=_new_set_event)
    given: bool = True  # True if the worker knows that the conversation may continue


@dataclass(slots=True, eq=False)
class AssignedConversation:
    """A conversation that runs on a worker, which calls the methods. Another attempt is another value.

    Args:
        tasks: task group for the wait after the conversation has freed its slot.
    """

    worker: RemoteConversation
    ongoing: RunningConversation
    roster: WorkerScheduler
    tasks: TaskGroup
    is_last: bool = False  # True if the conversation is not attempted again when its worker dies
    place: ConversationSlot = field(default_factory=ConversationSlot)
    done: asyncio.Future[tuple[bytes, bytes, bytes, str]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The arguments of `finish`."""

    def on_turn(self, conversation_id: str, turn_index: int, *, handed_over: bool) -> None:
        """A turn has closed."""
        self.ongoing.on_turn(conversation_id, turn_index, handed_over=handed_over)

    def on_ended(self) -> None:
        """The conversation has finished and frees its slot. Judging may still be in progress."""
        if self.place.had.is_set():
            self.ongoing.on_ended()
        else:
            self.roster.lose(self.place)
            self.tasks.start_soon(self._free_own_slot_later)

    def free_slot(self) -> None:
        """The conversation waits for other conversations and frees its slot."""
        # Synchronously, because the request for a new slot may arrive immediately.
        self.place = ConversationSlot(anyio.Event(), anyio.Event(), given=False)
        self.tasks.start_soon(self._wait_outside, self.place)

    def request_slot(self) -> None:
        """The conversation has finished waiting and needs a slot to continue."""
        self.roster.request_slot(self.worker, self.place)

    def finish(self, result: bytes, json: bytes, measured: bytes, rerun_reason: str) -> None:
        """The conversation has finished and has been judged.

        Args:
            result: the packed result, without details that are not needed until the scenario ends.
            json: the whole result in the form of results.json.
            measured: the JSON of its measurements.
        """
        if not self.done.done():
            self.done.set_result((result, json, measured, rerun_reason))

    async def _wait_outside(self, slot: ConversationSlot) -> None:
        async with self.ongoing.slot_released():
            await slot.wanted.wait()
        self.roster.has_place(self.worker, slot)

    async def _free_own_slot_later(self) -> None:
        await self.place.had.wait()
        self.ongoing.on_ended()


@dataclass(slots=True, eq=False)
class PooledWorker:
    """A worker as the run's process sees it."""

    connection: Connection = field(init=False)
    worker: RemoteWorker = field(init=False)
    ready: bool = False
    idle: bool = False  # True if the worker has wound down after a stop
    ended: bool = False  # True if the worker has sent its last message, so that its exit is expected
    reserved: bool = False
    is_worse: bool = False
    """True if the worker's own agent died. It is the last choice: it fails conversations fastest and would
    attract them.
    """
    holdings: dict[int, AssignedConversation] = field(default_factory=dict)
    """Conversations that run on the worker, by the ids of their orders."""
    units: set[str] = field(default_factory=set)
    """Scopes of unfinished units whose conversations have run on this worker."""
    parts: dict[str, Any] = field(default_factory=dict)  # all other objects that the worker calls, by name
    closing: list[Callable[[], None]] = field(default_factory=list)

    def receive(self, message: object) -> None:
        """Make a call that the worker has sent."""
        deliver(message, self.holdings, self.parts)

    def lost(self, *, stopped: bool) -> str:
        """Describe the fate of the conversations that ran on the dead worker; empty if there were none."""
        left = [assigned for assigned in self.holdings.values() if not assigned.done.done()]
        if not left:
            return ""
        what = f"{counted(len(left), 'unfinished conversation')} will"
        if stopped:
            return f"{what} not run again, because the run is stopping"
        if any(assigned.is_last for assigned in left):  # it had the worker to itself
            return f"{what} not run again, because this was the last attempt"
        return f"{what} run again"


class WorkerScheduler:
    """The workers that are alive, and the conversations that each one runs.

    A conversation that waits for a worker has a concurrency slot that it does not use yet. Another
    conversation may borrow the slot to continue, because the busy worker may be waiting for exactly that.
    """

    def __init__(self) -> None:
        self.members: list[PooledWorker] = []
        self._workers_by_group: dict[str, PooledWorker] = {}
        """Group of conversations that run one at a time → the worker that runs all of them."""
        self._changed = anyio.Event()  # set and replaced whenever the workers change
        self._is_worker_reserved = False
        self._waiting_count = 0
        self._slot_requests: deque[tuple[RemoteConversation, ConversationSlot]] = deque()
        self._lent: set[ConversationSlot] = set()
        """Slots of conversations that continue in the slot of one that waits for a worker."""

    def change(self) -> None:
        """Wake up everything that waits for a change."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until the condition is true."""
        while not is_so():
            await self._changed.wait()

    def remove(self, member: PooledWorker) -> None:
        """Remove a worker that has ended."""
        if member in self.members:
            self.members.remove(member)
        self.move_away(member)
        self.change()

    def move_away(self, member: PooledWorker) -> None:
        """Release the groups of conversations assigned to this worker."""
        self._workers_by_group = {
            home: each for home, each in self._workers_by_group.items() if each is not member
        }

    def forget(self, home: str) -> None:
        """Forget a group of conversations that has finished."""
        self._workers_by_group.pop(home, None)

    def request_slot(self, conversation: RemoteConversation, slot: ConversationSlot) -> None:
        """Request a slot for a conversation that wants to continue."""
        slot.wanted.set()
        self._slot_requests.append((conversation, slot))
        self._lend()

    def has_place(self, conversation: RemoteConversation, slot: ConversationSlot) -> None:
        """Record that the conversation has its own slot again."""
        slot.had.set()
        self._give_back(slot)
        self._let_continue(conversation, slot)

    def lose(self, slot: ConversationSlot) -> None:
        """Record that the conversation is lost. It still waits for its own slot if it had freed it, for the
        next attempt.
        """
        slot.wanted.set()
        slot.given = True
        self._give_back(slot)

    def _give_back(self, slot: ConversationSlot) -> None:
        if slot in self._lent:
            self._lent.discard(slot)
            self.change()

    @asynccontextmanager
    async def worker_for(self, home: str | None) -> AsyncIterator[PooledWorker]:
        """Choose the least busy worker, or the one that has run the other conversations of the same group."""
        member = self._available_worker(home)
        if member is None:
            with self._waiting():
                while member is None or not self._may_begin():
                    if member is None:
                        self._lend()
                    await self._changed.wait()  # if no worker will come, the run is stopped
                    member = self._available_worker(home)
        if home is not None:
            self._workers_by_group[home] = member
        yield member

    def _available_worker(self, home: str | None) -> PooledWorker | None:
        member = self._workers_by_group.get(home) if home is not None else None
        member = member or self._least_busy()
        return None if member is None or member.reserved or member.ended else member

    @asynccontextmanager
    async def worker_alone(self) -> AsyncIterator[PooledWorker]:
        """Reserve a worker with nothing else to do. If it dies, this conversation is the cause and no other
        is lost.
        """
        member: PooledWorker | None = None
        mine = False
        try:
            with self._waiting():
                while self._is_worker_reserved:
                    self._lend()
                    await self._changed.wait()
                self._is_worker_reserved = mine = True
                while member is None or member.ended or member.holdings or not self._may_begin():
                    if member is None or member.ended:
                        member = self._least_busy()
                    if member:
                        member.reserved = True
                    if member is None or member.holdings:
                        self._lend()
                    if member is None or member.holdings or not self._may_begin():
                        await self._changed.wait()
            yield member
        finally:
            if member:
                member.reserved = False
            if mine:
                self._is_worker_reserved = False
            self.change()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._waiting_count += 1
        self._lend()
        try:
            yield
        finally:
            self._waiting_count -= 1

    def _may_begin(self) -> bool:
        return len(self._lent) < self._waiting_count

    def _lend(self) -> None:
        while self._slot_requests and self._may_begin():
            conversation, slot = self._slot_requests.popleft()
            if not slot.given:
                self._lent.add(slot)
                self._let_continue(conversation, slot)

    def _let_continue(self, conversation: RemoteConversation, slot: ConversationSlot) -> None:
        if not slot.given:
            slot.given = True
            conversation.grant_slot()

    def _least_busy(self) -> PooledWorker | None:
        able = [each for each in self.members if each.ready and not each.ended and not each.reserved]
        return min(able, key=lambda each: (each.is_worse, len(each.holdings)), default=None)
