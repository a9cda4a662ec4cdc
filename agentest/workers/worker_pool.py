"""The workers of a run, as its own process knows them."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio.abc import TaskGroup

from agentest.runner.conversation_run import Ongoing
from agentest.runner.prepare import Prepared
from agentest.support.text import count as counted
from agentest.workers.channel import (
    ConversationDone,
    ConversationIsHeld,
    OfConversation,
    PlaceGiven,
    PlaceLeft,
    PlaceWanted,
    TurnClosed,
)
from agentest.workers.lease_coordinator import LeaseCounter

if TYPE_CHECKING:
    from agentest.workers.mock_proxy import Guests


class UnderWay:
    """Receives how conversations go.

    Args:
        tasks: where those wait that have left their places.
    """

    def __init__(self, roster: Roster, tasks: TaskGroup) -> None:
        self._roster = roster
        self._tasks = tasks

    def receive(self, member: Member, message: OfConversation) -> None:
        """Handle a message of this worker. One of a conversation that the run has given up says nothing."""
        if one := member.holdings.get(message.hold):
            self._handle(member, message, one)

    def _handle(self, member: Member, message: OfConversation, one: Holding) -> None:
        match message:
            case TurnClosed():
                one.ongoing.on_turn(
                    message.conversation_id, message.turn_index, handed_over=message.handed_over
                )
            case ConversationIsHeld() if one.place.had.is_set():
                one.ongoing.on_held()
            case ConversationIsHeld():
                self._roster.lose(one.place)
                self._tasks.start_soon(_leave_later, one)
            case PlaceLeft():
                one.place = Place.left()  # now: that it is wanted may be told in the same moment
                self._tasks.start_soon(self._wait_outside, member, message.hold, one, one.place)
            case PlaceWanted():
                self._roster.want_place(member, message.hold, one.place)
            case ConversationDone() if not one.done.done():
                one.done.set_result(message)

    async def _wait_outside(self, member: Member, hold: int, one: Holding, place: Place) -> None:
        async with one.ongoing.outside():
            await place.wanted.wait()
        self._roster.has_place(member, hold, place)


async def _leave_later(one: Holding) -> None:
    """It went on in another's place, and leaves its own when it has got it: others count on that."""
    await one.place.had.wait()
    one.ongoing.on_held()


OnMessage = Callable[[Any], None]
OnDisconnect = Callable[[], None]


class Connection(Protocol):
    """The run's end of the line to one worker."""

    def send(self, message: object) -> None:
        """Send a message: at once, and after all that were sent before. It is lost where nobody is there."""
        ...

    async def close(self) -> None:
        """Close the line when the other end has read everything."""
        ...

    def kill(self) -> None:
        """End the worker at once."""
        ...

    async def death(self) -> str:
        """How a worker ended whose line is closed; follows after "the worker": `was killed by SIGKILL`."""
        ...


class Fleet(Protocol):
    """Where workers come from."""

    @property
    def size(self) -> int:
        """How many workers there are to be."""
        ...

    @property
    def needed(self) -> int:
        """How many of them must be ready before the run begins."""
        ...

    @property
    def called(self) -> str:
        """What a worker is called: `worker process`."""
        ...

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> Connection:
        """One more worker: the first ones, and then those in place of others that have died.

        Args:
            on_message: receives every message of the worker, in order.
            on_disconnect: is called once, when the worker has ended and all its messages have arrived; not
                after `close`.

        Neither is called before there is a connection. Raises UsageError.
        """
        ...


def _set() -> anyio.Event:
    event = anyio.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class Place:
    """The place of a conversation among all, which it may leave while it waits for others."""

    wanted: anyio.Event = field(default_factory=_set)
    had: anyio.Event = field(default_factory=_set)
    given: bool = True
    """Whether its worker has been told that it may go on."""

    @classmethod
    def left(cls) -> Place:
        """One that has just been left."""
        return cls(anyio.Event(), anyio.Event(), given=False)


@dataclass(slots=True, eq=False)
class Holding:
    """A conversation that a worker is at."""

    ongoing: Ongoing
    done: asyncio.Future[ConversationDone]
    is_last: bool = False
    """Whether it is not held again if its worker dies."""
    place: Place = field(default_factory=Place)


@dataclass(slots=True, eq=False)
class Member:
    """A worker as the run sees it."""

    number: int
    """From 1."""
    connection: Connection = field(init=False)
    ready: bool = False
    idle: bool = False
    """Whether what a stop has ended is over."""
    ended: bool = False
    """Whether it has sent its last message: that it goes is no surprise."""
    gone: anyio.Event = field(default_factory=anyio.Event)
    reserved: bool = False
    """Whether it is to hold one conversation alone."""
    is_worse: bool = False
    """Whether its own agent died: it gets what no other can hold, or it would fail all, being the fastest."""
    holdings: dict[int, Holding] = field(default_factory=dict)
    units: set[str] = field(default_factory=set)
    """Scopes of units of which it has held conversations, until these have finished."""
    leases: LeaseCounter | None = None
    guests: Guests | None = None
    """Its conversations whose agents have servers beside them."""

    def lost(self, *, stopped: bool) -> str:
        """What becomes of the conversations that it was at, after its death; empty: there are none."""
        left = [one for one in self.holdings.values() if not one.done.done()]
        if not left:
            return ""
        what = f"{counted(len(left), 'conversation')} that it was at will"
        if stopped:
            return f"{what} not be held again, as the run is being stopped"
        if any(one.is_last for one in left):  # it had the worker to itself
            return f"{what} not be held again, as the last of its attempts is lost"
        return f"{what} be held again"


