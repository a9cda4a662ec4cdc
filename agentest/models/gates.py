"""One gate for each model and its limits, shared by all who ask it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from agentest.models.budget import Budget
from agentest.models.circuit import Circuit
from agentest.models.gate import Gate, LocalGate
from agentest.models.limits import Limiter
from agentest.models.providers import ModelSpec


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
