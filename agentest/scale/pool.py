"""`--workers`: the units of one run spread over processes, with one set of limits, one console, one result.

Workers are forked before the event loop begins, with everything that was prepared: scenarios hold functions,
which no other way would bring into another process. Each has a loop, connections and models of its own.
Limits are divided among them; units and the budget are shared. A worker asks for the next unit when it has a
place for it, and sends what happens. What a worker that dies had begun is errored, and the run is stopped.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import pickle
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, partial
from multiprocessing.context import ForkProcess
from typing import Any

import anyio

from agentest.errors import ConfigError, UsageError
from agentest.events import ConversationFinished, Emit, Noted, ScenarioFinished, ScenarioStarted, TurnFinished
from agentest.llm.budget import Spending
from agentest.results import (
    ConversationResult,
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.run.frame import RunOrder, scenario_result
from agentest.run.plan import Unit
from agentest.run.prepare import Prepared
from agentest.run.runner import InOrder
from agentest.run.settings import Settings
from agentest.run.stop import Stop
from agentest.scale.links import Link
from agentest.scale.messages import (
    Close,
    Done,
    Failed,
    Given,
    Held,
    Idle,
    Note,
    Ready,
    Refused,
    StopNow,
    Take,
)
from agentest.scale.shares import Share, part_of
from agentest.scale.spending import SharedCells, SharedSpending
from agentest.scale.worker import HEARD, work
from agentest.totals import totals_of

_LAST_WORDS_S = 10.0


@contextmanager
def crew(prepared: Prepared, count: int) -> Iterator[ForkedCrew]:
    """Fork workers. Must be entered before the event loop begins; at the end none is left."""
    workers: list[_Worker] = []
    with closing(SharedCells(count)) as cells:
        try:
            for index in range(count):
                part = part_of(prepared, Share(index, count))
                others = [worker.end for worker in workers]
                workers.append(_fork(part, SharedSpending(index, cells), others))
            yield ForkedCrew(prepared, workers)
        finally:
            for worker in workers:
                worker.end.close()
            for worker in workers:
                worker.process.join(_LAST_WORDS_S)
                worker.process.kill()
                worker.process.join()


def _fork(part: Prepared, spending: Spending, others: Sequence[socket.socket]) -> _Worker:
    ours, theirs = socket.socketpair()
    context = multiprocessing.get_context("fork")
    given = (part, spending, theirs, [*others, ours])
    process = context.Process(target=work, args=given, name="agentest worker")
    # Until the worker handles them itself, signals to the whole group wait.
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        theirs.close()  # the link ends with the worker, and not with us alone
    return _Worker(process, ours)


class PackedConversations(Sequence[ConversationResult]):
    """Conversations as they came from a worker, unpacked when somebody looks at them."""

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
    GONE = 3


@dataclass(slots=True)
class _Worker:
    """A worker as the run sees it."""

    process: ForkProcess
    end: socket.socket
    link: Link = field(init=False)
    stage: _Stage = _Stage.STARTING
    begun: set[tuple[str, str]] = field(default_factory=set)
    may_leave: bool = False
    """Whether it has said its last words."""

    def death(self) -> str:
        """How it died."""
        self.process.join(_LAST_WORDS_S)
        status = self.process.exitcode or 0
        return (
            f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        )


class ForkedCrew:
    """The workers of one run."""

    def __init__(self, prepared: Prepared, workers: Sequence[_Worker]) -> None:
        self._plan = prepared.plan
        self._redact = prepared.loaded.redact
        specs = {"user": prepared.user, "judge": prepared.judge}
        self._models = {role: spec.name if spec else None for role, spec in specs.items()}
        self._workers = workers

    @asynccontextmanager
    async def ready(
        self, settings: Settings, emit: Emit, stop: Stop, on_note: Callable[[str], None]
    ) -> AsyncIterator[Callable[[], Awaitable[RunResult]]]:
        """Have everything open that the workers need; yields what runs the plan.

        Raises UsageError for what the user has to change.
        """
        frame = RunOrder(self._plan, settings, self._models, emit, stop, self._redact)
        run = _Run(self._plan.units, self._workers, settings, emit, stop, on_note)
        for worker in self._workers:
            hear, lose = partial(run.hear, worker), partial(run.lose, worker)
            worker.link = await Link.over(worker.end, hear, lose)
        try:
            await run.until_ready()
            yield partial(run.run, frame)
        finally:
            with anyio.CancelScope(shield=True):
                for worker in self._workers:
                    await worker.link.close()


class _Run:
    """Hands out units, hears what workers send, and passes it on."""

    def __init__(
        self,
        units: Sequence[Unit],
        workers: Sequence[_Worker],
        settings: Settings,
        emit: Emit,
        stop: Stop,
        on_note: Callable[[str], None],
    ) -> None:
        self._units = {(unit.scenario.name, unit.agent): unit for unit in units}
        self._workers = workers
        self._settings = settings
        self._emit = emit
        self._stop = stop
        self._on_note = on_note
        self._noted: set[str] = set()
        self._refusal: UsageError | None = None
        self._reached = {stage: anyio.Event() for stage in _Stage}
        self._asking: asyncio.Queue[_Worker] = asyncio.Queue()
        self._held: dict[tuple[str, str], dict[int, bytes]] = {}
        self._results: dict[str, ScenarioResult] = {}

    async def until_ready(self) -> None:
        """Wait until every worker can begin. Raises UsageError where one cannot."""
        await self._reached[_Stage.READY].wait()
        if self._refusal:
            raise self._refusal

    async def run(self, frame: RunOrder) -> RunResult:
        """Run all units, and have the workers end."""
        frame.begin()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hand_out)
            await self._until_idle()
            tasks.cancel_scope.cancel()
        for worker in self._workers:
            if worker.stage < _Stage.IDLE:
                worker.process.kill()
                self._give_up(worker, "did not end when it was told to")
        result = frame.conclude(self._results)
        self._tell(Close())
        await self._reached[_Stage.GONE].wait()
        return result

    async def _until_idle(self) -> None:
        idle = self._reached[_Stage.IDLE]
        with self._stop.scope:
            await idle.wait()
        if self._stop.reason is not None:
            self._tell(StopNow(self._stop.reason, self._stop.status, self._stop.interrupted))
            with anyio.move_on_after(_LAST_WORDS_S):
                await idle.wait()

    async def _hand_out(self) -> None:
        line = InOrder(self._units.values(), self._settings.debounce_s)
        while True:
            worker = await self._asking.get()
            unit = await line.take()
            worker.link.send(Given(unit.scope if unit else None))

    def _tell(self, message: object) -> None:
        for worker in self._workers:
            worker.link.send(message)

    def hear(self, worker: _Worker, message: Any) -> None:
        """Act on what a worker sends."""
        match message:
            case Take():
                self._asking.put_nowait(worker)
            case Held():
                self._hold(message)
            case ScenarioFinished():
                worker.begun.discard((message.result.name, message.result.agent))
                self._finish(message.result)
            case ScenarioStarted():
                worker.begun.add((message.name, message.agent))
                self._emit(message)
            case TurnFinished() | Noted():
                self._emit(message)
            case _:
                self._hear_of_itself(worker, message)

    def _hear_of_itself(self, worker: _Worker, message: Any) -> None:
        match message:
            case Ready():
                self._reach(worker, _Stage.READY)
            case Idle():
                self._reach(worker, _Stage.IDLE)
            case Done():
                worker.may_leave = True
            case Refused():
                worker.may_leave = True
                self._refusal = ConfigError(message.problem)
            case Failed():
                worker.may_leave = True
                self._give_up(worker, f"failed: {message.problem}")
            case StopNow():
                self._stop(message.reason, message.status, interrupted=message.interrupted)
            case Note() if message.text not in self._noted:  # all of them may have the same to say
                self._noted.add(message.text)
                self._on_note(message.text)

    def lose(self, worker: _Worker) -> None:
        """A worker is gone."""
        if not worker.may_leave:
            self._give_up(worker, worker.death())
        self._reach(worker, _Stage.GONE)

    def _reach(self, worker: _Worker, stage: _Stage) -> None:
        worker.stage = stage
        least = min(each.stage for each in self._workers)
        for passed in range(least + 1):
            self._reached[_Stage(passed)].set()

    def _hold(self, held: Held) -> None:
        self._held.setdefault((held.name, held.agent), {})[held.number] = held.result
        self._emit(ConversationFinished(held.name, held.agent, held.json, held.number))

    def _finish(self, result: ScenarioResult) -> None:
        place = result.name, result.agent
        held = self._held.pop(place, {})
        whole = replace(result, conversations=PackedConversations([held[n] for n in sorted(held)]))
        self._emit(ScenarioFinished(whole))
        self._results[self._units[place].scope] = whole if self._settings.keep_conversations else result

    def _give_up(self, worker: _Worker, problem: str) -> None:
        """Stop the run, and make results of what a worker has left behind."""
        if worker.stage is _Stage.STARTING:
            self._refusal = UsageError(f"a worker process {problem} before the run began")
            return
        self._stop(f"a worker process {problem}")
        for place in sorted(worker.begun):
            self._finish(_left_behind(self._units[place], self._held.get(place, {}), problem))
        worker.begun.clear()


def _left_behind(unit: Unit, held: Mapping[int, bytes], problem: str) -> ScenarioResult:
    message = f"the worker process {problem} after {len(held)} of {unit.conversations} conversations"
    reason = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)
    totals = totals_of(PackedConversations([held[number] for number in sorted(held)]))
    return scenario_result(unit, Verdict(Status.ERRORED, (reason,)), totals=totals)
