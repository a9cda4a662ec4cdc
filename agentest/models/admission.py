"""The gate that every attempt to call a model passes: concurrency, rates, circuit breaker and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from types import TracebackType
from typing import Protocol, Self

import anyio

from agentest.models.budget import Budget, CallerId
from agentest.models.circuit import Circuit
from agentest.models.limits import DEFAULT_CONCURRENCY, Limiter
from agentest.models.port import ChatRequest, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.http.retries import MAX_RETRY_AFTER_S


class CallLimit(Protocol):
    """The time limit of a call. It is paused while the call waits in line."""

    @property
    def ends_at(self) -> float:
        """End of the limit, on the event loop's clock."""
        ...

    def paused(self) -> AbstractContextManager[None]: ...


_numbers = count(1)


class Call:
    """A call for one answer, with all its attempts.

    Args:
        number: identifies the call within its process.
        process: identifies the calling process at a shared gate; 0 is the gate's own.
        asker: the conversation that needs the answer.
    """

    __slots__ = ("asker", "limit", "number", "process")

    def __init__(
        self, limit: CallLimit, number: int | None = None, process: int = 0, asker: CallerId = None
    ) -> None:
        self.limit = limit
        self.asker = asker
        self.number = next(_numbers) if number is None else number
        self.process = process

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and (other.number, other.process) == (self.number, self.process)

    def __hash__(self) -> int:
        return hash((self.number, self.process))


class Attempt(Protocol):
    """One attempt, made inside of `async with`. Its outcome is reported to it.

    Entering waits until the attempt may be made. Raises ModelUnavailable if the model is down and calls do
    not wait for it, and BudgetExhausted.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def spent(self, cost: float | None) -> None:
        """Record the cost in USD; None if it is unknown. Call it for every attempt, whatever its outcome."""
        ...

    def succeeded(self, tokens: int, hold_s: float) -> None:
        """Record an answer. `tokens` replaces the estimate unless it is 0. No request starts for `hold_s`
        seconds.
        """
        ...

    def failed(self, error: ModelError, *, alone: bool) -> None:
        """Record a failure or refusal. `alone`: a requested pause may apply to this call only."""
        ...


class ModelGate(Protocol):
    """The gate to one model, shared by all of its callers."""

    known_good: ChatRequest | None
    """A request that was answered in this run; None if there was none."""

    @property
    def checking(self) -> anyio.Lock:
        """The lock of the call that checks whether the model fails for all requests."""
        ...

    @property
    def waits(self) -> bool:
        """True if calls wait for a model that is down."""
        ...

    @property
    def answers(self) -> int:
        """Number of answered requests known here. It never decreases."""
        ...

    @property
    def counts_tokens(self) -> bool:
        """True if attempts need a token estimate."""
        ...

    @property
    def is_down(self) -> bool: ...

    @property
    def problem(self) -> str:
        """Why the model is down."""
        ...

    def attempt(self, call: Call, tokens: int) -> Attempt:
        """Create an attempt, to be entered once with `async with`.

        Args:
            tokens: estimated number of tokens.
        """
        ...

    def refuse_all(self, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong (401, 403, 404)."""
        ...


