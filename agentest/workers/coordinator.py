"""Coordinate the workers of a run: hand out conversations, collect results, and replace workers that die.

Workers only run conversations. Ordering, limits, the journal and reports stay in the run's own process. When
a worker dies, other workers run its conversations again and a new worker takes its place.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import anyio
from anyio.abc import TaskGroup

from agentest.domain.events import Noted
from agentest.models.cassette import Cassettes
from agentest.models.port import Ledger
from agentest.models.tape import CassettePage
from agentest.runner.conversation_run import JudgedConversation, RunningConversation, lost_conversation_result
from agentest.runner.executor import RunUnits, UnitResults, units_in_order
from agentest.runner.plan import Unit
from agentest.runner.session import (
    RunSession,
    UnitConnections,
    allowance_of,
    check_recordings,
    local_gates,
    new_ledger,
    open_models,
    open_recordings,
    stopping,
)
from agentest.runner.sources import Origin
from agentest.support.errors import ConfigError, UsageError
from agentest.support.text import count as counted
from agentest.workers.channel import (
    AgentDied,
    CannotStart,
    CloseWorker,
    ConversationDone,
    ConversationMessage,
    EndUnit,
    EnterRequest,
    LeaveConversation,
    QuestionAnswered,
    RunConversation,
    SecretsLearned,
    SpansRequest,
    StopRun,
    WorkerAgentMessage,
    WorkerClosed,
    WorkerFailed,
    WorkerIdle,
    WorkerNote,
    WorkerReady,
    packed,
)
from agentest.workers.forwarding import (
    AnswerRecorded,
    OutputForwarder,
    RecordingCollector,
    UsageCollector,
    UsageReported,
)
from agentest.workers.lease_coordinator import LeaseCoordinator, LeaseRequest
from agentest.workers.worker_agents import store_agent_reports
from agentest.workers.worker_pool import (
    AssignedConversation,
    ConversationSlot,
    PooledWorker,
    ProgressReceiver,
    WorkerScheduler,
    WorkerSource,
)

MOST_ATTEMPTS = 3
"""How many times a conversation is attempted if its workers die. The last attempt has a worker to itself."""
_GRACE_S = 10.0
"""Seconds that a worker may take to wind down after a stop."""
_DEATH_HINT = "agents, metrics or mocks that run in it may have crashed it, or used up the memory"


class WorkerDied(Exception):
    """The worker that ran the conversation died; the text says how."""

    place: ConversationSlot
    """The conversation's slot. It has been freed if the conversation had waited for others."""


