"""A run and its workers in one event loop: workers that are slow, die, hang or stop.

Time passes only in sleeps (`fake_time`), so waiting for something that never comes is an error.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import anyio
from anyio.abc import TaskGroup
from builders import conversation, conversation_result
from fake_time import run

from agentest.config.config import Config
from agentest.config.file import LoadedConfig
from agentest.domain.events import Event, Noted
from agentest.domain.results import ScenarioResult, Status
from agentest.models.admission import LocalGates
from agentest.models.port import Ledger
from agentest.runner.executor import units_in_order
from agentest.runner.known_tools import AgentTraits
from agentest.runner.plan import Plan, Unit
from agentest.runner.prepare import Prepared, RunRequest
from agentest.runner.session import RunSession, Settings, Stop, UnitConnections
from agentest.runner.sources import Origin
from agentest.scenarios.model import Scenario
from agentest.support.errors import UsageError
from agentest.support.redaction import Redactor
from agentest.workers.channel import ConversationOrder, deliver, packed, remote
from agentest.workers.coordinator import RunCollectors, WorkerNews, WorkerPool
from agentest.workers.leases import LeaseCoordinator
from agentest.workers.worker_pool import POOL, WORKER, AssignedConversation, OnDisconnect, OnMessage

_END = object()
LONGEST_S = 4000.0
"""Of the fake clock: far more than any of these runs takes."""


def unit(name: str, conversations: int = 1, *, line: str | None = None, parallel: bool = True) -> Unit:
    scenario = Scenario(name=name, file="a.sim.py", line=1, turns=(), parallel=parallel)
    traits = AgentTraits(queue=line)
    return Unit(scenario, "a", "a.sim.py", name, name, conversations, 1, (), {}, traits=traits)


@dataclass
class Fate:
    """What happens to workers and their messages."""

    random: Random = field(default_factory=lambda: Random(0))
    delay_s: float = 0.01
    """What a message takes at most."""
    turn_s: float = 1.0
    judging_s: float = 1.0
    waits_outside: float = 0.0
    """How many of the conversations wait for others in between."""
    connects: int = 1_000_000
    """How many workers there can ever be."""
    stillborn: bool = False
    """Whether workers die before they can begin."""
    refuses: str = ""
    """Why workers cannot begin that take the places of others."""
    fails_at_end: bool = False
    """Whether workers make a mistake when they close what they have opened."""
    kills: frozenset[str] = frozenset()
    """Scopes whose conversations kill whoever holds them."""

    def pause(self, most: float) -> float:
        return self.random.random() * most


class Rules:
    """What the agents observe: their concurrent conversations."""

    def __init__(self, units: Sequence[Unit], most: int) -> None:
        self._units = {unit.scope: unit for unit in units}
        self._most = most
        self.now: set[tuple[str, int]] = set()
        self.broken: list[str] = []
        self.held: Counter[tuple[str, int]] = Counter()
        self.homes: dict[str, set[int]] = defaultdict(set)

    def begin(self, one: tuple[str, int]) -> None:
        if one in self.now:
            self.broken.append(f"{one} is held twice at once")
        self.now.add(one)
        if len(self.now) > self._most:
            self.broken.append(f"{len(self.now)} are held at once")
        own = self._units[one[0]]
        line = own.traits.queue
        others = [other[0] for other in self.now if other != one]
        if line and any(self._units[scope].traits.queue == line for scope in others):
            self.broken.append(f"{one} is held in line {line} with {others}")
        if not own.scenario.parallel and own.scope in others:
            self.broken.append(f"two of {own.scope}, which is not parallel")

    def end(self, one: tuple[str, int]) -> None:
        self.now.discard(one)


class FakeWorker:
    """A worker, and the channel to it."""

    def __init__(
        self, lab: Lab, number: int, tasks: TaskGroup, on_message: OnMessage, on_disconnect: OnDisconnect
    ) -> None:
        self.number = number
        self.alive = True
        self.ready = False
        self.silent = False
        self._lab = lab
        self._on_message = on_message
        self._on_disconnect = on_disconnect
        self._to_run: asyncio.Queue[object] = asyncio.Queue()
        self._to_worker: asyncio.Queue[object] = asyncio.Queue()
        self._life = anyio.CancelScope()
        self._stopped = anyio.CancelScope()
        self._news: WorkerNews = remote(POOL, self._say)
        self._waiting: dict[int, _WaitingConversation] = {}
        self._conversations: TaskGroup
        self._closing = False
        tasks.start_soon(self._carry)
        tasks.start_soon(self._live)

    # The run's end:

    def send(self, message: object) -> None:
        if self.alive:
            self._to_worker.put_nowait(message)

    async def close(self) -> None:
        self._closing = True
        self.die()

    def kill(self) -> None:
        self.die()

    async def death(self) -> str:
        await anyio.sleep(self._lab.fate.pause(0.1))
        return "was killed by SIGKILL"

    # The worker:

    def die(self) -> None:
        """End at once: what was sent arrives."""
        if self.alive:
            self.alive = False
            self.silent = False
            self._life.cancel()
            self._to_run.put_nowait(_END)

    def fail(self) -> None:
        """Report a bug of ours, and end."""
        self._news.failed("a mistake")
        self.die()

    def _say(self, message: object) -> None:
        if self.alive:
            self._to_run.put_nowait(message)

    async def _carry(self) -> None:
        """Bring the worker's messages to the run, in order, some of them together."""
        while (message := await self._to_run.get()) is not _END:
            if self._lab.fate.random.random() < 0.5:
                await anyio.sleep(self._lab.fate.pause(self._lab.fate.delay_s))
            self._on_message(message)
        await anyio.sleep(self._lab.fate.pause(self._lab.fate.delay_s))
        if not self._closing:
            self._on_disconnect()

    async def _live(self) -> None:
        with self._life:
            async with anyio.create_task_group() as life:
                await anyio.sleep(self._lab.fate.pause(1.0))
                if self._lab.fate.stillborn:
                    self.die()
                if self._lab.fate.refuses and self.number > self._lab.size:
                    self._news.cannot_start(self._lab.fate.refuses)
                    self.die()
                self._news.ready()
                self.ready = self.alive
                self._conversations = await life.start(self._hold_all)
                while True:
                    message = await self._to_worker.get()
                    await anyio.sleep(self._lab.fate.pause(self._lab.fate.delay_s))
                    if self.silent:
                        await anyio.sleep_forever()
                    deliver(message, self._waiting, {WORKER: self})

    # What the run calls:

    def run_conversation(self, order: ConversationOrder) -> None:
        self._conversations.start_soon(self._hold, order)

    def end_unit(self, scope: str) -> None:
        """Do nothing."""

    def stop(self, *_: object, **__: object) -> None:
        self._stopped.cancel()

    def close_all(self) -> None:
        if self._lab.fate.fails_at_end:
            self.fail()
        else:
            self._news.closed()
            self.die()

    async def _hold_all(self, *, task_status: Any) -> None:
        with self._stopped:
            async with anyio.create_task_group() as conversations:
                task_status.started(conversations)
                await anyio.sleep_forever()
        await anyio.sleep(self._lab.fate.pause(1.0))
        self._news.idle()

    async def _hold(self, order: ConversationOrder) -> None:
        run: AssignedConversation = remote(order.id, self._say)
        lab, fate = self._lab, self._lab.fate
        one = order.scope, order.number
        lab.rules.homes[order.scope].add(self.number)
        lab.rules.begin(one)
        try:
            await anyio.sleep(fate.pause(fate.turn_s))
            if order.scope in fate.kills:
                self.die()
            run.on_turn(f"{order.scope}-{order.number}", 0, handed_over=False)
            if fate.random.random() < fate.waits_outside:
                await self._wait_outside(order, one, run)
            await anyio.sleep(fate.pause(fate.turn_s))
        finally:
            lab.rules.end(one)
        run.on_ended()
        await anyio.sleep(fate.pause(fate.judging_s))
        lab.rules.held[one] += 1
        conversation_id = f"{order.scope}-{order.number}{order.ids_end}"
        result = conversation_result(held=conversation(conversation_id, []))
        run.finish(packed(result), b"{}", b"", "")

    async def _wait_outside(
        self, order: ConversationOrder, one: tuple[str, int], run: AssignedConversation
    ) -> None:
        waiting = self._waiting[order.id] = _WaitingConversation()
        self._lab.rules.end(one)
        run.free_slot()
        await anyio.sleep(self._lab.fate.pause(self._lab.fate.random.choice((0.0, 0.001, 1.0))))
        run.request_slot()
        await waiting.has_slot.wait()
        self._lab.rules.begin(one)


