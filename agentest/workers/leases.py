"""Share the limits of the run's models with its workers.

Rate limiters, circuits and the budget live in the run's process. A worker requests a lease for each attempt
to call a model and reports the attempt's outcome when it ends, so that every limit counts the calls of all
workers exactly. While a model has spare places and no other limit, workers keep the leases of answered
attempts for the next ones, and report answers in sums.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import field
from functools import partial
from itertools import count
from typing import Self

import anyio
from anyio.abc import TaskGroup

from agentest.models.admission import EXACT_S, Capabilities, LocalAttempt, LocalGates, number_gate
from agentest.models.budget import BudgetExhausted, Call, CallerId
from agentest.models.circuit import Circuit, ModelState
from agentest.models.port import Room, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.channel import Send, remote

LEASES = "leases"

Answer = tuple[int, Room | None, float | None]
"""Tokens used, what the provider says is left, and the cost in USD."""


class LeasedGates:
    """The gates of a worker's models. The run's process calls `decide` and `set_state`.

    Args:
        send: sends a message to the run's process.
        redact: redacts error texts before they are sent.
    """

    def __init__(self, send: Send, redact: Callable[[str], str] = str) -> None:
        self.run: WorkerLeases = remote(LEASES, send)
        self.redact = redact
        self.leases = count(1)
        self.waiting: dict[int, LeasedAttempt] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._gates: dict[int, LeasedGate] = {}

    def of(self, spec: ModelSpec) -> LeasedGate:
        return self._gate(number_gate(spec, self._numbers))

    def _gate(self, number: int) -> LeasedGate:
        return self._gates.setdefault(number, LeasedGate(self, number))

    def report(self) -> None:
        """Report the answers of attempts whose leases were kept."""
        for gate in self._gates.values():
            if gate.answers:
                self.run.answered(gate.number, gate.answers, gate.tokens)
                gate.answers = gate.tokens = 0

    def decide(self, lease: int, refusal: ModelError | None) -> None:
        """Grant a lease, or refuse it with the error to raise. A call that was cancelled no longer waits."""
        if waiting := self.waiting.get(lease):
            waiting.decided, waiting.refusal = True, refusal
            waiting.changed.set()

    def set_state(self, number: int, problem: str, *, is_down: bool, keeps: bool) -> None:
        """Record whether a model is down, which changes how waiting time counts, and may leases be kept."""
        gate = self._gate(number)
        gate.state.answers += gate.state.is_open and not is_down  # the model answered in some process
        gate.state.is_open, gate.state.problem = is_down, problem
        gate.keep(keeps=keeps)
        for waiting in self.waiting.values():
            waiting.changed.set()


@dataclass(slots=True, eq=False)
class LeasedGate:
    """The gate to one model whose limits belong to the run's process."""

    gates: LeasedGates
    number: int
    state: ModelState = field(default_factory=partial(ModelState, waits=True))
    capabilities: Capabilities = field(default_factory=Capabilities)
    keeps: bool = False  # True if an answered attempt leaves its lease to the next one
    unused: list[int] = field(default_factory=list)  # leases that were left
    answers: int = 0  # of attempts that left their leases, until they are reported
    tokens: int = 0  # used by them

    def attempt(self, call: Call, tokens: Callable[[], int]) -> LeasedAttempt:
        return LeasedAttempt(self, call, tokens(), next(self.gates.leases))

    def keep(self, *, keeps: bool) -> None:
        """Keep leases from now on, or return them."""
        self.keeps = keeps
        while self.unused and not keeps:
            self.gates.run.give_back(self.unused.pop())

    def refuse_all(self, problem: str) -> None:
        self.gates.run.refuse_all(self.number, self.gates.redact(problem))


@dataclass(slots=True, eq=False)
class LeasedAttempt:
    """An attempt at a LeasedGate. Its outcome is sent when it ends."""

    _gate: LeasedGate
    _call: Call
    _tokens: int
    _lease: int
    decided: bool = False
    refusal: ModelError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    _answer: Answer | None = None
    _error: ModelError | None = None
    _alone: bool = False

    async def __aenter__(self) -> Self:
        gates, call = self._gate.gates, self._call
        if self._gate.unused:
            self._lease = self._gate.unused.pop()
            return self
        gates.waiting[self._lease] = self
        seconds = call.limit.ends_at - asyncio.get_running_loop().time()
        of_call = (call.number, call.asker, call.is_user, call.is_odd, seconds)
        gates.run.request(self._gate.number, self._lease, self._tokens, of_call)
        try:
            while not self.decided:
                # Waiting for a model that is down counts against the call's time limit; waiting in line does
                # not.
                runs = self._gate.state.is_open or call.was_throttled
                with nullcontext() if runs else call.limit.paused():
                    await self.changed.wait()
                self.changed.clear()
        except BaseException:
            gates.run.give_back(self._lease)
            raise
        finally:
            del gates.waiting[self._lease]
        if self.refusal:
            raise self.refusal
        return self

    async def __aexit__(self, *_: object) -> None:
        gate, answer = self._gate, self._answer
        if gate.keeps and answer and not (answer[1] or self._error):
            gate.unused.append(self._lease)
            gate.answers, gate.tokens = gate.answers + 1, gate.tokens + answer[0]
            return
        if self._error:  # the attempts that check it begin with leases of their own
            gate.keep(keeps=False)
        gate.gates.report()  # whether the model is down depends on earlier answers
        gate.gates.run.end(self._lease, answer, self._error, alone=self._alone)

    def succeeded(self, tokens: int, room: Room | None, cost: float | None) -> None:
        self._answer = tokens, room, cost
        self._gate.state.answers += 1

    def failed(self, error: ModelError, *, alone: bool) -> None:
        self._alone = alone
        # A custom model's error may have other arguments, and attributes that are not for others.
        kind = next(
            each for each in (TransientError, ModelUnavailable, ModelError) if isinstance(error, each)
        )
        sent = self._error = kind(self._gate.gates.redact(str(error)))
        vars(sent).update({name: getattr(error, name, value) for name, value in vars(sent).items()})
        is_permanent = isinstance(error, ModelUnavailable) and error.permanent
        self._gate.state.answers += not is_permanent and not isinstance(error, TransientError)


