"""Call models from a worker with leases from the process that owns the limits.

A worker requests most leases ahead of need, based on its recent usage.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import field
from itertools import count
from math import ceil
from types import TracebackType
from typing import Self

import anyio

from agentest.models.admission import Call, GateNumbers
from agentest.models.budget import BudgetExhausted
from agentest.models.port import ChatRequest, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.lease_coordinator import (
    VALID_S,
    AllRequestsRefused,
    AttemptEnded,
    AttemptFailed,
    LeaseDenied,
    LeaseGranted,
    LeaseRequest,
    LeaseRequestCanceled,
    LeaseRequested,
    LeaseResponse,
    LeasesLent,
    LeasesRecalled,
    LeasesRequestedAhead,
    LeasesReturned,
    LeaseUsed,
    ModelState,
)

Send = Callable[[LeaseRequest], None]

_WINDOW_S = 0.1
"""Seconds of recent usage that leases requested ahead should cover."""
_MAX_AHEAD = 256
_QUIET_S = 0.05
"""Seconds to wait before requesting leases ahead again after a request was declined."""
_USED_S = 0.8 * VALID_S
_IDLE_S = 0.2
"""Seconds after which unused leases are returned."""


@dataclass(frozen=True, slots=True)
class _SharedState:
    """State shared by all gates of a worker."""

    send: Send
    redact: Callable[[str], str]
    leases: Iterator[int]
    waiting: dict[int, _WaitingLease] = field(default_factory=dict)
    """Lease → the call that waits for it."""


class LeasedGates:
    """The gates of a worker's models.

    Args:
        send: sends a message to the process that owns the limits.
        redact: redacts error texts before they are sent.
    """

    def __init__(self, send: Send, redact: Callable[[str], str] = str) -> None:
        self._shared = _SharedState(send, redact, count(1))
        self._numbers = GateNumbers()
        self._gates: dict[int, LeasedGate] = {}
        self._states: dict[int, ModelState] = {}

    def of(self, spec: ModelSpec) -> LeasedGate:
        """Return the model's gate. Roles with the same limits share one gate."""
        number = self._numbers.of(spec)
        if number not in self._gates:
            counts_tokens = bool(spec.tokens_per_minute)
            self._gates[number] = LeasedGate(self._shared, number, counts_tokens=counts_tokens)
            if state := self._states.get(number):
                self._gates[number].changed(state)
        return self._gates[number]

    def receive(self, message: LeaseResponse) -> None:
        """Handle a message from the process that owns the limits."""
        match message:
            case LeaseGranted() | LeaseDenied():
                if waiting := self._shared.waiting.get(message.lease):
                    waiting.hear(message)
                elif isinstance(message, LeaseGranted):  # it crossed our message that the call was cancelled
                    self._shared.send(LeasesReturned((message.lease,)))
            case LeasesLent():
                self._gates[message.gate].lent(message)
            case LeasesRecalled():
                self._gates[message.gate].recalled()
            case ModelState():
                self._states[message.gate] = message
                if gate := self._gates.get(message.gate):
                    gate.changed(message)


class _WaitingLease:
    """A call that waits for a decision about its lease."""

    def __init__(self) -> None:
        self.answer: LeaseGranted | LeaseDenied | None = None
        self._changed = asyncio.Event()

    def hear(self, answer: LeaseGranted | LeaseDenied) -> None:
        self.answer = answer
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    async def changed(self) -> None:
        await self._changed.wait()
        self._changed.clear()


