"""The messages between a worker that asks models and the process that has their limits.

A lease is an attempt that a worker may make. Workers number the leases that they want, all models together;
a model's gate has a number of its own, which says nothing of its endpoint or key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