class LocalGate:
    """A gate whose limits, circuit and budget belong to this process."""

    def __init__(
        self,
        name: str,
        limiter: Limiter | None = None,
        circuit: Circuit | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.limiter = limiter or Limiter(DEFAULT_CONCURRENCY)
        self.circuit = circuit or Circuit(name)
        self.budget = budget
        self.known_good: ChatRequest | None = None
        self.checking = anyio.Lock()

    @property
    def waits(self) -> bool:
        """True if calls wait for a model that is down."""
        return self.circuit.waits

    @property
    def answers(self) -> int:
        """Number of answered requests."""
        return self.circuit.answers

    @property
    def counts_tokens(self) -> bool:
        """True if attempts need a token estimate."""
        return self.limiter.counts_tokens

    @property
    def is_down(self) -> bool:
        """True if only a probe may call the model."""
        return self.circuit.is_open

    @property
    def problem(self) -> str:
        """Why the model is down."""
        return self.circuit.problem

    def attempt(self, call: Call, tokens: int) -> LocalAttempt:
        """Create an attempt, to be entered once with `async with`."""
        return LocalAttempt(self, call, tokens)

    def refuse_all(self, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong."""
        self.circuit.refuse_all(problem)


class LocalAttempt:
    """An attempt at a LocalGate."""

    __slots__ = ("_answers", "_call", "_gate", "_slot")

    def __init__(self, gate: LocalGate, call: Call, tokens: int) -> None:
        self._gate = gate
        self._answers = gate.answers
        self._call = call
        self._slot = gate.limiter.slot(tokens, call.limit)

    async def __aenter__(self) -> Self:
        if not self.enter_now():
            await self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def enter(self) -> None:
        """Wait until the attempt may be made. Raises ModelUnavailable or BudgetExhausted."""
        try:
            await self._enter()
        except BaseException:
            self._gate.circuit.leave(self._call)
            raise

    async def _enter(self) -> None:
        circuit, budget = self._gate.circuit, self._gate.budget
        while True:
            if budget:  # wait without a slot and without the probe, because others need them to continue
                if budget.used_up():
                    circuit.leave(self._call)
                with self._call.limit.paused():
                    await budget.settle(self._call.asker)
            if circuit.is_open:
                await circuit.admit(self._call, self._call.limit.ends_at)
            await self._slot.take()
            if not circuit.keeps_out(self._call) and (budget is None or not budget.used_up()):
                break
            self._release_slot()  # the circuit opened during the wait, or other calls took the last attempt
        if budget:
            budget.reserve()
        self._answers = circuit.answers

    def enter_now(self) -> bool:
        """Enter if that is possible without waiting. Return True if the attempt was entered."""
        circuit, budget = self._gate.circuit, self._gate.budget
        if circuit.is_open or (budget and budget.used_up()) or not self._slot.take_now():
            return False
        if budget:
            budget.reserve()
        self._answers = circuit.answers
        return True

    def leave(self) -> None:
        """Record that the attempt has ended, whatever its outcome."""
        self._slot.give_back()
        self._gate.circuit.leave(self._call)
        if self._gate.budget:
            self._gate.budget.over()

    def unmade(self) -> None:
        """Leave an attempt that was entered but not made."""
        self._release_slot()
        self._gate.circuit.leave(self._call)
        if self._gate.budget:
            self._gate.budget.unmade()

    def _release_slot(self) -> None:
        self._slot.unused()
        self._slot.give_back()

    def spent(self, cost: float | None) -> None:
        """Record the cost in USD; None if it is unknown."""
        if self._gate.budget:
            self._gate.budget.spent(cost)

    def succeeded(self, tokens: int, hold_s: float) -> None:
        """Record an answer."""
        self._gate.circuit.answered()
        self._slot.succeeded(tokens)
        self._gate.limiter.hold(hold_s)

    def failed(self, error: ModelError, *, alone: bool) -> None:
        """Record a failure or refusal."""
        circuit = self._gate.circuit
        if isinstance(error, TransientError):
            alone = alone or circuit.answers > self._answers
            circuit.attempt_failed(self._call, error, alone=alone)
            if error.throttled:
                # An open circuit blocks all calls anyway, and a long pause may apply to this call only.
                is_own = alone and (error.retry_after or 0.0) > MAX_RETRY_AFTER_S
                self._slot.throttled(None if circuit.is_open or is_own else error.retry_after)
        elif not (isinstance(error, ModelUnavailable) and error.permanent):
            circuit.answered()


class Gates(Protocol):
    """The gates of a run's models."""

    def of(self, spec: ModelSpec) -> ModelGate:
        """Return the model's gate. Roles with the same limits share one gate."""
        ...


class GateNumbers:
    """Numbers that identify gates in messages without revealing an endpoint or a key.

    Processes that open the models of one run in the same order assign the same numbers.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, spec: ModelSpec) -> int:
        """Return the number of the model's gate."""
        limits = (spec.max_concurrency, spec.requests_per_minute, spec.tokens_per_minute, spec.deadline_s)
        return self._numbers.setdefault((*_endpoint(spec), *limits), len(self._numbers))


class LocalGates:
    """Gates whose limits, circuits and budget belong to this process.

    Args:
        concurrency: conversations in progress at once.
        announce: receives messages for the user that cannot wait, such as that the run waits for a model.
    """

    def __init__(
        self,
        concurrency: int,
        budget: Budget | None = None,
        announce: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.budget = budget
        self._concurrency = concurrency
        self._announce = announce
        self._numbers = GateNumbers()
        self._limiters: dict[tuple[object, ...], Limiter] = {}
        self._circuits: dict[tuple[object, ...], Circuit] = {}
        self._gates: dict[int, LocalGate] = {}

    def of(self, spec: ModelSpec) -> LocalGate:
        """Return the model's gate. Roles with the same limits share one gate."""
        number = self._numbers.of(spec)
        if number not in self._gates:
            self._gates[number] = LocalGate(
                spec.name, self._limiter(spec), self._circuit(spec), budget=self.budget
            )
        return self._gates[number]

    def all(self) -> Sequence[LocalGate]:
        """Return all gates in the order of their numbers."""
        return [self._gates[number] for number in range(len(self._gates))]

    def numbered(self, number: int) -> LocalGate:
        """Return the gate with this number."""
        return self._gates[number]

    def _limiter(self, spec: ModelSpec) -> Limiter:
        at_once = spec.requests_at_once(self._concurrency)
        limits = (at_once, spec.requests_per_minute, spec.tokens_per_minute)
        # A single conversation has one request in progress at a time, whichever model it calls.
        together = self._concurrency == 1 and not spec.max_concurrency
        whose = () if together else _endpoint(spec)
        return self._limiters.setdefault((*whose, *limits), Limiter(*limits))

    def _circuit(self, spec: ModelSpec) -> Circuit:
        circuit = Circuit(spec.name, spec.deadline_s, self._announce)
        return self._circuits.setdefault((*_endpoint(spec), spec.deadline_s), circuit)


def _endpoint(spec: ModelSpec) -> tuple[object, ...]:
    return spec.base_url, spec.model, spec.api_key
