"""What stands before every attempt to ask a model: its places and rates, whether it is down, the budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from types import TracebackType
from typing import Protocol, Self

import anyio

from agentest.models.budget import Asker, Budget
from agentest.models.circuit import Circuit
from agentest.models.limits import DEFAULT_CONCURRENCY, Limiter, Place
from agentest.models.port import ChatRequest, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.http.retries import MAX_RETRY_AFTER_S


class CallLimit(Protocol):
    """The time that a call has got. Standing in line does not count: it is paused meanwhile."""

    @property
    def ends_at(self) -> float:
        """By the event loop's clock."""
        ...

    def paused(self) -> AbstractContextManager[None]: ...


_numbers = count(1)


class Call:
    """One answer that is asked for, with all its attempts.

    Args:
        number: tells it from the others of its process.
        process: tells the processes from each other that ask at one gate; 0: the gate's own.
        asker: the conversation that wants the answer.
    """

    __slots__ = ("asker", "limit", "number", "process")

    def __init__(
        self, limit: CallLimit, number: int | None = None, process: int = 0, asker: Asker = None
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
    """One attempt, which may be made inside of `async with`; what became of it is reported to it.

    Entering waits until it may be made. Raises ModelUnavailable where the model is down and not to be waited
    for, and BudgetExhausted.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def spent(self, cost: float | None) -> None:
        """It cost so many USD; None: nobody knows. To be told of every attempt, whatever came of it."""
        ...

    def succeeded(self, tokens: int, hold_s: float) -> None:
        """It was answered. `tokens` replaces the estimate, 0: not known; nobody asks for `hold_s` seconds."""
        ...

    def failed(self, error: ModelError, *, alone: bool) -> None:
        """It was not answered, or refused. `alone`: the pause it is asked for may be for it only."""
        ...


class Gate(Protocol):
    """The way to one model, for all who ask it."""

    known_good: ChatRequest | None
    """A request that was answered in this run; None: there was none."""

    @property
    def checking(self) -> anyio.Lock:
        """Is held by who checks whether all requests are refused."""
        ...

    @property
    def waits(self) -> bool:
        """Whether a model that answers nobody is waited for."""
        ...

    @property
    def answers(self) -> int:
        """How many requests were answered, as far as is known here: only ever grows."""
        ...

    @property
    def counts_tokens(self) -> bool:
        """Whether attempts need an estimate of their tokens."""
        ...

    @property
    def is_down(self) -> bool: ...

    @property
    def problem(self) -> str:
        """Why it is down."""
        ...

    def attempt(self, call: Call, tokens: int) -> Attempt:
        """An attempt to be entered with `async with` once.

        Args:
            tokens: about how many it takes.
        """
        ...

    def refuse_all(self, problem: str) -> None:
        """The key, the account or the model's name is wrong, whatever is asked (401, 403, 404)."""
        ...


class LocalGate:
    """The gate whose limits, circuit and budget are objects of this process."""

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
        """Whether a model that answers nobody is waited for."""
        return self.circuit.waits

    @property
    def answers(self) -> int:
        """How many requests were answered."""
        return self.circuit.answers

    @property
    def counts_tokens(self) -> bool:
        """Whether attempts need an estimate of their tokens."""
        return self.limiter.counts_tokens

    @property
    def is_down(self) -> bool:
        """Whether nobody but one who probes may ask."""
        return self.circuit.is_open

    @property
    def problem(self) -> str:
        """Why it is down."""
        return self.circuit.problem

    def attempt(self, call: Call, tokens: int) -> LocalAttempt:
        """An attempt to be entered with `async with` once."""
        return LocalAttempt(self, call, tokens)

    def lend(self, most: int, tokens: int) -> list[Spare]:
        """Attempts ahead of need, at most so many: none where somebody may have to wait for them."""
        lent: list[Spare] = []
        most = 0 if self.circuit.is_open else min(most, self.limiter.spare(tokens))
        for _ in range(most):
            place = self.limiter.place(tokens)
            if (self.budget and not self.budget.may_lend()) or not place.take_now():
                break
            if self.budget:
                self.budget.lend()
            lent.append(Spare(self, place))
        return lent

    def refuse_all(self, problem: str) -> None:
        """The key, the account or the model's name is wrong, whatever is asked."""
        self.circuit.refuse_all(problem)


class LocalAttempt:
    """An attempt at a LocalGate.

    Args:
        place: where it is held already.
    """

    __slots__ = ("_answers", "_call", "_gate", "_place")

    def __init__(self, gate: LocalGate, call: Call, tokens: int, place: Place | None = None) -> None:
        self._gate = gate
        self._answers = gate.answers
        self._call = call
        self._place = place or gate.limiter.place(tokens, call.limit)

    async def __aenter__(self) -> Self:
        await self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def enter(self) -> None:
        """Wait until it may be made. Raises ModelUnavailable, BudgetExhausted."""
        try:
            await self._enter()
        except BaseException:
            self._gate.circuit.leave(self._call)
            raise

    async def _enter(self) -> None:
        circuit, budget = self._gate.circuit, self._gate.budget
        while True:
            if circuit.is_open:
                await circuit.admit(self._call, self._call.limit.ends_at)
            if budget:  # who may be refused waits for that without a place, which others need to go on
                with self._call.limit.paused():
                    await budget.settle(self._call.asker)
            await self._place.take()
            if not circuit.keeps_out(self._call) and (budget is None or budget.has_one()):
                break
            self._give_up_place()  # it opened while the place was waited for, or others took the last attempt
        if budget:
            budget.reserve()
        self._answers = circuit.answers

    def enter_now(self) -> bool:
        """Enter if nobody has to wait, and nothing speaks against it; whether it was entered."""
        circuit, budget = self._gate.circuit, self._gate.budget
        if circuit.is_open or (budget and not budget.has_one()) or not self._place.take_now():
            return False
        if budget:
            budget.reserve()
        self._answers = circuit.answers
        return True

    def leave(self) -> None:
        """It is over, whatever came of it."""
        self._place.give_back()
        self._gate.circuit.leave(self._call)
        if self._gate.budget:
            self._gate.budget.over()

    def unmade(self) -> None:
        """It was entered, and is not made."""
        self._give_up_place()
        self._gate.circuit.leave(self._call)
        if self._gate.budget:
            self._gate.budget.unmade()

    def _give_up_place(self) -> None:
        self._place.unused()
        self._place.give_back()

    def spent(self, cost: float | None) -> None:
        """It cost so many USD; None: nobody knows."""
        if self._gate.budget:
            self._gate.budget.spent(cost)

    def succeeded(self, tokens: int, hold_s: float) -> None:
        """It was answered."""
        self._gate.circuit.answered()
        self._place.succeeded(tokens)
        self._gate.limiter.hold(hold_s)

    def failed(self, error: ModelError, *, alone: bool) -> None:
        """It was not answered, or refused."""
        circuit = self._gate.circuit
        if isinstance(error, TransientError):
            alone = alone or circuit.answers > self._answers
            circuit.attempt_failed(self._call, error, alone=alone)
            if error.throttled:
                # An open circuit holds everybody as it is, and a long pause may be for this call only.
                is_own = alone and (error.retry_after or 0.0) > MAX_RETRY_AFTER_S
                self._place.throttled(None if circuit.is_open or is_own else error.retry_after)
        elif not (isinstance(error, ModelUnavailable) and error.permanent):
            circuit.answered()


class Spare:
    """An attempt that was lent ahead of need: it is made later by who needs one, or comes back."""

    __slots__ = ("_gate", "_place", "_reclaimed")

    def __init__(self, gate: LocalGate, place: Place) -> None:
        self._gate = gate
        self._place = place
        self._reclaimed = False

    def reclaim(self) -> None:
        """Give its place to others: who has it does not answer. Whether it is made is not known yet."""
        if not self._reclaimed:
            self._reclaimed = True
            self._place.unused()
            self._place.give_back()

    def made(self, call: Call, tokens: int) -> LocalAttempt:
        """It is made now, for this call."""
        if self._reclaimed:
            self._place.take_anyway()
        self._place.estimate(tokens)
        if self._gate.budget:
            self._gate.budget.take_back(made=True)
        return LocalAttempt(self._gate, call, tokens, self._place)

    def returned(self) -> None:
        """Nobody needed it."""
        self.reclaim()
        if self._gate.budget:
            self._gate.budget.take_back(made=False)


class Gates(Protocol):
    """Has the gates of a run's models."""

    def of(self, spec: ModelSpec) -> Gate:
        """The model's gate, the same one for all roles in which it has the same limits."""
        ...


class GateNumbers:
    """What gates are called in messages: a number says nothing of an endpoint or a key.

    Processes that open the models of one run in the same order give them the same numbers.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, spec: ModelSpec) -> int:
        """The number of the model's gate."""
        limits = (spec.max_concurrency, spec.requests_per_minute, spec.tokens_per_minute, spec.deadline_s)
        return self._numbers.setdefault((*_endpoint(spec), *limits), len(self._numbers))


class LocalGates:
    """Gates whose limits, circuits and budget are objects of this process.

    Args:
        concurrency: conversations under way at once.
        announce: receives what the user should know at once: that the run waits for a model.
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
        """The model's gate, the same one for all roles in which it has the same limits."""
        number = self._numbers.of(spec)
        if number not in self._gates:
            self._gates[number] = LocalGate(
                spec.name, self._limiter(spec), self._circuit(spec), budget=self.budget
            )
        return self._gates[number]

    def all(self) -> Sequence[LocalGate]:
        """All gates, in the order of their numbers."""
        return [self._gates[number] for number in range(len(self._gates))]

    def numbered(self, number: int) -> LocalGate:
        """The gate that messages call by this number."""
        return self._gates[number]

    def _limiter(self, spec: ModelSpec) -> Limiter:
        at_once = spec.requests_at_once(self._concurrency)
        limits = (at_once, spec.requests_per_minute, spec.tokens_per_minute)
        # One conversation at a time has one request under way, whichever of its models is asked.
        together = self._concurrency == 1 and not spec.max_concurrency
        whose = () if together else _endpoint(spec)
        return self._limiters.setdefault((*whose, *limits), Limiter(*limits))

    def _circuit(self, spec: ModelSpec) -> Circuit:
        circuit = Circuit(spec.name, spec.deadline_s, self._announce)
        return self._circuits.setdefault((*_endpoint(spec), spec.deadline_s), circuit)


def _endpoint(spec: ModelSpec) -> tuple[object, ...]:
    return spec.base_url, spec.model, spec.api_key
