"""`--workers`: the units of one run spread over processes, with one set of limits, one console, one result.

Workers are forked before the event loop begins, with everything that was prepared: scenarios hold functions,
which cannot be sent to another process. Each worker has its own event loop, connections and models. Limits
are divided among workers; they share the queue of units and the budget. A worker requests the next unit when
it has a place for it, and sends events. If a worker dies, its unfinished units are errored and the run stops.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, partial
from multiprocessing.context import ForkProcess
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskGroup

from agentest.confidence import with_figures
from agentest.errors import ConfigError, UsageError
from agentest.events import (
    ConversationFinished,
    ConversationHeld,
    ConversationStarted,
    Noted,
    ScenarioFinished,
    ScenarioStarted,
    TurnFinished,
)
from agentest.llm.budget import Spending
from agentest.results import (
    ConversationResult,
    Reason,
    ReasonKind,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.run.connections import check_recordings, recordings_of
from agentest.run.engines import RunUnits
from agentest.run.frame import scenario_result, with_wishes
from agentest.run.plan import Unit
from agentest.run.prepare import Prepared
from agentest.run.runner import Pace
from agentest.run.session import Session
from agentest.run.sources import Origin
from agentest.scale.links import Link, packed
from agentest.scale.messages import (
    CannotStart,
    Close,
    Closed,
    ConversationDone,
    Enter,
    Failed,
    Idle,
    Leave,
    Note,
    Ready,
    Reply,
    Secrets,
    SpansWanted,
    StopRun,
    UnitAssignment,
    UnitRequest,
)
from agentest.scale.shares import Share, part_of
from agentest.scale.spending import SharedCells, SharedSpending
from agentest.scale.waiting import WaitingUnits
from agentest.scale.worker import PARENT_SIGNALS, work
from agentest.totals import totals_of

if TYPE_CHECKING:  # imported where an agent has servers beside it
    from agentest.scale.guests import Guests
    from agentest.tool_servers.registry import Registry

_GRACE_S = 10.0
"""How long a worker may take to end."""


@contextmanager
def worker_pool(prepared: Prepared, count: int) -> Iterator[WorkerPool]:
    """Fork workers. Must be entered before the event loop begins; all workers have ended afterwards."""
    workers: list[_PoolWorker] = []
    with closing(SharedCells(count)) as cells:
        try:
            for index in range(count):
                part = part_of(prepared, Share(index, count))
                others = [worker.end for worker in workers]
                workers.append(_fork(part, SharedSpending(index, cells), others))
            yield WorkerPool(workers)
        finally:
            for worker in workers:
                worker.end.close()
            for worker in workers:
                worker.process.join(_GRACE_S)
                worker.process.kill()
                worker.process.join()


def _fork(part: Prepared, spending: Spending, others: Sequence[socket.socket]) -> _PoolWorker:
    ours, theirs = socket.socketpair()
    context = multiprocessing.get_context("fork")
    arguments = (part, spending, theirs, [*others, ours])
    process = context.Process(target=work, args=arguments, name="agentest worker")
    # Until the worker handles them itself, signals to the whole group wait.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, PARENT_SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        theirs.close()  # the link ends with the worker, and not with us alone
    return _PoolWorker(process, ours)


class PackedConversations(Sequence[ConversationResult]):
    """Conversations as a worker sent them, unpacked when they are read."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._packed = packed

    def __len__(self) -> int:
        return len(self._packed)

    def __getitem__(self, index: Any) -> Any:
        return self._unpacked[index]

    @cached_property
    def _unpacked(self) -> tuple[ConversationResult, ...]:
        return tuple(pickle.loads(one) for one in self._packed)


class _Stage(IntEnum):
    """How far a worker has come."""

    STARTING = 0
    READY = 1
    IDLE = 2
    DISCONNECTED = 3


