"""Grant workers leases for model calls from the limits that the run's process owns.

Rate limiters, circuits and the budget live in this process. Every lease is an attempt at one of its gates.
Leases that workers requested ahead of need are recalled when another call has to wait. The messages that both
sides exchange are defined at the end of the module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from agentest.models.admission import Call, LentAttempt, LocalAttempt, LocalGate, LocalGates
from agentest.models.budget import BudgetExhausted
from agentest.models.limits import Limiter
from agentest.models.port import TransientError
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.lazy_dataclasses import dataclass

_MOST_AHEAD = 256
"""Maximum number of leases that one worker may have ahead of need."""


class LeaseCoordinator:
    """Grant leases to all workers through one counter per worker.

    Args:
        gates: the models' gates, opened in this process.
    """

    def __init__(self, gates: LocalGates) -> None:
        self._gates = gates
        self._counters: list[WorkerLeases] = []
        for gate in gates.all():
            gate.limiter.on_short = partial(self._recall, gate.limiter)
            gate.circuit.on_change = partial(self._broadcast_state, gate)
        if gates.budget:
            gates.budget.on_short = partial(self._recall, None)

    def counter(self, send: Callable[[LeaseResponse], None], tasks: TaskGroup) -> WorkerLeases:
        """Create the counter for one more worker. Close it when the worker ends.

        Args:
            send: sends a message to the worker.
            tasks: task group for calls that have to wait.
        """
        counter = WorkerLeases(self._gates, tasks, send, len(self._counters) + 1)
        self._counters.append(counter)
        for number, gate in enumerate(self._gates.all()):
            if gate.is_down:
                send(ModelState(number, gate.is_down, gate.problem))
        return counter

    def close(self) -> None:
        """Close all counters, which frees the leases of all workers."""
        for counter in self._counters:
            counter.close()

    def _recall(self, limiter: Limiter | None) -> None:
        """Recall unused leases for this limiter's slots from all workers; None recalls all leases."""
        for number, gate in enumerate(self._gates.all()):
            if limiter is None or gate.limiter is limiter:
                for counter in self._counters:
                    counter.recall(number)

    def _broadcast_state(self, gate: LocalGate) -> None:
        for number, other in enumerate(self._gates.all()):
            if other.circuit is gate.circuit:
                for counter in self._counters:
                    counter.tell(ModelState(number, other.is_down, other.problem))
                    if other.is_down:
                        counter.recall(number)


class _RemoteTimeLimit:
    """Time limit of a worker's call, on this process's clock."""

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = anyio.current_time()
        try:
            yield
        finally:
            self.ends_at += anyio.current_time() - began


_NO_LIMIT = _RemoteTimeLimit(inf)
"""Time limit for calls that never wait here."""


