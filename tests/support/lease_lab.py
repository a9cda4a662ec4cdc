"""One lease coordinator and several workers in one event loop, with delayed messages."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup
from fake_time import run
from pydantic import BaseModel

from agentest.domain.transcript import Usage
from agentest.models.admission import LocalGate, LocalGates
from agentest.models.budget import Budget
from agentest.models.caller import LiveModel, RetryPolicy
from agentest.models.limits import Quota
from agentest.models.port import CallKey, ChatReply, ChatRequest, Question
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError
from agentest.workers.channel import deliver, packed
from agentest.workers.forwarding import SendingLedger
from agentest.workers.leases import LEASES, LeaseCoordinator, LeasedGates, WorkerLeases

DELAY_S = 0.002
"""What a message takes from one process to another."""
Fault = Callable[[float], ModelError | None]


class Said(BaseModel):
    text: str


@dataclass
class Model:
    """A model that takes a while for each call, and is called by all workers."""

    lasts: Callable[[], float] = lambda: 0.5
    fault: Fault = lambda at: None
    tokens: int = 0
    name: str = "m"
    asked_at: list[float] = field(default_factory=list)
    asked_by: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    most: int = 0

    async def complete(self, request: ChatRequest) -> ChatReply:
        began = anyio.current_time()
        self.asked_at.append(began)
        self.asked_by[request.key.scope] += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await anyio.sleep(self.lasts())
        finally:
            self.under_way -= 1
        if error := self.fault(began):
            raise error
        return ChatReply('{"text": "hello"}', Usage(self.tokens, 0))


class Wire:
    """One direction of a channel: messages arrive in order and a little later, as between processes."""

    def __init__(self, receiver: Callable[[], object], delay: float) -> None:
        self._receiver = receiver
        self._delay = delay
        self._sent: deque[bytes] = deque()
        self.cut = False
        self.calls: Counter[str] = Counter()  # method → how often it was called

    def __call__(self, message: Any) -> None:
        self._sent.append(packed(message))
        self.calls[message[1]] += 1
        asyncio.get_running_loop().call_later(self._delay, self._arrive)

    def _arrive(self) -> None:
        message = pickle.loads(self._sent.popleft())
        if not self.cut:
            deliver(message, {LEASES: self._receiver()})


class Worker:
    """A worker: its gates, and a model called through them."""

    def __init__(
        self, desk: LeaseCoordinator, spec: ModelSpec, model: Model, name: str, delay: float, tasks: TaskGroup
    ) -> None:
        self.name = name
        self.sent = Wire(lambda: self.leases, delay)
        self.heard = Wire(lambda: self.gates, delay)
        self.leases: WorkerLeases = desk.add_worker(self.heard, tasks)
        self.gates = LeasedGates(self.sent)
        patience = RetryPolicy(spec.timeout_s, spec.deadline_s, spec.retries)
        ledger = SendingLedger(self.sent, self.gates.report)
        self.gate = self.gates.of(spec)
        self.answers = LiveModel(model, ledger, self.gate, patience=patience)

    async def ask(self, number: int = 0, text: str = "?") -> None:
        key = CallKey("user", self.name, number)
        await self.answers.answer(Question([{"role": "user", "content": text}], Said, key))

    async def ask_on(self, until: float) -> None:
        """Make calls until this moment."""
        while anyio.current_time() < until:
            await self.ask()

    def dies(self) -> None:
        self.sent.cut = self.heard.cut = True
        self.leases.close()


class Lab:
    """A lease coordinator and its workers. `shares`: nothing but places limits the model from the begin."""

    def __init__(
        self, tasks: TaskGroup, model: Model, workers: int = 2, max_calls: int | None = None,
        delay: float = DELAY_S, concurrency: int = 20, shares: bool = False, **spec: Any
    ) -> None:  # fmt: skip
        self.tasks = tasks
        self.stopped: list[str] = []
        self.notes: list[str] = []
        self.budget = Budget(None, max_calls, self.stopped.append)
        self.model = model
        self.spec = ModelSpec("m", "m", "https://models.example.com", **spec)
        self.gates = LocalGates(concurrency, None if shares else self.budget, self.notes.append)
        self.gate: LocalGate = self.gates.of(self.spec)
        if shares:  # a model that has answered often enough that nothing but its places limits it
            self.gate.quota = Quota(eager=True)
        self.desk = LeaseCoordinator(self.gates)
        self.workers = [Worker(self.desk, self.spec, model, f"w{n}", delay, tasks) for n in range(workers)]


def in_lab(use: Callable[[Lab], Awaitable[None]], model: Model | None = None, **options: Any) -> Lab:
    """Use a lab, and check that no place is taken at the end."""
    made: list[Lab] = []

    async def go() -> None:
        async with anyio.create_task_group() as tasks:
            lab = Lab(tasks, model or Model(), **options)
            made.append(lab)
            await use(lab)
            await anyio.sleep(5)  # longer than any message takes
            kept = sum(len(worker.gate.unused) for worker in lab.workers if not worker.sent.cut)
            assert lab.gate.places.in_progress == lab.gate.quota.in_progress == kept
            tasks.cancel_scope.cancel()

    run(go)
    return made[0]
