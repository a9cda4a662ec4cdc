"""Coordinate the workers of a run: hand out conversations, collect results, and replace workers that die.

Workers only run conversations. Ordering, limits, the journal and reports stay in the run's own process. When
a worker dies, other workers run its conversations again and a new worker takes its place.
"""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from functools import partial
from itertools import count

import anyio
from anyio.abc import TaskGroup

from agentest.runner.call_sources import ServerReports
from agentest.runner.conversation_run import JudgedConversation, RunningConversation, lost_conversation_result
from agentest.runner.executor import RunUnits, UnitResults, units_in_order
from agentest.runner.plan import Unit
from agentest.runner.session import RunSession, connect, local_gates, stopping
from agentest.runner.sources import Origin
from agentest.support.errors import ConfigError, UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count as counted
from agentest.workers.channel import ConversationOrder, packed, remote
from agentest.workers.forwarding import COLLECTORS, OutputForwarder, RunCollectors
from agentest.workers.leases import LEASES, LeaseCoordinator
from agentest.workers.worker_pool import (
    OBSERVED,
    POOL,
    WORKER,
    AssignedConversation,
    ConversationSlot,
    PooledWorker,
    WorkerScheduler,
    WorkerSource,
    call_source_part,
)

MOST_ATTEMPTS = 3
"""How many times a conversation is attempted if its workers die. The last attempt has a worker to itself."""
_GRACE_S = 10.0  # seconds that a worker may take to wind down after a stop
_DEATH_HINT = "agents, metrics or mocks that run in it may have crashed it, or used up the memory"


class WorkerDied(Exception):
    """The worker that ran the conversation died; the text says how."""

    place: ConversationSlot
    """The conversation's slot. It has been freed if the conversation had waited for others."""


