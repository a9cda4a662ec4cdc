"""Share the limits of the run's models with its workers.

Rate limiters, circuits and the budget live in the run's process. A worker requests a lease for each attempt
to call a model and reports the attempt's outcome when it ends, so that every limit counts the calls of all
workers exactly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import Self

import anyio
from anyio.abc import TaskGroup

from agentest.models.admission import Capabilities, LocalAttempt, LocalGate, LocalGates, number_gate
from agentest.models.budget import BudgetExhausted, Call, CallerId
from agentest.models.circuit import ModelState
from agentest.models.port import Room, TransientError
from agentest.models.providers import ModelSpec
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.channel import Send, remote

LEASES = "leases"


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
        self.waiting: dict[int, _WaitingLease] = {}
        self._numbers: dict[tuple[object, ...], int] = {}
        self._gates: dict[int, LeasedGate] = {}
        self._states: dict[int, tuple[bool, str]] = {}

    def of(self, spec: ModelSpec) -> LeasedGate:
        """Return the model's gate. Roles with the same limits share one gate."""
        number = number_gate(spec, self._numbers)
        if number not in self._gates:
            gate = LeasedGate(self, number)
            gate.state.is_open, gate.state.problem = self._states.get(number, (False, ""))
            self._gates[number] = gate
        return self._gates[number]

    def decide(self, lease: int, refusal: ModelError | None) -> None:
        """Grant a lease, or refuse it with the error to raise. A call that was cancelled no longer waits."""
        if waiting := self.waiting.get(lease):
            waiting.is_decided, waiting.refusal = True, refusal
            waiting.changed.set()

    def set_state(self, number: int, problem: str, *, is_down: bool) -> None:
        """Record that a model went down or came up, which changes how waiting time is counted."""
        self._states[number] = is_down, problem
        if gate := self._gates.get(number):
            gate.state.answers += gate.state.is_open and not is_down  # the model answered in some process
            gate.state.is_open, gate.state.problem = is_down, problem
        for waiting in self.waiting.values():
            waiting.changed.set()


class _WaitingLease:
    def __init__(self) -> None:
        self.is_decided = False
        self.refusal: ModelError | None = None
        self.changed = asyncio.Event()


class LeasedGate:
    """The gate to one model whose limits belong to the run's process."""

    def __init__(self, gates: LeasedGates, number: int) -> None:
        self.gates = gates
        self.number = number
        self.state = ModelState(waits=True)
        self.capabilities = Capabilities()

    def attempt(self, call: Call, tokens: Callable[[], int]) -> LeasedAttempt:
        """Create an attempt, to be entered once with `async with`."""
        return LeasedAttempt(self, call, tokens(), next(self.gates.leases))

    def refuse_all(self, problem: str) -> None:
        """Report that every request will fail: the key, the account or the model's name is wrong."""
        self.gates.run.refuse_all(self.number, self.gates.redact(problem))


