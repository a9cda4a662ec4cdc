"""The gate that every attempt to call a model passes: concurrency, rates, circuit breaker and budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from types import TracebackType
from typing import Protocol, Self

import anyio

from agentest.models.budget import Budget, CallerId
from agentest.models.circuit import Circuit
from agentest.models.limits import DEFAULT_CONCURRENCY, Limiter, Pausable
from agentest.models.port import ChatRequest, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.http.retries import MAX_RETRY_AFTER_S

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
        self, limit: Pausable, number: int | None = None, process: int = 0, asker: CallerId = None
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

    def succeeded(self, tokens: int, hold_s: float, cost: float | None) -> None:
        """Record an answer.

        Args:
            tokens: replaces the estimate unless it is 0.
            hold_s: seconds for which no request starts.
            cost: in USD; None if it is unknown.
        """

    def failed(self, error: ModelError, *, alone: bool) -> None:
        """Record a failure or refusal. `alone`: a requested pause may apply to this call only."""


class ModelGate(Protocol):
    """The gate to one model, shared by all of its callers."""

    known_good: ChatRequest | None  # a request that was answered in this run; None if there was none

    checking: anyio.Lock
    counts_tokens: bool

    @property
    def waits(self) -> bool:
        """True if calls wait for a model that is down."""

    @property
    def answers(self) -> int:
        """Number of answered requests known here. It never decreases."""

    @property
    def is_down(self) -> bool:
        """True if only a probe may call the model."""

    @property
    def problem(self) -> str:
        """Why the model is down."""

    def attempt(self, call: Call, tokens: int) -> Attempt:
        """Create an attempt, to be entered once with `async with`.

        Args:
            tokens: estimated number of tokens.
        """

    def refuse_all(self, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong (401, 403, 404)."""


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
        self.counts_tokens = self.limiter.counts_tokens

    @property
    def waits(self) -> bool:
        return self.circuit.waits

    @property
    def answers(self) -> int:
        return self.circuit.answers

    @property
    def is_down(self) -> bool:
        return self.circuit.is_open

    @property
    def problem(self) -> str:
        return self.circuit.problem

    def attempt(self, call: Call, tokens: int) -> LocalAttempt:
        return LocalAttempt(self, call, tokens)

    def refuse_all(self, problem: str) -> None:
        self.circuit.refuse_all(problem)


class LocalAttempt:
    """An attempt at a LocalGate."""

    __slots__ = ("_answers", "_call", "_gate", "_since", "_throttled", "_tokens", "_waits")

    def __init__(self, gate: LocalGate, call: Call, tokens: int) -> None:
        self._gate = gate
        self._call = call
        self._tokens = tokens
        self._throttled = False
        self._note_begin()

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
        gate, call = self._gate, self._call
        circuit, budget = gate.circuit, gate.budget
        try:
            while True:
                if budget:  # wait without a slot and without the probe, because others need them to continue
                    if budget.used_up():
                        circuit.leave(call)
                    with call.limit.paused():
                        await budget.settle(call.asker)
                if circuit.is_open:
                    await circuit.admit(call, call.limit.ends_at)
                await gate.limiter.take(self._tokens, call.limit)
                if not circuit.keeps_out(call) and not (budget and budget.used_up()):
                    break
                # The circuit opened during the wait, or other calls took the last attempt.
                gate.limiter.use(-self._tokens, -1)
                gate.limiter.give_back()
            if budget:
                budget.reserve()
        except BaseException:
            circuit.leave(call)
            raise
        self._note_begin()

    def _note_begin(self) -> None:
        circuit, self._since = self._gate.circuit, self._gate.limiter.decreases
        self._answers, self._waits = circuit.answers, circuit.waits_begun

    def enter_now(self) -> bool:
        """Enter if that is possible without waiting. Return True if the attempt was entered."""
        gate = self._gate
        if gate.circuit.is_open or (gate.budget and gate.budget.used_up()):
            return False
        if not gate.limiter.take_now(self._tokens):
            return False
        if gate.budget:
            gate.budget.reserve()
        return True

    def leave(self, *, made: bool = True) -> None:
        """Record that the attempt has ended, or that it was entered but not made."""
        gate = self._gate
        if not made:
            gate.limiter.use(-self._tokens, -1)
        gate.limiter.give_back()
        gate.circuit.leave(self._call)
        if gate.budget:
            gate.budget.over(made=made and not self._throttled)  # a refused request costs nothing

    def succeeded(self, tokens: int, hold_s: float, cost: float | None) -> None:
        gate = self._gate
        if cost and gate.budget:
            gate.budget.spent(cost)
        gate.circuit.answered(self._waits)
        if tokens and gate.counts_tokens:
            gate.limiter.use(tokens - self._tokens)
        gate.limiter.succeeded(self._since)
        if hold_s:
            gate.limiter.hold(hold_s)

    def failed(self, error: ModelError, *, alone: bool) -> None:
        circuit = self._gate.circuit
        if isinstance(error, TransientError):
            alone = alone or circuit.answers > self._answers
            circuit.attempt_failed(self._call, error, alone=alone)
            if error.throttled:
                self._throttled = True
                # An open circuit blocks all calls anyway, and a long pause may apply to this call only.
                is_own = alone and (error.retry_after or 0.0) > MAX_RETRY_AFTER_S
                pause = None if circuit.is_open or is_own else error.retry_after
                self._gate.limiter.throttled(self._since, pause)
        elif not (isinstance(error, ModelUnavailable) and error.permanent):
            circuit.answered(self._waits)


class Gates(Protocol):
    """The gates of a run's models."""

    def of(self, spec: ModelSpec) -> ModelGate:
        """Return the model's gate. Roles with the same limits share one gate."""


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
        self, concurrency: int, budget: Budget | None = None, announce: Callable[[str], None] = lambda _: None
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