@dataclass(eq=False)
class WorkerPool:
    """The worker pool of a run, which runs its conversations (`runner.conversation_run.Holder`)."""

    _worker_source: WorkerSource
    session: RunSession
    _origin: Origin
    _collectors: RunCollectors
    _models: LeaseCoordinator
    roster: WorkerScheduler = field(default_factory=WorkerScheduler)
    _order_ids: Iterator[int] = field(default_factory=partial(count, 1))
    _seen_notes: set[str] = field(default_factory=set)
    _problem: UsageError | None = None
    _dead_before_start: list[PooledWorker] = field(default_factory=list)
    """Workers that died before the run began and still have to be replaced."""
    _failed_starts: int = 0  # number of workers in a row that died before they became ready
    _tasks: TaskGroup | None = None
    _closing: bool = False

    def __post_init__(self) -> None:
        printed = self.session.prepared.managed_servers.printed
        self._output_forwarder = OutputForwarder(printed, self._send_all)
        self._stop_for = stopping(self.session)

    async def assemble(self) -> None:
        """Connect to workers and wait until enough are ready. Raises UsageError if one cannot start."""
        for _ in range(self._worker_source.size):
            await self._connect()
        while not self._is_enough():
            await self.roster.until(
                lambda: self._is_enough() or bool(self._problem or self._dead_before_start)
            )
            if self._problem:
                raise self._problem
            while self._dead_before_start:
                await self._replace(self._dead_before_start.pop())

    def _is_enough(self) -> bool:
        return sum(each.ready for each in self.roster.members) >= self._worker_source.needed

    async def work(self, run: RunUnits) -> UnitResults:
        """Run all units."""
        async with anyio.create_task_group() as self._tasks:
            if self._problem:  # reported after the workers became ready
                self.fail(self._problem)
            for member in self.roster.members:
                self._serve(member)
            for member in self._dead_before_start:
                self._tasks.start_soon(self._replace, member)
            concluded = await run()
            self._models.close()
            self._tasks.cancel_scope.cancel()
        self._tasks = None
        return concluded

    async def close(self) -> None:
        """Have all workers close their resources, and wait until they have exited."""
        self._closing = True
        for member in [*self.roster.members]:
            if member.ready:
                member.worker.close_all()
            else:
                member.connection.kill()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kill_after_stop)
            await self.roster.until(lambda: not self.roster.members)
            tasks.cancel_scope.cancel()

    async def _kill_after_stop(self) -> None:
        await self.session.stop.called.wait()
        await anyio.sleep(_GRACE_S)
        for member in [*self.roster.members]:
            member.connection.kill()

    async def disconnect(self) -> None:
        """Close the channels to all remaining workers."""
        self._closing = True
        self._output_forwarder.close()
        for member in [*self.roster.members]:
            with anyio.move_on_after(_GRACE_S, shield=True) as scope:
                await member.connection.close()
            if scope.cancelled_caught:  # the worker does not read
                member.connection.kill()

    async def run(self, unit: Unit, number: int, ongoing: RunningConversation) -> JudgedConversation:
        """Run the conversation on a worker, and on another one if that worker dies."""
        parallel = unit.is_parallel(self.session.settings.parallel)
        group = unit.traits.queue or (None if parallel else unit.scope)
        for attempt in range(MOST_ATTEMPTS):
            if attempt:
                await ongoing.reacquire_slot()
            last = attempt == MOST_ATTEMPTS - 1
            try:
                async with self.roster.worker_alone() if last else self.roster.worker_for(group) as member:
                    finished, slot = await self._run_on(member, unit, number, ongoing, attempt)
                await slot.had.wait()
                ongoing.on_ended()
                return finished
            except WorkerDied as lost:
                self._collectors.forget(unit.scope, number)
                problem = str(lost)
                await lost.place.had.wait()
        message = f"{problem} while it ran the conversation, {MOST_ATTEMPTS} times: {_DEATH_HINT}"
        return JudgedConversation(lost_conversation_result(unit, number, message))

    def end(self, unit: Unit) -> None:
        for member in self.roster.members:
            if unit.scope in member.units:
                member.units.discard(unit.scope)
                member.worker.end_unit(unit.scope)
        if unit.traits.queue is None:
            self.roster.forget(unit.scope)

    async def settle(self) -> None:
        """Have all workers end their current work. A worker that does not respond is killed."""
        stop = self.session.stop
        for member in self.roster.members:
            member.worker.stop(stop.reason or "", stop.status, interrupted=stop.interrupted)

        def at_work() -> list[PooledWorker]:
            return [each for each in self.roster.members if each.ready and not (each.idle or each.ended)]

        with anyio.move_on_after(_GRACE_S):
            await self.roster.until(lambda: not at_work())
        for member in at_work():
            self._closing = True
            member.connection.kill()
            why = "code of an agent or a metric blocks its event loop"
            self.note(f"a {self._worker_source.called} did not end when asked to, and was killed: {why}")

    async def _connect(self) -> None:
        member = PooledWorker()
        news = WorkerNews(self, member, self._origin.reports)
        member.parts = {POOL: news, COLLECTORS: self._collectors, OBSERVED: self._origin.reports.observed}
        on_disconnect = partial(self._on_disconnect, member)
        member.connection = await self._worker_source.connect(member.receive, on_disconnect)
        member.worker = remote(WORKER, member.connection.send)
        self.roster.members.append(member)
        self._serve(member)
        if self.session.stop.called.is_set():  # stopped in the meantime: the worker has nothing to do
            member.ended = True
            member.connection.kill()

    def _send_all(self, message: object) -> None:
        for member in self.roster.members:
            if member.ready:
                member.connection.send(message)

    def _serve(self, member: PooledWorker) -> None:
        if self._tasks and LEASES not in member.parts:
            send = member.connection.send
            leases = member.parts[LEASES] = self._models.add_worker(send, self._tasks)
            member.closing.append(leases.close)
            sources = {name: each for of in self._origin.call_sources.values() for name, each in of.items()}
            for name, source in sources.items():
                part, recordings = call_source_part(name), self._collectors.cassettes
                if served := source.serve_worker(remote(part, send), self._tasks, recordings):
                    member.parts[part] = served
                    member.closing.append(served.close)

    async def _run_on(
        self, member: PooledWorker, unit: Unit, number: int, ongoing: RunningConversation, attempt: int
    ) -> tuple[JudgedConversation, ConversationSlot]:
        assert self._tasks
        order_id = next(self._order_ids)
        assigned = member.holdings[order_id] = AssignedConversation(
            remote(order_id, member.connection.send),
            ongoing,
            self.roster,
            self._tasks,
            is_last=attempt == MOST_ATTEMPTS - 1,
        )
        member.units.add(unit.scope)
        earlier = self._origin.earlier
        order = ConversationOrder(
            id=order_id,
            scope=unit.scope,
            number=number,
            ids_end=f"-retry{attempt}" if attempt else "",
            page=self._collectors.page(unit.scope, number),
            earlier=packed(earlier(unit, number)) if earlier else None,
        )
        member.worker.run_conversation(order)
        try:
            result, json, measured, rerun_reason = await assigned.done
        except WorkerDied as lost:
            lost.place = assigned.place
            self.roster.lose(assigned.place)
            raise
        finally:
            assigned.place.wanted.set()
            del member.holdings[order_id]
            if member.reserved:
                self.roster.change()
        self._collectors.done(unit.scope, number)
        return JudgedConversation(pickle.loads(result), json, rerun_reason, measured), assigned.place

    def on_ready(self, member: PooledWorker) -> None:
        """Let a worker run conversations."""
        member.ready = True
        self._failed_starts = 0
        self._output_forwarder.welcome(member.connection.send)
        self.roster.change()

    def note(self, text: str) -> None:
        if text not in self._seen_notes:  # several workers may send the same note
            self._seen_notes.add(text)
            self.session.on_note(text)

    def fail_run(self, problem: str) -> None:
        """Report a worker error. If all conversations have finished, the results stay and the run fails."""
        problem = f"a {self._worker_source.called} failed: {problem}"
        if self._closing:
            self.note(problem)
            self.session.stop(problem)
        else:
            self.fail(UsageError(problem))

    def fail(self, problem: UsageError) -> None:
        """Handle a problem that every worker would have: prevent the run from starting, or stop it."""
        self._problem = problem
        if self._tasks:
            self._stop_for(self.session.prepared.loaded.redact(str(problem)))
        self.roster.change()

    def _on_disconnect(self, member: PooledWorker) -> None:
        self.roster.remove(member)
        for close in member.closing:
            close()
        if member.ended or self._closing:
            return
        member.ended = True
        if self._tasks:
            self._tasks.start_soon(self._replace, member)
        else:
            self._dead_before_start.append(member)

    async def _replace(self, member: PooledWorker) -> None:
        problem = f"a {self._worker_source.called} {await member.connection.death()}"
        if not self.session.stop.called.is_set():
            await self._connect_or_fail(member, problem)
        if lost := member.lost(stopped=self.session.stop.called.is_set()):
            self.session.say(f"{problem}; {lost}")
        for assigned in [*member.holdings.values()]:
            if not assigned.done.done():
                assigned.done.set_exception(WorkerDied(problem))

    async def _connect_or_fail(self, member: PooledWorker, problem: str) -> None:
        self._failed_starts = 0 if member.ready else self._failed_starts + 1
        if self._failed_starts == MOST_ATTEMPTS:
            others = counted(MOST_ATTEMPTS - 1, "other")
            return self.fail(UsageError(f"{problem} before it could begin, as {others} did: {_DEATH_HINT}"))
        try:
            await self._connect()
        except UsageError as error:
            if self._tasks and self.roster.members:
                self.session.say(f"no worker takes its place: {error}")
            else:
                self.fail(UsageError(f"no worker is left: {problem}, and none takes its place: {error}"))