class LeaseCoordinator:
    """Grant leases to all workers.

    Args:
        gates: the models' gates, opened in this process.
    """

    def __init__(self, gates: LocalGates) -> None:
        self.gates = gates.gates
        self._workers: list[WorkerLeases] = []
        self._kept: dict[int, bool] = {}  # number of a gate → whether workers keep its leases
        for gate in gates.gates:
            gate.circuit.on_change = partial(self.limit, gate.circuit)
            gate.places.on_wait = gate.quota.on_wait = self.limit

    def add_worker(self, send: Send, tasks: TaskGroup) -> WorkerLeases:
        """Return the leases of one more worker. Close them when the worker ends.

        Args:
            send: sends a message to the worker.
            tasks: task group for calls that have to wait.
        """
        leases = WorkerLeases(self, tasks, remote(LEASES, send), len(self._workers) + 1)
        self._workers.append(leases)
        for each in {gate.circuit for gate in self.gates if gate.state.is_open or any(self._kept.values())}:
            self.limit(each)
        return leases

    def close(self) -> None:
        """Free the leases of all workers."""
        for leases in self._workers:
            leases.close()

    def limit(self, changed: Circuit | None = None) -> None:
        """Notify workers of a changed circuit, and of gates whose leases they may or may not keep by now."""
        for number, gate in enumerate(self.gates):
            kept, keeps = self._kept.get(number, False), gate.is_spare
            if keeps == kept and gate.circuit is not changed:
                continue
            self._kept[number] = keeps
            if kept and not keeps:
                gate.exact_until = anyio.current_time() + EXACT_S
            for leases in self._workers:
                if not leases.closed:
                    state = number, gate.state.problem
                    leases.worker.set_state(*state, is_down=gate.state.is_open, keeps=keeps)


class _RemoteTimeLimit:
    def __init__(self, seconds: float) -> None:
        self.ends_at = asyncio.get_running_loop().time() + seconds

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = anyio.current_time()
        try:
            yield
        finally:
            self.ends_at += anyio.current_time() - began


@dataclass(slots=True, eq=False)
class WorkerLeases:
    """The leases of one worker, which calls all methods except `close`."""

    _desk: LeaseCoordinator
    _tasks: TaskGroup
    worker: LeasedGates
    _process: int
    _waiting: dict[int, anyio.CancelScope] = field(default_factory=dict)
    _under_way: dict[int, LocalAttempt] = field(default_factory=dict)
    closed: bool = False

    def request(
        self, gate: int, lease: int, tokens: int, of_call: tuple[int, CallerId, bool, bool, float]
    ) -> None:
        """Grant a lease as soon as the limits permit.

        Args:
            of_call: number, conversation, `is_user`, `is_odd`, and how many seconds it may still take.
        """
        if self.closed:
            return
        number, asker, is_user, is_odd, seconds = of_call
        call = Call(_RemoteTimeLimit(seconds), number, self._process, asker, is_user=is_user)
        call.is_odd = is_odd
        attempt = self._desk.gates[gate].attempt(call, lambda: tokens)
        if attempt.enter_now():
            self._grant(lease, attempt)
        else:
            scope = self._waiting[lease] = anyio.CancelScope()
            self._tasks.start_soon(self._wait, lease, attempt, scope)

    def give_back(self, lease: int) -> None:
        """Take back a lease that was not used, or that no call waits for."""
        if scope := self._waiting.get(lease):
            scope.cancel()
        elif attempt := self._under_way.pop(lease, None):
            attempt.leave(made=False)

    def answered(self, gate: int, answers: int, tokens: int) -> None:
        """Record answers to attempts whose leases the worker kept."""
        self._desk.gates[gate].answered(answers, tokens)

    def end(self, lease: int, answer: Answer | None, error: ModelError | None, *, alone: bool) -> None:
        """Record the outcome of an attempt."""
        if attempt := self._under_way.pop(lease, None):
            if error:
                attempt.failed(error, alone=alone)
            if answer:
                attempt.succeeded(*answer)
            attempt.leave()
            if error or (answer and answer[1]):
                self._desk.limit()

    def refuse_all(self, gate: int, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong."""
        self._desk.gates[gate].refuse_all(problem)

    def close(self) -> None:
        """Free everything that the worker had, after it has ended. Attempts in progress count as made."""
        self.closed = True
        for scope in self._waiting.values():
            scope.cancel()
        for attempt in self._under_way.values():
            attempt.leave()
        self._under_way = {}

    async def _wait(self, lease: int, attempt: LocalAttempt, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await attempt.enter()
                if scope.cancel_called:  # at the moment when it was granted
                    attempt.leave(made=False)
                else:
                    self._grant(lease, attempt)
        except (ModelUnavailable, BudgetExhausted) as error:
            self.worker.decide(lease, error)
        finally:
            del self._waiting[lease]

    def _grant(self, lease: int, attempt: LocalAttempt) -> None:
        self._under_way[lease] = attempt
        self.worker.decide(lease, None)
        self._desk.limit()
