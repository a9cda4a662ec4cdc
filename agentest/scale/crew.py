"""The workers of a run: they hold its conversations, and everything else is done in the run's own process.

A conversation goes out, and what becomes of it comes back in order. If a worker dies, what it was at is held
again by others, and another worker takes its place.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
from anyio.abc import TaskGroup

from agentest.errors import ConfigError, UsageError
from agentest.events import Noted
from agentest.results import ScenarioResult
from agentest.run.engines import RunUnits
from agentest.run.holding import Finished, Ongoing, came_to_nothing
from agentest.run.plan import Unit
from agentest.run.session import Session
from agentest.run.sources import Origin
from agentest.scale.beside import keep_told
from agentest.scale.desks import Desks
from agentest.scale.fleet import Fleet
from agentest.scale.lease_desk import LeaseDesk
from agentest.scale.lease_messages import ToDesk
from agentest.scale.links import packed
from agentest.scale.members import Holding, Member
from agentest.scale.messages import (
    AgentDied,
    CannotStart,
    Close,
    Closed,
    ConversationDone,
    ConversationIsHeld,
    EndUnit,
    Enter,
    Failed,
    Hold,
    Idle,
    Leave,
    Note,
    OfOwnAgent,
    PlaceGiven,
    PlaceLeft,
    PlaceWanted,
    Ready,
    Reply,
    Secrets,
    SpansWanted,
    StopRun,
    TurnClosed,
)
from agentest.scale.printed import PrintedDesk
from agentest.scale.recorded import Recorded
from agentest.scale.usage import Used
from agentest.support.text import count as counted

MOST_ATTEMPTS = 3
"""How often a conversation is held whose workers die; the last time by one that has nothing else to do."""
_GRACE_S = 10.0
"""How long a worker may take to end what a stop has ended."""


class Lost(Exception):
    """The worker died that held a conversation: the text says how."""


class Crew:
    """The workers of a run, as who holds its conversations (`run.holding.Holder`)."""

    def __init__(
        self, fleet: Fleet, session: Session, origin: Origin, desks: Desks, models: LeaseDesk
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._origin = origin
        self._desks = desks
        self._models = models
        self._printed = PrintedDesk(session.prepared.own_servers.printed, self._send_all)
        self._keep_told = keep_told(origin)
        self._members: list[Member] = []
        """Those that are alive."""
        self._homes: dict[str, Member] = {}
        """Line or scope → the worker that holds all conversations of what is held one at a time."""
        self._numbers = count(1)
        self._holds = count(1)
        self._noted: set[str] = set()
        self._problem: UsageError | None = None
        self._changed = anyio.Event()
        """Set, and made anew, whenever workers come or go."""
        self._one_alone = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._closing = False

    async def assemble(self) -> None:
        """Connect with workers, and wait until enough are ready. Raises UsageError if one cannot begin."""
        for _ in range(self._fleet.size):
            await self._connect()
        await self._until(lambda: sum(each.ready for each in self._members) >= self._fleet.needed)
        if self._problem:
            raise self._problem

    async def work(self, run: RunUnits) -> Mapping[str, ScenarioResult]:
        """Run all units; their results by scope."""
        async with anyio.create_task_group() as self._tasks:
            for member in self._members:
                self._serve(member)
            results = await run()
            self._models.close()
            self._tasks.cancel_scope.cancel()
        self._tasks = None
        return results

    async def close(self) -> None:
        """Have all workers close what they have opened, and wait for their end."""
        self._closing = True
        for member in [*self._members]:
            if member.ready:
                member.connection.send(Close())
            else:
                member.connection.kill()
        for member in [*self._members]:
            await member.gone.wait()

    async def disconnect(self) -> None:
        """Close the lines to workers that are still there."""
        self._closing = True
        self._printed.close()
        with anyio.CancelScope(shield=True):
            for member in self._members:
                await member.connection.close()

    async def hold(self, unit: Unit, number: int, ongoing: Ongoing) -> Finished:
        """Have a worker hold the conversation, and another one if that dies."""
        for attempt in range(MOST_ATTEMPTS):
            if attempt:
                await ongoing.again()
            last = attempt == MOST_ATTEMPTS - 1
            try:
                async with self._worker_alone() if last else self._worker_for(unit) as member:
                    return await self._held_by(member, unit, number, ongoing, attempt)
            except Lost as lost:
                self._desks.forget(unit.scope, number)
                problem = str(lost)
        told = f"{problem} while it held the conversation, {MOST_ATTEMPTS} times"
        return Finished(came_to_nothing(unit, number, told))

    def end(self, unit: Unit) -> None:
        for member in self._members:
            if unit.scope in member.units:
                member.units.discard(unit.scope)
                member.connection.send(EndUnit(unit.scope))
        if unit.about.line is None:
            self._homes.pop(unit.scope, None)

    async def settle(self) -> None:
        """Have all workers end what they are at. One that does not is killed."""
        stop = self._session.stop
        message = StopRun(stop.reason or "", stop.status, stop.interrupted)
        for member in self._members:
            member.connection.send(message)
        with anyio.move_on_after(_GRACE_S):
            await self._until(lambda: all(each.idle or not each.ready for each in self._members))
        for member in self._members:
            if member.ready and not member.idle:
                self._closing = True
                member.connection.kill()
                self._session.on_note(f"a {self._fleet.called} did not end when it was told to")

    async def _connect(self) -> None:
        member = Member(next(self._numbers))
        self._members.append(member)
        try:
            member.connection = await self._fleet.connect(
                partial(self._receive, member), partial(self._on_disconnect, member)
            )
        except BaseException:
            self._members.remove(member)
            raise
        self._serve(member)

    def _send_all(self, message: object) -> None:
        for member in self._members:
            if member.ready:
                member.connection.send(message)

    def _serve(self, member: Member) -> None:
        """Answer what the worker asks, once the run has begun."""
        if self._tasks and not member.leases:
            member.leases = self._models.counter(member.connection.send, self._tasks)
        if self._tasks and self._origin.registry and not member.guests:
            from agentest.scale.guests import Guests

            member.guests = Guests(self._origin.registry, member.connection.send, self._tasks)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so of the workers, or one of them has told of a problem."""
        while not (is_so() or self._problem):
            await self._changed.wait()

    def _change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    @asynccontextmanager
    async def _worker_for(self, unit: Unit) -> AsyncIterator[Member]:
        """The worker that has least to do; that of all conversations which are held one at a time."""
        home = unit.about.line or (None if self._is_parallel(unit) else unit.scope)
        member = self._homes.get(home) if home is not None else None
        while member is None or member.reserved or member.ended:
            if member is None or member.ended:
                member = self._least_busy()
            if member is None or member.reserved:
                await self._changed.wait()  # where there will be none, the run is stopped
        if home is not None:
            self._homes[home] = member
        yield member

    @asynccontextmanager
    async def _worker_alone(self) -> AsyncIterator[Member]:
        """A worker that has nothing else to do: who dies then has died of this conversation, and takes no
        other one along."""
        async with self._one_alone:
            member: Member | None = None
            try:
                while member is None or member.ended or member.holdings:
                    if member is None or member.ended:
                        member = self._least_busy()
                    if member is None:
                        await self._changed.wait()
                        continue
                    member.reserved = True
                    if member.holdings:
                        await self._changed.wait()
                yield member
            finally:
                if member:
                    member.reserved = False
                self._change()

    def _least_busy(self) -> Member | None:
        able = [each for each in self._members if each.ready and not each.ended and not each.reserved]
        return min(able, key=lambda each: (each.is_worse, len(each.holdings)), default=None)

    def _is_parallel(self, unit: Unit) -> bool:
        own = unit.scenario.parallel
        return self._session.settings.parallel if own is None else own

    async def _held_by(
        self, member: Member, unit: Unit, number: int, ongoing: Ongoing, attempt: int
    ) -> Finished:
        """What the worker makes of the conversation. Raises Lost."""
        hold = next(self._holds)
        one = member.holdings[hold] = Holding(ongoing, asyncio.get_running_loop().create_future())
        member.units.add(unit.scope)
        held = self._origin.held
        order = Hold(
            hold=hold,
            scope=unit.scope,
            number=number,
            ids_end=f"-retry{attempt}" if attempt else "",
            page=self._desks.page(unit.scope, number),
            earlier=packed(held(unit, number)) if held else None,
        )
        member.connection.send(order)
        try:
            done = await one.done
        finally:
            del member.holdings[hold]
            one.wants_place.set()
            if member.reserved:
                self._change()
        self._desks.done(unit.scope, number)
        return Finished(pickle.loads(done.result), done.json, done.held_again)

    def _receive(self, member: Member, message: Any) -> None:
        """Handle a message of a worker."""
        match message:
            case Used() | Recorded():
                self._desks.receive(message)
            case ToDesk() if member.leases:
                member.leases.receive(message)
            case TurnClosed() if one := member.holdings.get(message.hold):
                one.ongoing.on_turn(message.conversation_id, message.turn_index)
            case ConversationIsHeld() if one := member.holdings.get(message.hold):
                one.ongoing.on_held()
            case ConversationDone() if (one := member.holdings.get(message.hold)) and not one.done.done():
                one.done.set_result(message)
            case PlaceLeft() if (one := member.holdings.get(message.hold)) and self._tasks:
                self._tasks.start_soon(self._wait_outside, member, message.hold, one)
            case PlaceWanted() if one := member.holdings.get(message.hold):
                one.wants_place.set()
            case Enter() | Leave() | Reply() | SpansWanted() if member.guests:
                member.guests.receive(message)
            case _:
                self._receive_news(member, message)

    def _receive_news(self, member: Member, message: Any) -> None:
        session = self._session
        match message:
            case Ready():
                member.ready = True
                self._printed.welcome(member.connection.send)
                self._change()
            case Idle():
                member.idle = True
                self._change()
            case Closed():
                member.ended = True
            case CannotStart():
                member.ended = True
                self._fail(ConfigError(message.problem))
            case Failed():
                member.ended = True
                self._fail(UsageError(f"a {self._fleet.called} failed: {message.problem}"))
            case StopRun():
                session.stop(message.reason, message.status, interrupted=message.interrupted)
            case AgentDied():
                member.is_worse = True
                self._homes = {home: each for home, each in self._homes.items() if each is not member}
            case OfOwnAgent():
                self._keep_told(message)
            case Secrets():
                session.prepared.loaded.redact.learn(message.texts)
            case Noted():
                session.emit(message)
            case Note() if message.text not in self._noted:  # several workers may send the same note
                self._noted.add(message.text)
                session.on_note(message.text)

    async def _wait_outside(self, member: Member, hold: int, one: Holding) -> None:
        one.wants_place = anyio.Event()
        async with one.ongoing.outside():
            await one.wants_place.wait()
        member.connection.send(PlaceGiven(hold))

    def _fail(self, problem: UsageError) -> None:
        """A worker cannot go on, nor could another one: the run does not begin, or it is stopped."""
        self._problem = problem
        if self._tasks:
            self._session.stop(str(problem))
        self._change()

    def _on_disconnect(self, member: Member) -> None:
        """Handle the end of a worker."""
        member.gone.set()
        if member in self._members:
            self._members.remove(member)
        self._homes = {home: each for home, each in self._homes.items() if each is not member}
        for desk in (one for one in (member.leases, member.guests) if one):
            desk.close()
        self._change()
        if member.ended or self._closing:
            return
        member.ended = True
        if self._tasks:
            self._tasks.start_soon(self._replace, member)
        else:
            self._problem = UsageError(f"a {self._fleet.called} ended before the run began")

    async def _replace(self, member: Member) -> None:
        """Tell what a worker has lost, and have another one take its place."""
        problem = f"a {self._fleet.called} {await member.connection.death()}"
        if member.holdings:
            lost = counted(len(member.holdings), "conversation")
            self._session.say(f"{problem}: {lost} that it was at will be held again")
        for one in [*member.holdings.values()]:
            if not one.done.done():
                one.done.set_exception(Lost(problem))
        if not member.ready:
            self._fail(UsageError(f"{problem} before it could begin"))
            return
        try:
            await self._connect()
        except UsageError as error:
            self._session.say(f"no worker takes its place: {error}")
            if not self._members:
                self._fail(UsageError(f"no worker is left: {problem}"))
