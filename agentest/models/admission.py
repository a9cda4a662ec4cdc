"""The gate that every attempt to call a model passes: concurrency, rates, circuit breaker and budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import field
from typing import Protocol, Self

import anyio

from agentest.models.budget import Budget, Call, Pausable
from agentest.models.circuit import Circuit, ModelState, Places
from agentest.models.limits import DEFAULT_CONCURRENCY, FIRST_GAP_S, Quota
from agentest.models.port import ChatReply, ChatRequest, Level, Room, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.http.retries import MAX_RETRY_AFTER_S
from agentest.support.lazy_dataclasses import dataclass

EXACT_S = 1.0
"""How long each attempt is counted by itself after an error, and after other limits than places."""
_CONFIRMED_S = 10.0
"""How long requests wait at most until a refusal is confirmed."""


class Capabilities:
    """The response formats and parameters that an endpoint accepts.

    A refusal changes only the refused request, which goes on without the feature. A feature is given up for
    all requests when two were refused with it and answered without it, and none was answered with it. Until
    the first answer with a response format, one request at a time finds out. If it is not refused for a
    while, the others go on.
    """

    def __init__(self) -> None:
        self.known_good: ChatRequest | None = None  # a request that was answered in this run
        self.checking = anyio.Lock()
        self._examining = anyio.Lock()
        self.is_doubted = False  # True once a request was refused
        self.renamed: dict[str, str] = {}
        """Formats and parameters that are given up → the name that the endpoint wants instead; "": none."""
        self.accepted: set[str] = set()  # names of formats and parameters
        self._refused: Counter[str] = Counter()

    def level(self, schema: str) -> Level:
        """Return the strictest response format that may be accepted for this schema."""
        if not self.renamed:
            return Level.SCHEMA
        levels = (Level.SCHEMA, Level.JSON_MODE)
        known = (each for each in levels if not self.renamed.keys() & {each.name, f"{each.name} {schema}"})
        return next(known, Level.PROMPT)

    @asynccontextmanager
    async def examined(self, schema: str, limit: Pausable) -> AsyncIterator[None]:
        """Let one request at a time find out whether the endpoint accepts a response format at all."""
        is_alone = False
        with limit.paused():
            for seconds in (FIRST_GAP_S, _CONFIRMED_S):
                if not is_alone and (seconds is FIRST_GAP_S or self.is_doubted):
                    with anyio.move_on_after(seconds):
                        await self._examining.acquire()
                        is_alone = True
        if is_alone and not self.is_unclear(schema):
            is_alone = False
            self._examining.release()
        try:
            yield
        finally:
            if is_alone:
                self._examining.release()

    def is_unclear(self, schema: str) -> bool:
        """Return True if no request of this run shows whether the endpoint accepts the response format."""
        level = self.level(schema)
        return level is not Level.PROMPT and level.name not in self.accepted

    def answered(self, schema: str, level: Level, reply: ChatReply, refused: Mapping[str, str]) -> None:
        """Record an answer.

        Args:
            refused: the features with which the same request was refused before; parameters as in
                `ChatRequest.renamed`.
        """
        if level is not Level.PROMPT:
            self.accepted.update((level.name, f"{level.name} {schema}"))
        self.accepted.update(reply.parameters)
        for feature, other in refused.items():
            self._refused[feature] += 1
            if feature not in self.accepted and self._refused[feature] > 1:
                self.renamed[feature] = other


class Attempt(AbstractAsyncContextManager["Attempt", None], Protocol):
    """One attempt, made inside of `async with`. Its outcome is reported to it.

    Entering waits until the attempt may be made. Raises ModelUnavailable if the model is down and calls do
    not wait for it, and BudgetExhausted.
    """

    def succeeded(self, tokens: int, room: Room | None, cost: float | None) -> None:
        """Record an answer.

        Args:
            tokens: replaces the estimate unless it is 0.
            room: what the provider says is left.
            cost: in USD, or its bound if it is unknown; None if the price is unknown.
        """

    def failed(self, error: ModelError, *, alone: bool) -> None:
        """Record a failure or refusal. `alone`: a requested pause may apply to this call only."""


class ModelGate(Protocol):
    """The gate to one model, shared by all of its callers."""

    state: ModelState
    capabilities: Capabilities

    def attempt(self, call: Call, tokens: Callable[[], int]) -> Attempt:
        """Create an attempt, to be entered once with `async with`.

        Args:
            tokens: estimates the number of tokens, if they are counted.
        """

    def refuse_all(self, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong (401, 403, 404)."""