class LeasedGate:
    """The gate to one model whose limits are managed by another process."""

    def __init__(self, wire: _SharedState, number: int, *, counts_tokens: bool) -> None:
        self._shared = wire
        self._number = number
        self.counts_tokens = counts_tokens
        self._state = ModelState(number, False, "")
        self._demand = _DemandEstimate()
        self._spares: deque[tuple[int, float]] = deque()
        """Leases with the time until which each may be used."""
        self._requested_at = 0.0
        self._requested = 0
        """Number of leases requested ahead that have not been decided yet."""
        self._quiet_until = 0.0
        self._returning: asyncio.TimerHandle | None = None
        self._waiting: set[_WaitingLease] = set()
        self.answers = 0
        self.known_good: ChatRequest | None = None
        self.checking = anyio.Lock()

    @property
    def waits(self) -> bool:
        """True if calls wait for a model that is down."""
        return True

    @property
    def is_down(self) -> bool:
        """True if only a probe may call the model, as far as this process knows."""
        return self._state.is_down

    @property
    def problem(self) -> str:
        """Why the model is down."""
        return self._state.problem

    def attempt(self, call: Call, tokens: int) -> LeasedAttempt:
        """Create an attempt, to be entered once with `async with`."""
        return LeasedAttempt(self, self._shared, call, tokens)

    def refuse_all(self, problem: str) -> None:
        """Report that every request will fail: the key, the account or the model's name is wrong."""
        self._shared.send(AllRequestsRefused(self._number, self._shared.redact(problem)))

    def changed(self, state: ModelState) -> None:
        """Handle a model that went down or came up, which changes how waiting time is counted."""
        if self.is_down and not state.is_down:
            self.answers += 1  # the model answered in some process
        self._state = state
        for waiting in self._waiting:
            waiting.wake()

    def lent(self, lent: LeasesLent) -> None:
        """Accept leases that were requested ahead."""
        self._requested = 0
        until = self._requested_at + _USED_S
        self._spares.extend((lent.first + number, until) for number in range(lent.count))
        loop = asyncio.get_running_loop()
        if not lent.count:
            self._quiet_until = loop.time() + _QUIET_S
        elif not self._returning:
            self._returning = loop.call_later(_IDLE_S, self._return_unneeded)

    def recalled(self) -> None:
        """Return unused leases, because another process waits for them."""
        self._quiet_until = asyncio.get_running_loop().time() + _QUIET_S
        self._shared.send(LeasesReturned(tuple(lease for lease, _ in self._spares), self._number))
        self._spares.clear()

    def _return_unneeded(self) -> None:
        """Return leases beyond the recent need."""
        needed = self._demand.ahead(asyncio.get_running_loop().time())
        unneeded = [self._spares.popleft()[0] for _ in range(len(self._spares) - needed)]
        if unneeded:
            self._shared.send(LeasesReturned(tuple(unneeded)))
        self._returning = None
        if self._spares:
            self._returning = asyncio.get_running_loop().call_later(_IDLE_S, self._return_unneeded)

    def _return_old(self, now: float) -> None:
        """Drop leases that may have been given to others because this process was delayed."""
        old = []
        while self._spares and self._spares[0][1] < now:
            old.append(self._spares.popleft()[0])
        if old:
            self._shared.send(LeasesReturned(tuple(old)))

    async def take(self, call: Call, tokens: int) -> int:
        """Take a lease for one attempt. Raises ModelUnavailable or BudgetExhausted."""
        now = asyncio.get_running_loop().time()
        self._demand.began(now, tokens)
        self._return_old(now)
        if self._spares and not self.is_down:
            lease, _ = self._spares.popleft()
            self._shared.send(LeaseUsed(lease, call.number, tokens))
        else:
            lease = next(self._shared.leases)
            await self._wait(lease, call, tokens, call.limit.ends_at - now)
            now = asyncio.get_running_loop().time()  # leases ahead are valid from the request on
        self._request_ahead(now)
        return lease

    async def _wait(self, lease: int, call: Call, tokens: int, seconds: float) -> None:
        waiting = self._shared.waiting[lease] = _WaitingLease()
        self._waiting.add(waiting)
        self._shared.send(LeaseRequested(self._number, lease, call.number, tokens, seconds, call.asker))
        try:
            while waiting.answer is None:
                # Waiting for a model that is down counts against the call's time limit; waiting in line does
                # not.
                with nullcontext() if self.is_down else call.limit.paused():
                    await waiting.changed()
        except BaseException:
            # A lease granted meanwhile goes unused; one granted later is answered in `receive`.
            granted = isinstance(waiting.answer, LeaseGranted)
            self._shared.send(LeasesReturned((lease,)) if granted else LeaseRequestCanceled(lease))
            raise
        finally:
            self._waiting.discard(waiting)
            del self._shared.waiting[lease]
        if isinstance(waiting.answer, LeaseDenied):
            problem = waiting.answer.problem
            raise BudgetExhausted(problem) if waiting.answer.exhausted else ModelUnavailable(problem)

    def _request_ahead(self, now: float) -> None:
        """Request as many leases as will be needed soon."""
        if self._requested or self.is_down or now < self._quiet_until:
            return
        missing = self._demand.ahead(now) - len(self._spares)
        if missing > len(self._spares):  # request in batches
            self._requested, self._requested_at = missing, now
            first = next(self._shared.leases)
            for _ in range(missing - 1):
                next(self._shared.leases)
            self._shared.send(LeasesRequestedAhead(self._number, first, missing, self._demand.tokens))