@dataclass(slots=True)
class _PoolWorker:
    """A worker as the run sees it."""

    process: ForkProcess
    end: socket.socket
    link: Link = field(init=False)
    stage: _Stage = _Stage.STARTING
    begun: set[tuple[str, str]] = field(default_factory=set)
    guests: Guests | None = None
    """Its conversations whose agents have servers beside them."""
    ended: bool = False
    """Whether it has sent its last message: then its disconnecting is no surprise."""

    def death(self) -> str:
        """How it died."""
        self.process.join(_GRACE_S)
        status = self.process.exitcode or 0
        return (
            f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        )


class WorkerPool:
    """The engine that runs the units of a plan in forked worker processes."""

    def __init__(self, workers: Sequence[_PoolWorker]) -> None:
        self._workers = workers

    @asynccontextmanager
    async def open(self, session: Session, origin: Origin) -> AsyncIterator[RunUnits]:
        """Wait until every worker has opened what it needs; afterwards, have all of them close it.

        Each worker has its own connections; of the origin, only the servers beside the agents are shared.

        Raises UsageError for what the user has to change.
        """
        check_recordings(recordings_of(session.prepared), session.prepared.plan)
        run = _Run(self._workers, session, origin.registry)
        for worker in self._workers:
            on_message, on_disconnect = partial(run.receive, worker), partial(run.on_disconnect, worker)
            worker.link = await Link.over(worker.end, on_message, on_disconnect)
        try:
            await run.until_ready()
            yield run.run
            await run.close()
        finally:
            with anyio.CancelScope(shield=True):
                for worker in self._workers:
                    await worker.link.close()