class LocalGate:
    """A gate whose limits, circuit and budget belong to this process."""

    def __init__(
        self,
        name: str,
        places: Places | None = None,
        circuit: Circuit | None = None,
        budget: Budget | None = None,
        quota: Quota | None = None,
    ) -> None:
        self.places = places or Places(DEFAULT_CONCURRENCY)
        self.quota = quota or Quota()
        self.circuit = circuit or Circuit(name)
        self.state: ModelState = self.circuit
        self.budget = budget
        self.capabilities = Capabilities()
        self.exact_until = 0.0  # until then, each attempt is counted when it begins and when it ends

    @property
    def is_spare(self) -> bool:
        """True if only places limit attempts, none is lost, a tenth of them is free, and no call waits."""
        places, is_exact = self.places, anyio.current_time() < self.exact_until
        if is_exact or self.budget or self.circuit.is_open or not self.quota.is_unlimited or places.waiting:
            return False
        return places.places == places.max_concurrency and places.in_progress < 0.9 * places.places

    def answered(self, times: int, tokens: int) -> None:
        """Record answers to attempts that were made with the admission of earlier ones."""
        self.circuit.answered(-1, times)
        self.places.succeeded(self.places.decreases, times)
        self.quota.count(times, tokens)

    def attempt(self, call: Call, tokens: Callable[[], int]) -> LocalAttempt:
        return LocalAttempt(self, call, 0 if self.quota.is_unlimited else tokens())

    def refuse_all(self, problem: str) -> None:
        self.circuit.refuse_all(problem)


class LocalAttempt:
    """An attempt at a LocalGate."""

    __slots__ = ("_answers", "_call", "_gate", "_lowered", "_since", "_throttled", "_tokens", "_waits")

    def __init__(self, gate: LocalGate, call: Call, tokens: int) -> None:
        self._gate = gate
        self._call = call
        self._tokens = tokens
        self._throttled = False

    async def __aenter__(self) -> Self:
        if not self.enter_now():
            await self.enter()
        return self

    async def __aexit__(self, *_: object) -> None:
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
                await gate.places.take(call)
                try:
                    await gate.quota.take(call, self._tokens)
                except BaseException:
                    gate.places.give_back()
                    raise
                if not circuit.keeps_out(call) and not (budget and budget.used_up()):
                    break
                # The circuit opened during the wait, or other calls took the last attempt.
                gate.quota.give_back(self._tokens, made=False)
                gate.places.give_back()
            if budget:
                budget.reserve()
        except BaseException:
            circuit.leave(call)
            raise
        self._note_begin()

    def _note_begin(self) -> None:
        gate = self._gate
        self._since, self._lowered = gate.places.decreases, gate.quota.lowered
        self._answers, self._waits = gate.circuit.answers, gate.circuit.waits_begun

    def enter_now(self) -> bool:
        """Enter if that is possible without waiting. Return True if the attempt was entered."""
        gate = self._gate
        if gate.circuit.is_open or (gate.budget and gate.budget.used_up()):
            return False
        if not gate.places.take_now(self._call):
            return False
        if not gate.quota.take_now(self._call, self._tokens):
            gate.places.give_back()
            return False
        if gate.budget:
            gate.budget.reserve()
        self._note_begin()
        return True

    def leave(self, *, made: bool = True) -> None:
        """Record that the attempt has ended, or that it was entered but not made."""
        gate = self._gate
        gate.quota.give_back(self._tokens, made=made)
        gate.places.give_back()
        gate.circuit.leave(self._call)
        if gate.budget:
            gate.budget.over(made=made and not self._throttled)  # a refused request costs nothing

    def succeeded(self, tokens: int, room: Room | None, cost: float | None) -> None:
        gate = self._gate
        if cost and gate.budget:
            gate.budget.cost += cost
        gate.circuit.answered(self._waits)
        if tokens:
            gate.quota.tokens += tokens
            gate.quota.settle(self._tokens, tokens)
        gate.quota.succeeded(self._lowered, room)
        gate.places.succeeded(self._since)

    def failed(self, error: ModelError, *, alone: bool) -> None:
        gate, circuit = self._gate, self._gate.circuit
        gate.exact_until = anyio.current_time() + EXACT_S
        if isinstance(error, TransientError):
            alone = alone or circuit.answers > self._answers
            circuit.attempt_failed(self._call, error, alone=alone)
            if error.throttled:
                self._throttled = True
                gate.quota.refused += 1
                # A long pause may concern this call only, which is checked.
                if alone and (error.retry_after or 0.0) > MAX_RETRY_AFTER_S:
                    gate.quota.restart()
                elif not self._call.is_odd:
                    gate.quota.throttled(self._lowered, error.retry_after)
            elif error.overloaded or error.late:
                gate.places.overloaded(self._since)
        elif not (isinstance(error, ModelUnavailable) and error.permanent):
            circuit.answered(self._waits)
            gate.quota.succeeded(self._lowered, None)