@dataclass(slots=True, eq=False)
class LeasedAttempt:
    """An attempt at a LeasedGate. Its outcome is sent when it ends."""

    _gate: LeasedGate
    _call: Call
    _tokens: int
    _lease: int
    _answer: tuple[int, Room | None, float | None] | None = None
    _error: ModelError | None = None
    _alone: bool = False

    async def __aenter__(self) -> Self:
        gates, call = self._gate.gates, self._call
        waiting = gates.waiting[self._lease] = _WaitingLease()
        seconds = call.limit.ends_at - asyncio.get_running_loop().time()
        of_call = (call.number, call.asker, call.is_user, call.is_odd, seconds)
        gates.run.request(self._gate.number, self._lease, self._tokens, of_call)
        try:
            while not waiting.is_decided:
                # Waiting for a model that is down counts against the call's time limit; waiting in line does
                # not.
                runs = self._gate.state.is_open or call.was_throttled
                with nullcontext() if runs else call.limit.paused():
                    await waiting.changed.wait()
                waiting.changed.clear()
        except BaseException:
            gates.run.give_back(self._lease)
            raise
        finally:
            del gates.waiting[self._lease]
        if waiting.refusal:
            raise waiting.refusal
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gate.gates.run.end(self._lease, self._answer, self._error, alone=self._alone)

    def succeeded(self, tokens: int, room: Room | None, cost: float | None) -> None:
        self._answer = tokens, room, cost
        self._gate.state.answers += 1

    def failed(self, error: ModelError, *, alone: bool) -> None:
        """Record that the attempt failed or was refused."""
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
        self._gates = gates
        self._workers: list[WorkerLeases] = []
        for gate in gates.gates:
            gate.circuit.on_change = partial(self._broadcast_state, gate)

    def add_worker(self, send: Send, tasks: TaskGroup) -> WorkerLeases:
        """Return the leases of one more worker. Close them when the worker ends.

        Args:
            send: sends a message to the worker.
            tasks: task group for calls that have to wait.
        """
        leases = WorkerLeases(self._gates, tasks, send, len(self._workers) + 1)
        self._workers.append(leases)
        for number, gate in enumerate(self._gates.gates):
            if gate.state.is_open:
                leases.set_state(number, gate)
        return leases

    def close(self) -> None:
        """Free the leases of all workers."""
        for leases in self._workers:
            leases.close()

    def _broadcast_state(self, gate: LocalGate) -> None:
        for number, other in enumerate(self._gates.gates):
            if other.circuit is gate.circuit:
                for leases in self._workers:
                    leases.set_state(number, other)


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


class WorkerLeases:
    """The leases of one worker, which calls `request`, `give_back`, `end` and `refuse_all`."""

    def __init__(self, gates: LocalGates, tasks: TaskGroup, send: Send, process: int) -> None:
        self._gates = gates
        self._tasks = tasks
        self._worker: LeasedGates = remote(LEASES, send)
        self._process = process
        self._waiting: dict[int, anyio.CancelScope] = {}
        self._under_way: dict[int, LocalAttempt] = {}
        self._closed = False

    def request(
        self, gate: int, lease: int, tokens: int, of_call: tuple[int, CallerId, bool, bool, float]
    ) -> None:
        """Grant a lease as soon as the limits permit.

        Args:
            of_call: number, conversation, `is_user`, `is_odd`, and how many seconds it may still take.
        """
        if self._closed:
            return
        number, asker, is_user, is_odd, seconds = of_call
        call = Call(_RemoteTimeLimit(seconds), number, self._process, asker, is_user=is_user)
        call.is_odd = is_odd
        attempt = self._gates.gates[gate].attempt(call, lambda: tokens)
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

    def end(
        self,
        lease: int,
        answer: tuple[int, Room | None, float | None] | None,
        error: ModelError | None,
        *,
        alone: bool,
    ) -> None:
        """Record the outcome of an attempt.

        Args:
            answer: tokens used, what the provider says is left, and the cost in USD; None without an answer.
        """
        if attempt := self._under_way.pop(lease, None):
            if error:
                attempt.failed(error, alone=alone)
            if answer:
                attempt.succeeded(*answer)
            attempt.leave()

    def refuse_all(self, gate: int, problem: str) -> None:
        """Fail all calls: the key, the account or the model's name is wrong."""
        self._gates.gates[gate].refuse_all(problem)

    def set_state(self, number: int, gate: LocalGate) -> None:
        """Notify the worker that a model went down or came up."""
        if not self._closed:
            self._worker.set_state(number, gate.state.problem, is_down=gate.state.is_open)

    def close(self) -> None:
        """Free everything that the worker had, after it has ended. Attempts in progress count as made."""
        self._closed = True
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
            if not self._closed:
                self._worker.decide(lease, error)
        finally:
            del self._waiting[lease]

    def _grant(self, lease: int, attempt: LocalAttempt) -> None:
        self._under_way[lease] = attempt
        self._worker.decide(lease, None)