class WorkerPool:
    """The worker pool of a run, which runs its conversations (`runner.conversation_run.Holder`)."""

    def __init__(
        self,
        fleet: WorkerSource,
        session: RunSession,
        origin: Origin,
        desks: RunCollectors,
        models: LeaseCoordinator,
    ) -> None:
        self._worker_source = fleet
        self._session = session
        self._origin = origin
        self._collectors = desks
        self._models = models
        self._output_forwarder = OutputForwarder(session.prepared.managed_servers.printed, self._send_all)
        self._store_agent_report = store_agent_reports(origin)
        self._roster = WorkerScheduler()
        self._numbers = count(1)
        self._holds = count(1)
        self._seen_notes: set[str] = set()
        self._stop_for = stopping(session)
        self._problem: UsageError | None = None
        self._dead_before_start: list[PooledWorker] = []
        """Workers that died before the run began and still have to be replaced."""
        self._failed_starts = 0
        """Number of workers in a row that died before they became ready."""
        self._tasks: TaskGroup | None = None
        self._under_way: ProgressReceiver | None = None
        self._closing = False

    async def assemble(self) -> None:
        """Connect to workers and wait until enough are ready. Raises UsageError if one cannot start."""
        for _ in range(self._worker_source.size):
            await self._connect()
        while not self._is_enough():
            await self._wait_until(lambda: self._is_enough() or bool(self._dead_before_start))
            if self._problem:
                raise self._problem
            while self._dead_before_start:
                await self._replace(self._dead_before_start.pop())

    def _is_enough(self) -> bool:
        return sum(each.ready for each in self._roster.members) >= self._worker_source.needed

    async def work(self, run: RunUnits) -> UnitResults:
        """Run all units."""
        async with anyio.create_task_group() as self._tasks:
            self._under_way = ProgressReceiver(self._roster, self._tasks)
            if self._problem:  # reported after the workers became ready
                self._fail(self._problem)
            for member in self._roster.members:
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
        for member in [*self._roster.members]:
            if member.ready:
                member.connection.send(CloseWorker())
            else:
                member.connection.kill()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._kill_after_stop)
            for member in [*self._roster.members]:
                await member.gone.wait()
            tasks.cancel_scope.cancel()

    async def _kill_after_stop(self) -> None:
        await self._session.stop.called.wait()
        await anyio.sleep(_GRACE_S)
        for member in [*self._roster.members]:
            member.connection.kill()

    async def disconnect(self) -> None:
        """Close the channels to all remaining workers."""
        self._closing = True
        self._output_forwarder.close()
        for member in [*self._roster.members]:
            with anyio.move_on_after(_GRACE_S, shield=True) as scope:
                await member.connection.close()
            if scope.cancelled_caught:  # the worker does not read
                member.connection.kill()

    async def run(self, unit: Unit, number: int, ongoing: RunningConversation) -> JudgedConversation:
        """Run the conversation on a worker, and on another one if that worker dies."""
        for attempt in range(MOST_ATTEMPTS):
            if attempt:
                await ongoing.reacquire_slot()
            last = attempt == MOST_ATTEMPTS - 1
            try:
                async with self._roster.worker_alone() if last else self._worker_for(unit) as member:
                    finished, slot = await self._run_on(member, unit, number, ongoing, attempt)
                await slot.had.wait()
                ongoing.on_ended()
                return finished
            except WorkerDied as lost:
                self._collectors.forget(unit.scope, number)
                problem = str(lost)
                await lost.place.had.wait()
        message = f"{problem} while it held the conversation, {MOST_ATTEMPTS} times: {_DEATH_HINT}"
        return JudgedConversation(lost_conversation_result(unit, number, message))

    def end(self, unit: Unit) -> None:
        for member in self._roster.members:
            if unit.scope in member.units:
                member.units.discard(unit.scope)
                member.connection.send(EndUnit(unit.scope))
        if unit.traits.queue is None:
            self._roster.forget(unit.scope)

    async def settle(self) -> None:
        """Have all workers end their current work. A worker that does not respond is killed."""
        stop = self._session.stop
        message = StopRun(stop.reason or "", stop.status, stop.interrupted)
        for member in self._roster.members:
            member.connection.send(message)

        def at_work() -> list[PooledWorker]:
            return [each for each in self._roster.members if each.ready and not (each.idle or each.ended)]

        with anyio.move_on_after(_GRACE_S):
            await self._roster.until(lambda: not at_work())
        for member in at_work():
            self._closing = True
            member.connection.kill()
            self._note(
                f"a {self._worker_source.called} did not end when it was told to, and was killed: code that "
                "it runs, of an agent or a metric, gives nothing else its turn"
            )

    async def _connect(self) -> None:
        member = PooledWorker(next(self._numbers))
        member.connection = await self._worker_source.connect(
            partial(self._receive, member), partial(self._on_disconnect, member)
        )
        self._roster.members.append(member)
        self._serve(member)
        if self._session.stop.called.is_set():  # stopped in the meantime: the worker has nothing to do
            member.ended = True
            member.connection.kill()

    def _send_all(self, message: object) -> None:
        for member in self._roster.members:
            if member.ready:
                member.connection.send(message)

    def _serve(self, member: PooledWorker) -> None:
        if self._tasks and not member.leases:
            member.leases = self._models.counter(member.connection.send, self._tasks)
        if self._tasks and self._origin.registry and not member.guests:
            from agentest.workers.mock_proxy import MockProxy

            member.guests = MockProxy(self._origin.registry, member.connection.send, self._tasks)

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for a condition on the workers, or raise the problem that a worker reported."""
        await self._roster.until(lambda: self._problem is not None or is_so())

    @asynccontextmanager
    async def _worker_for(self, unit: Unit) -> AsyncIterator[PooledWorker]:
        """Choose the least busy worker, or the one assigned to conversations that run one at a time."""
        parallel = unit.is_parallel(self._session.settings.parallel)
        yield await self._roster.worker_for(unit.traits.queue or (None if parallel else unit.scope))

    async def _run_on(
        self, member: PooledWorker, unit: Unit, number: int, ongoing: RunningConversation, attempt: int
    ) -> tuple[JudgedConversation, ConversationSlot]:
        """Run the conversation on this worker and return its result. Raises Lost if the worker dies."""
        hold = next(self._holds)
        due: asyncio.Future[ConversationDone] = asyncio.get_running_loop().create_future()
        assigned = member.holdings[hold] = AssignedConversation(
            ongoing, due, is_last=attempt == MOST_ATTEMPTS - 1
        )
        member.units.add(unit.scope)
        earlier_result = self._origin.earlier
        order = RunConversation(
            hold=hold,
            scope=unit.scope,
            number=number,
            ids_end=f"-retry{attempt}" if attempt else "",
            page=self._collectors.page(unit.scope, number),
            earlier=packed(earlier_result(unit, number)) if earlier_result else None,
        )
        member.connection.send(order)
        try:
            done = await assigned.done
        except WorkerDied as lost:
            lost.place = assigned.place
            self._roster.lose(assigned.place)
            raise
        finally:
            assigned.place.wanted.set()
            del member.holdings[hold]
            if member.reserved:
                self._roster.change()
        self._collectors.done(unit.scope, number)
        return JudgedConversation(pickle.loads(done.result), done.json, done.rerun_reason), assigned.place

    def _receive(self, member: PooledWorker, message: Any) -> None:
        match message:
            case UsageReported() | AnswerRecorded():
                self._collectors.receive(message)
            case LeaseRequest() if member.leases:
                member.leases.receive(message)
            case ConversationMessage() if self._under_way:
                self._under_way.receive(member, message)
            case EnterRequest() | LeaveConversation() | QuestionAnswered() | SpansRequest() if member.guests:
                member.guests.receive(message)
            case _:
                self._receive_news(member, message)

    def _receive_news(self, member: PooledWorker, message: Any) -> None:
        session = self._session
        match message:
            case WorkerReady():
                member.ready = True
                self._failed_starts = 0
                self._output_forwarder.welcome(member.connection.send)
                self._roster.change()
            case WorkerIdle():
                member.idle = True
                self._roster.change()
            case WorkerClosed():
                member.ended = True
            case CannotStart():
                member.ended = True
                self._fail(ConfigError(message.problem))
            case WorkerFailed():
                member.ended = True
                self._fail_run(f"a {self._worker_source.called} failed: {message.problem}")
            case StopRun():
                session.stop(message.reason, message.status, interrupted=message.interrupted)
            case AgentDied():
                member.is_worse = True
                self._roster.move_away(member)
            case WorkerAgentMessage():
                self._store_agent_report(message)
            case SecretsLearned():
                session.prepared.loaded.redact.learn(message.texts)
            case Noted():
                session.emit(message)
            case WorkerNote():
                self._note(message.text)

    def _note(self, text: str) -> None:
        if text not in self._seen_notes:  # several workers may send the same note
            self._seen_notes.add(text)
            self._session.on_note(text)

    def _fail_run(self, problem: str) -> None:
        """Report a worker error. If all conversations have finished, the results stay and the run fails."""
        if self._closing:
            self._note(problem)
            self._session.stop(problem)
        else:
            self._fail(UsageError(problem))

    def _fail(self, problem: UsageError) -> None:
        """Handle a problem that every worker would have: prevent the run from starting, or stop it."""
        self._problem = problem
        if self._tasks:
            self._stop_for(self._session.prepared.loaded.redact(str(problem)))
        self._roster.change()

    def _on_disconnect(self, member: PooledWorker) -> None:
        member.gone.set()
        self._roster.remove(member)
        for desk in (desk for desk in (member.leases, member.guests) if desk):
            desk.close()
        if member.ended or self._closing:
            return
        member.ended = True
        if self._tasks:
            self._tasks.start_soon(self._replace, member)
        else:
            self._dead_before_start.append(member)

    async def _replace(self, member: PooledWorker) -> None:
        """Start a replacement for a worker that has ended, and report what was lost with it."""
        problem = f"a {self._worker_source.called} {await member.connection.death()}"
        if not self._session.stop.called.is_set():
            await self._connect_or_fail(member, problem)
        if lost := member.lost(stopped=self._session.stop.called.is_set()):
            self._session.say(f"{problem}: {lost}")
        for assigned in [*member.holdings.values()]:
            if not assigned.done.done():
                assigned.done.set_exception(WorkerDied(problem))

    async def _connect_or_fail(self, member: PooledWorker, problem: str) -> None:
        """Connect another worker, or fail if none can be started."""
        self._failed_starts = 0 if member.ready else self._failed_starts + 1
        if self._failed_starts == MOST_ATTEMPTS:
            self._fail(
                UsageError(
                    f"{problem} before it could begin, as {counted(MOST_ATTEMPTS - 1, 'other')} did: "
                    f"{_DEATH_HINT}"
                )
            )
            return
        try:
            await self._connect()
        except UsageError as error:
            if self._tasks and self._roster.members:
                self._session.say(f"no worker takes its place: {error}")
            else:
                self._fail(UsageError(f"no worker is left: {problem}, and none takes its place: {error}"))


class RunCollectors:
    """Collect usage and recordings from workers, and clean up when a conversation ends.

    Args:
        cassettes: recorded model responses; None if nothing is recorded or replayed.
    """

    def __init__(self, ledger: Ledger, cassettes: Cassettes | None) -> None:
        self._usage = UsageCollector(ledger)
        self._recording = RecordingCollector(cassettes) if cassettes else None

    def page(self, scope: str, number: int) -> CassettePage | None:
        """Return the recorded responses to send along with a conversation."""
        return self._recording.page(scope, number) if self._recording else None

    def receive(self, message: UsageReported | AnswerRecorded) -> None:
        match message:
            case UsageReported():
                self._usage.receive(message)
            case AnswerRecorded() if self._recording:
                self._recording.receive(message)

    def done(self, scope: str, number: int) -> None:
        """Record that the conversation is done."""
        self._usage.done(scope, number)
        if self._recording:
            self._recording.done(scope, number)

    def forget(self, scope: str, number: int) -> None:
        """Discard the usage and recordings of a conversation that was lost with its worker."""
        self._usage.forget(scope, number)
        if self._recording:
            self._recording.forget(scope, number)


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
        prepared, ledger = session.prepared, new_ledger(session)
        async with AsyncExitStack() as stack:
            recordings = open_recordings(session)
            check_recordings(recordings, prepared.plan)
            gates = local_gates(session)
            models, _ = await open_models(session, recordings, stack, gates, ledger)
            crew = WorkerPool(
                self._worker_source,
                session,
                origin,
                RunCollectors(ledger, recordings),
                LeaseCoordinator(gates),
            )
            stack.push_async_callback(crew.disconnect)
            await crew.assemble()
            allowance = allowance_of(session, gates, ledger, recordings)
            connections = UnitConnections(models, ledger, prepared.loaded.redact, allowance)
            yield partial(crew.work, units_in_order(session, crew, connections, origin))
            await crew.close()
