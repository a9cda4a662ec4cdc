"""Where the limits of a run's models are, when workers ask them: it hands out leases, and takes outcomes.

Limiters, circuits and the budget are those of this process; every lease is an attempt at one of its gates.
What workers have ahead of need is recalled when somebody has to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Literal

import anyio
from anyio.abc import TaskGroup

from agentest.models.admission import Call, LocalAttempt, LocalGate, LocalGates, Spare
from agentest.models.budget import BudgetExhausted
from agentest.models.limits import Limiter
from agentest.models.port import TransientError
from agentest.support.errors import ModelError, ModelUnavailable

_MOST_AHEAD = 256
"""Leases that one worker may have ahead of need."""


class LeaseDesk:
    """Has a counter for each worker.

    Args:
        gates: of the models, opened in this process.
    """

    def __init__(self, gates: LocalGates) -> None:
        self._gates = gates
        self._counters: list[LeaseCounter] = []
        for gate in gates.all():
            gate.limiter.on_short = partial(self._recall, gate.limiter)
            gate.circuit.on_change = partial(self._tell, gate)
        if gates.budget:
            gates.budget.on_short = partial(self._recall, None)

    def counter(self, send: Callable[[FromDesk], None], tasks: TaskGroup) -> LeaseCounter:
        """What one more worker is served by. To be closed at its end.

        Args:
            send: to the worker.
            tasks: where what has to wait waits.
        """
        counter = LeaseCounter(self._gates, tasks, send, len(self._counters) + 1)
        self._counters.append(counter)
        for number, gate in enumerate(self._gates.all()):
            if gate.is_down:
                send(ModelState(number, gate.is_down, gate.problem))
        return counter

    def close(self) -> None:
        """No worker is served any longer, and what they held is free."""
        for counter in self._counters:
            counter.close()

    def _recall(self, limiter: Limiter | None) -> None:
        """Have everybody return what is unused of this limiter's places; None: of all."""
        for number, gate in enumerate(self._gates.all()):
            if limiter is None or gate.limiter is limiter:
                for counter in self._counters:
                    counter.recall(number)

    def _tell(self, gate: LocalGate) -> None:
        for number, other in enumerate(self._gates.all()):
            if other.circuit is gate.circuit:
                for counter in self._counters:
                    counter.tell(ModelState(number, other.is_down, other.problem))
                    if other.is_down:
                        counter.recall(number)


class _RemoteLimit:
    """When the time of a worker's call is up, by this process's clock."""

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at

    @contextmanager
    def paused(self) -> Iterator[None]:
        began = anyio.current_time()
        try:
            yield
        finally:
            self.ends_at += anyio.current_time() - began


_UNASKED = _RemoteLimit(inf)
"""Of a call that waits for nothing here."""


class LeaseCounter:
    """Serves one worker."""

    def __init__(
        self,
        gates: LocalGates,
        tasks: TaskGroup,
        send: Callable[[FromDesk], None],
        process: int,
    ) -> None:
        self._gates = gates
        self._tasks = tasks
        self._send = send
        self._process = process
        self._waiting: dict[int, anyio.CancelScope] = {}
        self._under_way: dict[int, LocalAttempt] = {}
        self._ahead: dict[int, tuple[int, Spare]] = {}
        """Lease → its gate's number, and what is lent."""
        self._lent: dict[int, int] = {}
        """Gate → how many are lent."""
        self._recalled: dict[int, asyncio.TimerHandle] = {}
        """Gate → what ends the time in which the worker has to answer its recall."""
        self._closed = False

    def receive(self, message: ToDesk) -> None:
        """Handle a message of the worker."""
        if self._closed:
            return
        match message:
            case Begun():
                self._begin(message)
            case AttemptEnded():
                self._end(message)
            case WantedAhead():
                self._lend(message)
            case Wanted():
                self._want(message)
            case Unwanted():
                if scope := self._waiting.get(message.lease):
                    scope.cancel()
            case AttemptFailed():
                self._under_way[message.lease].failed(_error(message), alone=message.alone)
            case Returned():
                self._take_back(message)
            case AllRefused():
                self._gates.numbered(message.gate).refuse_all(message.problem)

    def tell(self, message: FromDesk) -> None:
        """Tell the worker something."""
        if not self._closed:
            self._send(message)

    def recall(self, gate: int) -> None:
        """Have the worker return what it has ahead of need of this gate's."""
        if self._lent.get(gate) and gate not in self._recalled:
            loop = asyncio.get_running_loop()
            self._recalled[gate] = loop.call_later(VALID_S, self._reclaim, gate)
            self._send(Recalled(gate))

    def _reclaim(self, gate: int) -> None:
        """Give others the places of a worker that does not hear us: it is blocked, and will not use them."""
        for of, spare in self._ahead.values():
            if of == gate:
                spare.reclaim()

    def close(self) -> None:
        """The worker has ended: what it held is for others. What it had begun counts as made."""
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

    def _want(self, wanted: Wanted) -> None:
        limit = _RemoteLimit(anyio.current_time() + wanted.seconds)
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
            self.tell(Denied(lease, str(error), isinstance(error, BudgetExhausted)))
        finally:
            del self._waiting[lease]

    def _grant(self, lease: int, attempt: LocalAttempt) -> None:
        if self._closed:
            attempt.unmade()
            return
        self._under_way[lease] = attempt
        self._send(Granted(lease))

    def _lend(self, wanted: WantedAhead) -> None:
        most = min(wanted.count, _MOST_AHEAD - self._lent.get(wanted.gate, 0))
        recalled = wanted.gate in self._recalled
        spares = [] if recalled else self._gates.numbered(wanted.gate).lend(most, wanted.tokens)
        for number, spare in enumerate(spares, wanted.first):
            self._ahead[number] = wanted.gate, spare
        self._lent[wanted.gate] = self._lent.get(wanted.gate, 0) + len(spares)
        self._send(Lent(wanted.gate, wanted.first, len(spares)))

    def _begin(self, begun: Begun) -> None:
        gate, spare = self._ahead.pop(begun.lease)
        self._lent[gate] -= 1
        call = Call(_UNASKED, begun.call, self._process)
        self._under_way[begun.lease] = spare.made(call, begun.tokens)

    def _end(self, ended: AttemptEnded) -> None:
        attempt = self._under_way.pop(ended.lease)
        attempt.spent(ended.cost)
        if ended.answered:
            attempt.succeeded(ended.tokens, ended.hold_s)
        attempt.leave()

    def _take_back(self, returned: Returned) -> None:
        if returned.gate is not None and (timer := self._recalled.pop(returned.gate, None)):
            timer.cancel()
        for lease in returned.leases:
            if lease in self._ahead:
                gate, spare = self._ahead.pop(lease)
                self._lent[gate] -= 1
                spare.returned()
            else:
                self._under_way.pop(lease).unmade()