class _WaitingConversation:
    def __init__(self) -> None:
        self.has_slot = anyio.Event()

    def grant_slot(self) -> None:
        self.has_slot.set()


class Lab:
    """A run with its workers, which is their fleet."""

    called = "worker process"

    def __init__(self, units: Sequence[Unit], size: int, concurrency: int, fate: Fate, **more: Any) -> None:
        self.size = self.needed = size
        self.fate = fate
        self.rules = Rules(units, concurrency)
        self.workers: list[FakeWorker] = []
        self.events: list[Event] = []
        self.notes: list[str] = []
        self.stop = Stop()
        self._tasks: TaskGroup
        config = Config.model_validate({"agent": {"endpoint": "http://127.0.0.1:9/"}})
        plan = Plan(tuple(units), {}, False, units=tuple(units))
        loaded = LoadedConfig(config, Path(), Redactor())
        self.session = RunSession(
            prepared=Prepared(RunRequest(Path()), loaded, plan, ()),
            settings=Settings(concurrency=concurrency, **more),
            emit=self.events.append,
            stop=self.stop,
            on_note=self.notes.append,
            has_workers=True,
        )

    @property
    def said(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Noted)]

    @property
    def alive(self) -> list[FakeWorker]:
        return [worker for worker in self.workers if worker.alive]

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> FakeWorker:
        await anyio.sleep(self.fate.pause(0.3) if self.workers else 0.0)
        if len(self.workers) >= self.fate.connects:
            raise UsageError("no process can be forked any more")
        worker = FakeWorker(self, len(self.workers) + 1, self._tasks, on_message, on_disconnect)
        self.workers.append(worker)
        return worker

    async def run(
        self,
        meddle: Callable[[Lab], Any] | None = None,
        beforehand: Callable[[Lab], Any] | None = None,
        between: Callable[[Lab], Any] | None = None,
    ) -> Mapping[str, ScenarioResult]:
        """Execute the run; `meddle` runs alongside, `beforehand` while workers start, and `between` when they
        are ready and no conversation has started."""
        problem: UsageError | None = None
        results: Mapping[str, ScenarioResult] = {}
        ledger = Ledger()
        origin = Origin(make=_never)
        crew = WorkerPool(
            self, self.session, origin, RunCollectors(ledger, None), LeaseCoordinator(LocalGates(20))
        )
        connections = UnitConnections(ledger=ledger)
        with anyio.fail_after(LONGEST_S):
            async with anyio.create_task_group() as self._tasks:
                try:
                    if beforehand:
                        self._tasks.start_soon(beforehand, self)
                    await crew.assemble()
                    if between:
                        await between(self)
                    if meddle:
                        self._tasks.start_soon(meddle, self)
                    results = (
                        await crew.work(units_in_order(self.session, crew, connections, origin))
                    ).results
                    await crew.close()
                except UsageError as error:
                    problem = error
                finally:
                    await crew.disconnect()
                self._tasks.cancel_scope.cancel()
        if problem:
            raise problem
        return results


async def _never(*_: object) -> Any:
    raise AssertionError("workers hold the conversations")


def running(
    units: Sequence[Unit],
    meddle: Callable[[Lab], Any] | None = None,
    *,
    beforehand: Callable[[Lab], Any] | None = None,
    between: Callable[[Lab], Any] | None = None,
    size: int = 2,
    concurrency: int = 4,
    fate: Fate | None = None,
    **more: Any,
) -> tuple[Lab, Mapping[str, ScenarioResult]]:
    """Execute a run from start to end."""
    made: list[tuple[Lab, Mapping[str, ScenarioResult]]] = []

    async def go() -> None:
        lab = Lab(units, size, concurrency, fate or Fate(), **more)
        made.append((lab, await lab.run(meddle, beforehand, between)))

    run(go)
    return made[0]


def passed(results: Mapping[str, ScenarioResult]) -> bool:
    return all(result.verdict.status is Status.PASSED for result in results.values())