class WorkerLeases:
    """Grant leases to one worker."""

    def __init__(
        self,
        gates: LocalGates,
        tasks: TaskGroup,
        send: Callable[[LeaseResponse], None],
        process: int,
    ) -> None:
        self._gates = gates
        self._tasks = tasks
        self._send = send
        self._process = process
        self._waiting: dict[int, anyio.CancelScope] = {}
        self._under_way: dict[int, LocalAttempt] = {}
        self._ahead: dict[int, tuple[int, LentAttempt]] = {}
        """Lease → gate number and the attempt lent ahead of need."""
        self._lent: dict[int, int] = {}
        """Gate number → how many attempts are lent."""
        self._recalled: dict[int, asyncio.TimerHandle] = {}
        """Gate number → timer that ends the worker's time to answer a recall."""
        self._closed = False

    def receive(self, message: LeaseRequest) -> None:
        """Handle a message from the worker."""
        if self._closed:
            return
        match message:
            case LeaseUsed():
                self._begin(message)
            case AttemptEnded():
                self._end(message)
            case LeasesRequestedAhead():
                self._lend(message)
            case LeaseRequested():
                self._grant_or_wait(message)
            case LeaseRequestCanceled():
                if scope := self._waiting.get(message.lease):
                    scope.cancel()
            case AttemptFailed():
                self._under_way[message.lease].failed(_model_error(message), alone=message.alone)
            case LeasesReturned():
                self._take_back(message)
            case AllRequestsRefused():
                self._gates.numbered(message.gate).refuse_all(message.problem)

    def tell(self, message: LeaseResponse) -> None:
        """Send a message to the worker unless the counter is closed."""
        if not self._closed:
            self._send(message)

    def recall(self, gate: int) -> None:
        """Have the worker return its unused leases for this gate."""
        if self._lent.get(gate) and gate not in self._recalled:
            loop = asyncio.get_running_loop()
            self._recalled[gate] = loop.call_later(VALID_S, self._reclaim, gate)
            self._send(LeasesRecalled(gate))

    def _reclaim(self, gate: int) -> None:
        """Free the slots of a worker that does not respond. It is blocked and will not use them."""
        for lease_gate, spare in self._ahead.values():
            if lease_gate == gate:
                spare.reclaim()

    def close(self) -> None:
        """Free everything that the worker had, after it has ended. Attempts in progress count as made."""
        self._closed = True
        for timer in self._recalled.values():
            timer.cancel()
        for scope in self._waiting.values():
            scope.cancel()
        for attempt in self._under_way.values():
            attempt.leave()
        for _, spare in self._ahead.values():
            spare.returned()
        self._under_way, self._ahead, self._lent = {}, {}, {}

    def _grant_or_wait(self, wanted: LeaseRequested) -> None:
        limit = _RemoteTimeLimit(anyio.current_time() + wanted.seconds)
        call = Call(limit, wanted.call, self._process, wanted.asker)
        attempt = self._gates.numbered(wanted.gate).attempt(call, wanted.tokens)
        if attempt.enter_now():
            self._grant(wanted.lease, attempt)
        else:
            scope = self._waiting[wanted.lease] = anyio.CancelScope()
            self._tasks.start_soon(self._wait, wanted.lease, attempt, scope)

    async def _wait(self, lease: int, attempt: LocalAttempt, scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await attempt.enter()
                self._grant(lease, attempt)
        except (ModelUnavailable, BudgetExhausted) as error:
            self.tell(LeaseDenied(lease, str(error), isinstance(error, BudgetExhausted)))
        finally:
            del self._waiting[lease]

    def _grant(self, lease: int, attempt: LocalAttempt) -> None:
        if self._closed:
            attempt.leave(made=False)
            return
        self._under_way[lease] = attempt
        self._send(LeaseGranted(lease))

    def _lend(self, wanted: LeasesRequestedAhead) -> None:
        most = min(wanted.count, _MOST_AHEAD - self._lent.get(wanted.gate, 0))
        recalled = wanted.gate in self._recalled
        spares = [] if recalled else self._gates.numbered(wanted.gate).lend(most, wanted.tokens)
        for number, spare in enumerate(spares, wanted.first):
            self._ahead[number] = wanted.gate, spare
        self._lent[wanted.gate] = self._lent.get(wanted.gate, 0) + len(spares)
        self._send(LeasesLent(wanted.gate, wanted.first, len(spares)))

    def _begin(self, begun: LeaseUsed) -> None:
        gate, spare = self._ahead.pop(begun.lease)
        self._lent[gate] -= 1
        call = Call(_NO_LIMIT, begun.call, self._process)
        self._under_way[begun.lease] = spare.made(call, begun.tokens)

    def _end(self, ended: AttemptEnded) -> None:
        attempt = self._under_way.pop(ended.lease)
        if ended.answered:
            attempt.succeeded(ended.tokens, ended.hold_s, ended.cost)
        attempt.leave()

    def _take_back(self, returned: LeasesReturned) -> None:
        if returned.gate is not None and (timer := self._recalled.pop(returned.gate, None)):
            timer.cancel()
        for lease in returned.leases:
            if lease in self._ahead:
                gate, spare = self._ahead.pop(lease)
                self._lent[gate] -= 1
                spare.returned()
            else:
                self._under_way.pop(lease).leave(made=False)


def _model_error(failed: AttemptFailed) -> ModelError:
    match failed.kind:
        case "transient":
            return TransientError(
                failed.problem,
                failed.retry_after,
                throttled=failed.throttled,
                misaddressed=failed.misaddressed,
            )
        case "permanent":
            return ModelUnavailable(failed.problem, permanent=True)
        case "other":
            return ModelError(failed.problem)


VALID_S = 1.0
"""Seconds for which a worker may use a lease requested ahead, from the time of the request.

After that, a recalled lease goes to another call.
"""


class LeaseRequest:
    """Base of messages from a worker to the process that owns the limits."""

    __slots__ = ()


class LeaseResponse:
    """Base of messages from the process that owns the limits to a worker."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LeaseRequested(LeaseRequest):
    """Worker to run: a call waits for a lease and has this many seconds left."""

    gate: int
    lease: int
    call: int
    tokens: int
    seconds: float
    asker: tuple[str, int] | None = None
    """Scope and number of the call's conversation."""


@dataclass(frozen=True, slots=True)
class LeaseRequestCanceled(LeaseRequest):
    """Worker to run: the call no longer waits."""

    lease: int


@dataclass(frozen=True, slots=True)
class LeasesRequestedAhead(LeaseRequest):
    """Worker to run: the worker will soon need `count` leases of about `tokens` tokens each."""

    gate: int
    first: int
    count: int
    tokens: int


@dataclass(frozen=True, slots=True)
class LeaseUsed(LeaseRequest):
    """Worker to run: this call uses a lease that was requested ahead."""

    lease: int
    call: int
    tokens: int


@dataclass(frozen=True, slots=True)
class AttemptFailed(LeaseRequest):
    """Worker to run: the attempt got no answer."""

    lease: int
    problem: str
    kind: Literal["transient", "permanent", "other"]
    retry_after: float | None = None
    throttled: bool = False
    misaddressed: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnded(LeaseRequest):
    """Worker to run: the attempt is over, with its cost."""

    lease: int
    cost: float | None
    answered: bool
    tokens: int = 0
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LeasesReturned(LeaseRequest):
    """Worker to run: these leases were not used."""

    leases: tuple[int, ...]
    gate: int | None = None
    """The gate whose recall this answers; None if it answers no recall."""


@dataclass(frozen=True, slots=True)
class AllRequestsRefused(LeaseRequest):
    """Worker to run: the model refuses every request because of the key or the account."""

    gate: int
    problem: str


@dataclass(frozen=True, slots=True)
class LeaseGranted(LeaseResponse):
    """Run to worker: the call that waits for this lease may make its attempt."""

    lease: int


@dataclass(frozen=True, slots=True)
class LeaseDenied(LeaseResponse):
    """Run to worker: the call that waits for this lease may not be made."""

    lease: int
    problem: str
    exhausted: bool
    """True if the budget is exhausted."""


@dataclass(frozen=True, slots=True)
class LeasesLent(LeaseResponse):
    """Run to worker: `count` of the leases requested ahead are granted, starting at `first`; 0 means none
    now.
    """

    gate: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LeasesRecalled(LeaseResponse):
    """Run to worker: return unused leases at once, because another call waits for them."""

    gate: int


@dataclass(frozen=True, slots=True)
class ModelState(LeaseResponse):
    """Run to worker: whether a model is down, and why."""

    gate: int
    is_down: bool
    problem: str