class _Run:
    """Assigns units to workers, receives what they send, and passes it on."""

    def __init__(self, workers: Sequence[_PoolWorker], session: Session, registry: Registry | None) -> None:
        self._registry = registry
        self._units = {(unit.scenario.name, unit.agent): unit for unit in session.prepared.plan.left}
        self._workers = workers
        self._settings = session.settings
        self._emit = session.emit
        self._stop = session.stop
        self._on_note = session.on_note
        self._redact = session.prepared.loaded.redact
        self._on_secrets = session.prepared.loaded.redact.learn
        self._noted: set[str] = set()
        self._problem: UsageError | None = None
        self._reached = {stage: anyio.Event() for stage in _Stage}
        self._requests: asyncio.Queue[_PoolWorker] = asyncio.Queue()
        self._packed: dict[tuple[str, str], dict[int, bytes]] = {
            place: {number: packed(result) for number, result in unit.kept.conversations.items()}
            for place, unit in self._units.items()
        }
        self._results: dict[str, ScenarioResult] = {}

    async def until_ready(self) -> None:
        """Wait until every worker can begin. Raises UsageError if one cannot."""
        await self._reached[_Stage.READY].wait()
        if self._problem:
            raise self._problem

    async def run(self) -> Mapping[str, ScenarioResult]:
        """Run all units; their results by scope."""
        async with anyio.create_task_group() as tasks:
            self._admit_guests(tasks)
            tasks.start_soon(self._assign_units)
            await self._until_idle()
            tasks.cancel_scope.cancel()
        for worker in self._workers:
            if worker.stage < _Stage.IDLE:
                worker.process.kill()
                self._give_up(worker, "did not end when it was told to")
        return self._results

    def _admit_guests(self, tasks: TaskGroup) -> None:
        if self._registry:
            from agentest.scale.guests import Guests

            for worker in self._workers:
                worker.guests = Guests(self._registry, worker.link.send, tasks)

    async def close(self) -> None:
        """Have all workers close what they have opened, and wait for their end."""
        self._send_all(Close())
        await self._reached[_Stage.DISCONNECTED].wait()

    async def _until_idle(self) -> None:
        idle = self._reached[_Stage.IDLE]
        with self._stop.scope:
            await idle.wait()
        if self._stop.reason is not None:
            self._send_all(StopRun(self._stop.reason, self._stop.status, self._stop.interrupted))
            with anyio.move_on_after(_GRACE_S):
                await idle.wait()

    async def _assign_units(self) -> None:
        waiting, pace = WaitingUnits(self._units.values()), Pace(self._settings.debounce_s)
        while True:
            worker = await self._requests.get()
            unit = waiting.next_for(self._workers.index(worker))
            if unit:
                await pace.wait()
            worker.link.send(UnitAssignment(unit.scope if unit else None))

    def _send_all(self, message: object) -> None:
        for worker in self._workers:
            worker.link.send(message)

    def receive(self, worker: _PoolWorker, message: Any) -> None:
        """Handle a message of a worker."""
        match message:
            case UnitRequest():
                self._requests.put_nowait(worker)
            case ConversationDone():
                self._keep(message)
            case ScenarioFinished():
                worker.begun.discard((message.result.name, message.result.agent))
                self._finish(message.result)
            case ScenarioStarted():
                worker.begun.add((message.name, message.agent))
                self._emit(message)
            case ConversationStarted() | TurnFinished() | ConversationHeld() | Noted():
                self._emit(message)
            case Secrets():
                self._on_secrets(message.texts)
            case Enter() | Leave() | Reply() | SpansWanted() if worker.guests:
                worker.guests.receive(message)
            case _:
                self._receive_state(worker, message)

    def _receive_state(self, worker: _PoolWorker, message: Any) -> None:
        match message:
            case Ready():
                self._reach(worker, _Stage.READY)
            case Idle():
                self._reach(worker, _Stage.IDLE)
            case Closed():
                worker.ended = True
            case CannotStart():
                worker.ended = True
                self._problem = ConfigError(message.problem)
            case Failed():
                worker.ended = True
                self._give_up(worker, f"failed: {message.problem}")
            case StopRun():
                self._stop(message.reason, message.status, interrupted=message.interrupted)
            case Note() if message.text not in self._noted:  # several workers may send the same note
                self._noted.add(message.text)
                self._on_note(message.text)

    def on_disconnect(self, worker: _PoolWorker) -> None:
        """Handle the end of a worker."""
        if worker.guests:
            worker.guests.close()
        if not worker.ended:
            self._give_up(worker, worker.death())
        self._reach(worker, _Stage.DISCONNECTED)

    def _reach(self, worker: _PoolWorker, stage: _Stage) -> None:
        worker.stage = stage
        least = min(each.stage for each in self._workers)
        for passed in range(least + 1):
            self._reached[_Stage(passed)].set()

    def _keep(self, done: ConversationDone) -> None:
        self._packed.setdefault((done.name, done.agent), {})[done.number] = done.result
        self._emit(
            ConversationFinished(
                done.name, done.agent, done.json, done.number, failed=done.failed, used=done.used
            )
        )

    def _finish(self, result: ScenarioResult) -> None:
        place = result.name, result.agent
        packed = self._packed.pop(place, {})
        whole = replace(result, conversations=PackedConversations([packed[n] for n in sorted(packed)]))
        self._emit(ScenarioFinished(whole))
        self._results[self._units[place].scope] = whole if self._settings.keep_conversations else result

    def _give_up(self, worker: _PoolWorker, problem: str) -> None:
        """Stop the run, and make results of the units that a worker has left unfinished."""
        if worker.stage is _Stage.STARTING:
            self._problem = UsageError(f"a worker process {problem} before the run began")
            return
        self._stop(f"a worker process {problem}")
        for place in sorted(worker.begun):
            unit = self._units[place]
            left = _unfinished(unit, self._packed.get(place, {}), problem)
            self._finish(with_wishes(left, unit, self._redact))
        worker.begun.clear()


def _unfinished(unit: Unit, packed: Mapping[int, bytes], problem: str) -> ScenarioResult:
    message = f"the worker process {problem} after {len(packed)} of {unit.conversations} conversations"
    reason = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)
    conversations = PackedConversations([packed[number] for number in sorted(packed)])
    result = scenario_result(unit, Verdict(Status.ERRORED, (reason,)), totals=totals_of(conversations))
    return with_figures(result, conversations)