class _DemandEstimate:
    """Estimate of how many leases are needed ahead, from recent usage."""

    def __init__(self) -> None:
        self._began_at = 0.0
        self._now = self._before = 0
        self._tokens = 0.0

    def began(self, now: float, tokens: int) -> None:
        """Record that a call wants to make an attempt."""
        self._advance_window(now)
        self._now += 1
        self._tokens += (tokens - self._tokens) / 8 if self._tokens else tokens

    def ahead(self, now: float) -> int:
        """Return how many leases may be needed soon."""
        self._advance_window(now)
        return min(_MAX_AHEAD, max(self._now, self._before))

    @property
    def tokens(self) -> int:
        """Estimated tokens per lease."""
        return ceil(self._tokens)

    def _advance_window(self, now: float) -> None:
        if now - self._began_at >= _WINDOW_S:
            lasts = now - self._began_at < 2 * _WINDOW_S
            self._before, self._now, self._began_at = (self._now if lasts else 0), 0, now


class LeasedAttempt:
    """An attempt at a LeasedGate."""

    __slots__ = ("_answer", "_call", "_cost", "_gate", "_lease", "_shared", "_tokens")

    def __init__(self, gate: LeasedGate, wire: _SharedState, call: Call, tokens: int) -> None:
        self._gate = gate
        self._shared = wire
        self._call = call
        self._tokens = tokens
        self._lease = 0
        self._cost: float | None = None
        self._answer: tuple[int, float] | None = None
        """Tokens used, and seconds during which no new request may start."""

    async def __aenter__(self) -> Self:
        self._lease = await self._gate.take(self._call, self._tokens)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tokens, hold_s = self._answer or (0, 0.0)
        self._shared.send(AttemptEnded(self._lease, self._cost, self._answer is not None, tokens, hold_s))

    def succeeded(self, tokens: int, hold_s: float, cost: float | None) -> None:
        self._answer = tokens, hold_s
        self._cost = cost
        self._gate.answers += 1

    def failed(self, error: ModelError, *, alone: bool) -> None:
        failure = self._failure_message(error, alone)
        self._gate.answers += failure.kind == "other"
        self._shared.send(failure)

    def _failure_message(self, error: ModelError, alone: bool) -> AttemptFailed:
        problem = self._shared.redact(str(error))
        if isinstance(error, TransientError):
            return AttemptFailed(
                self._lease,
                problem,
                "transient",
                error.retry_after,
                error.throttled,
                error.misaddressed,
                alone,
            )
        permanent = isinstance(error, ModelUnavailable) and error.permanent
        return AttemptFailed(self._lease, problem, "permanent" if permanent else "other")