class Gates(Protocol):
    """The gates of a run's models."""

    def of(self, spec: ModelSpec) -> ModelGate:
        """Return the model's gate. Roles with the same limits share one gate."""


def number_gate(spec: ModelSpec, numbers: dict[tuple[object, ...], int]) -> int:
    """Return the number of the model's gate, which reveals no endpoint and no key in messages.

    Processes that open the models of one run in the same order assign the same numbers.
    """
    return numbers.setdefault((*_key(spec), spec.pool, spec.max_concurrency, spec.deadline_s), len(numbers))


@dataclass(slots=True, eq=False)
class LocalGates:
    """Gates whose limits, circuits and budget belong to this process.

    Places belong to roles with the same `max_concurrency`; a quota belongs to a key, whatever the role.
    """

    _concurrency: int  # conversations in progress at once
    budget: Budget | None = None
    announce: Callable[[str], None] = lambda _: None
    """Receives messages for the user that cannot wait, such as that the run waits for a model."""
    _stop: Callable[[str], None] = lambda _: None
    """Ends the run, for the reason that a model refuses every request."""
    _numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    _places: dict[tuple[object, ...], Places] = field(default_factory=dict)
    quotas: dict[tuple[object, ...], Quota] = field(default_factory=dict)
    _circuits: dict[tuple[object, ...], Circuit] = field(default_factory=dict)
    gates: list[LocalGate] = field(default_factory=list)  # by number

    def of(self, spec: ModelSpec) -> LocalGate:
        number, key = number_gate(spec, self._numbers), _key(spec)
        quota = self.quotas.setdefault((spec.base_url, spec.pool or spec.model, spec.api_key), Quota())
        quota.model = spec.pool or spec.name
        quota.require(spec.requests_per_minute, spec.tokens_per_minute)
        if number == len(self.gates):
            circuit = Circuit(spec.name, spec.deadline_s, self.announce, self._stop)
            circuit = self._circuits.setdefault((*key, spec.deadline_s), circuit)
            at_once = spec.requests_at_once(self._concurrency)
            # A single conversation has one request in progress at a time, whichever model it calls.
            together = self._concurrency == 1 and not spec.max_concurrency
            places = self._places.setdefault((() if together else key, at_once), Places(at_once))
            self.gates.append(LocalGate(spec.name, places, circuit, self.budget, quota))
        return self.gates[number]


def _key(spec: ModelSpec) -> tuple[object, ...]:
    return spec.base_url, spec.model, spec.api_key