class WorkerNews:
    """News of a worker about itself. It calls the methods, and the functions of the run in the attributes."""

    def __init__(self, pool: WorkerPool, member: PooledWorker, reports: ServerReports) -> None:
        self._pool = pool
        self._member = member
        session = pool.session
        self.stop, self.emit = session.stop, session.emit
        self.note = pool.note  # once for all workers
        self.learn_secrets = session.prepared.loaded.redact.learn
        self.store_output = reports.keep_output
        """Stores complete, redacted lines that a server of the worker's own agents printed."""
        self.store_span = reports.keep_span or (lambda _: None)
        """Stores a span of such an agent, as a line of JSON."""

    def ready(self) -> None:
        """Agents and models are open."""
        self._pool.on_ready(self._member)

    def idle(self) -> None:
        """After a stop, all work has ended and all usage has been reported."""
        self._member.idle = True
        self._pool.roster.change()

    def closed(self) -> None:
        """Everything is closed."""
        self._member.ended = True

    def cannot_start(self, problem: str) -> None:
        """The worker cannot start; `problem` says what the user has to change."""
        self._member.ended = True
        self._pool.fail(ConfigError(problem))

    def failed(self, problem: str) -> None:
        """The worker cannot continue."""
        self._member.ended = True
        self._pool.fail_run(problem)

    def agent_died(self) -> None:
        """The server of an agent that the worker started has exited unexpectedly."""
        self._member.is_worse = True
        self._pool.roster.move_away(self._member)


class WorkerEngine:
    """The engine that runs conversations on workers."""

    has_workers = True
    opens = "workers to open agents and models"

    def __init__(self, fleet: WorkerSource) -> None:
        self._worker_source = fleet

    @asynccontextmanager
    async def open(self, session: RunSession, origin: Origin) -> AsyncIterator[RunUnits]:
        """Start workers and wait until they are ready; on exit, have them close their resources.

        Raises UsageError for problems that the user has to fix.
        """
        async with AsyncExitStack() as stack:
            gates = local_gates(session)
            connections, recordings = await connect(session, stack, gates)
            crew = WorkerPool(
                self._worker_source,
                session,
                origin,
                RunCollectors(connections.ledger, recordings),
                LeaseCoordinator(gates),
            )
            stack.push_async_callback(crew.disconnect)
            await crew.assemble()
            yield partial(crew.work, units_in_order(session, crew, connections, origin))
            await crew.close()