class Roster:
    """The workers that are alive, and which of them holds what.

    A conversation that waits for a worker has its place among all, and makes no use of it. Meanwhile another
    one has it that would go on: the worker that is waited for may be waiting for that.
    """

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._homes: dict[str, Member] = {}
        """What is held one at a time → the worker that holds all of it."""
        self._changed = anyio.Event()
        """Set, and made anew, whenever workers come or go."""
        self._one_is_alone = False
        self._idle = 0
        """How many conversations wait for a worker."""
        self._missed: deque[tuple[Member, int, Place]] = deque()
        self._lent: set[Place] = set()
        """Those of conversations that go on in the place of one that waits for a worker."""

    def change(self) -> None:
        """Something is otherwise than before: whoever waits for it looks again."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so."""
        while not is_so():
            await self._changed.wait()

    def remove(self, member: Member) -> None:
        """A worker has ended."""
        if member in self.members:
            self.members.remove(member)
        self.move_away(member)
        self.change()

    def move_away(self, member: Member) -> None:
        """What this worker was to hold all of is another's from now on."""
        self._homes = {home: each for home, each in self._homes.items() if each is not member}

    def forget(self, home: str) -> None:
        """No more of it is to be held."""
        self._homes.pop(home, None)

    def want_place(self, member: Member, hold: int, place: Place) -> None:
        """A conversation of this worker would go on, and has no place yet."""
        place.wanted.set()
        self._missed.append((member, hold, place))
        self._lend()

    def has_place(self, member: Member, hold: int, place: Place) -> None:
        """The conversation has a place of its own again."""
        place.had.set()
        self._give_back(place)
        self._go_on(member, hold, place)

    def lose(self, place: Place) -> None:
        """The conversation is lost, and goes on nowhere. It still waits for a place of its own, if it has
        left it: there it is held again."""
        place.wanted.set()
        place.given = True
        self._give_back(place)

    def _give_back(self, place: Place) -> None:
        if place in self._lent:
            self._lent.discard(place)
            self.change()

    async def worker_for(self, home: str | None) -> Member:
        """The worker that has least to do; where there is a home, the one that has held the others of it."""
        member = self._able(home)
        if member is None:
            with self._waiting():
                while member is None or not self._may_begin():
                    if member is None:
                        self._lend()
                    await self._changed.wait()  # where there will be none, the run is stopped
                    member = self._able(home)
        if home is not None:
            self._homes[home] = member
        return member

    def _able(self, home: str | None) -> Member | None:
        member = self._homes.get(home) if home is not None else None
        member = member or self._least_busy()
        return None if member is None or member.reserved or member.ended else member

    @asynccontextmanager
    async def worker_alone(self) -> AsyncIterator[Member]:
        """A worker that has nothing else to do: who dies then has died of this conversation, and takes no
        other one along."""
        member: Member | None = None
        mine = False
        try:
            with self._waiting():
                while self._one_is_alone:
                    self._lend()
                    await self._changed.wait()
                self._one_is_alone = mine = True
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
                self._one_is_alone = False
            self.change()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        self._idle += 1
        self._lend()
        try:
            yield
        finally:
            self._idle -= 1

    def _may_begin(self) -> bool:
        """Whether the place of one that has waited is there."""
        return len(self._lent) < self._idle

    def _lend(self) -> None:
        while self._missed and self._may_begin():
            member, hold, place = self._missed.popleft()
            if not place.given:
                self._lent.add(place)
                self._go_on(member, hold, place)

    def _go_on(self, member: Member, hold: int, place: Place) -> None:
        if not place.given:
            place.given = True
            member.connection.send(PlaceGiven(hold))

    def _least_busy(self) -> Member | None:
        able = [each for each in self.members if each.ready and not each.ended and not each.reserved]
        return min(able, key=lambda each: (each.is_worse, len(each.holdings)), default=None)


AUTO = "auto"


_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


def worker_count(prepared: Prepared, wanted: int | str) -> int:
    """How many workers to start: no more than there are conversations and places for them."""
    count = cores() if wanted == AUTO else int(wanted)
    left = sum(unit.conversations - len(unit.kept.conversations) for unit in prepared.plan.left)
    return max(1, min(count, left, prepared.concurrency))


def cores(quota: Path = _CGROUP_CPU) -> int:
    """How many cores this process may use, by its affinity and its container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(count, int(allowed) // int(period)))
    except (OSError, ValueError):  # no such file, or `max`
        return count