def _error(failed: AttemptFailed) -> ModelError:
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
"""How long a worker may use a lease that it has ahead of need, from when it asked for it. Then the process
that has the limits gives it to others, if it was recalled."""


class ToDesk:
    """From a worker: whatever the process hears that has the limits."""

    __slots__ = ()


class FromDesk:
    """To a worker: whatever that process tells of them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Wanted(ToDesk):
    """From a worker: a call waits for a lease, and has so many seconds left."""

    gate: int
    lease: int
    call: int
    tokens: int
    seconds: float
    asker: tuple[str, int] | None = None
    """Scope and number of the call's conversation."""


@dataclass(frozen=True, slots=True)
class Unwanted(ToDesk):
    """From a worker: the call does not wait any longer."""

    lease: int


@dataclass(frozen=True, slots=True)
class WantedAhead(ToDesk):
    """From a worker: it will soon need so many leases for about so many tokens each."""

    gate: int
    first: int
    count: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Begun(ToDesk):
    """From a worker: a lease that it had ahead of need is used, by this call."""

    lease: int
    call: int
    tokens: int


@dataclass(frozen=True, slots=True)
class AttemptFailed(ToDesk):
    """From a worker: the attempt was not answered."""

    lease: int
    problem: str
    kind: Literal["transient", "permanent", "other"]
    retry_after: float | None = None
    throttled: bool = False
    misaddressed: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class AttemptEnded(ToDesk):
    """From a worker: the attempt is over, and cost so much."""

    lease: int
    cost: float | None
    answered: bool
    tokens: int = 0
    hold_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Returned(ToDesk):
    """From a worker: these leases are not used."""

    leases: tuple[int, ...]
    gate: int | None = None
    """The one whose recall this answers."""


@dataclass(frozen=True, slots=True)
class AllRefused(ToDesk):
    """From a worker: a model refuses the key or the account, whatever it is asked."""

    gate: int
    problem: str


@dataclass(frozen=True, slots=True)
class Granted(FromDesk):
    """To a worker: the call that waits for this lease may make its attempt."""

    lease: int


@dataclass(frozen=True, slots=True)
class Denied(FromDesk):
    """To a worker: the call that waits for this lease may not be made."""

    lease: int
    problem: str
    exhausted: bool
    """Whether the run has spent what it may."""


@dataclass(frozen=True, slots=True)
class Lent(FromDesk):
    """To a worker: of the leases that it wanted ahead it has so many, from the first; 0: none for now."""

    gate: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Recalled(FromDesk):
    """To a worker: somebody waits for the leases that it has ahead of need; it returns them at once."""

    gate: int


@dataclass(frozen=True, slots=True)
class ModelState(FromDesk):
    """To a worker: whether a model is down, and why."""

    gate: int
    is_down: bool
    problem: str
