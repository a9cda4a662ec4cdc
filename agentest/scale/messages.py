"""The messages between a run and its worker processes."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.results import Status


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: everything is open."""


@dataclass(frozen=True, slots=True)
class CannotStart:
    """From a worker: it cannot begin, and what the user has to change."""

    problem: str


@dataclass(frozen=True, slots=True)
class UnitRequest:
    """From a worker: it has a place for another unit."""


@dataclass(frozen=True, slots=True)
class UnitAssignment:
    """To a worker: it runs the unit of this scope; None: there is none left."""

    scope: str | None


@dataclass(frozen=True, slots=True)
class ConversationDone:
    """From a worker: a conversation has finished and is evaluated."""

    name: str
    agent: str
    number: int
    result: bytes
    """Packed: it is only read where something went wrong."""
    json: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """From a worker: what the user should know."""

    text: str


@dataclass(frozen=True, slots=True)
class Secrets:
    """From a worker: what must not be shown from now on."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopRun:
    """To a worker, or from one: why the run ends early."""

    reason: str
    status: Status
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """From a worker: all of its units have finished."""


@dataclass(frozen=True, slots=True)
class Close:
    """To a worker: all workers have finished, so that recordings may replace older ones."""


@dataclass(frozen=True, slots=True)
class Closed:
    """From a worker: everything is closed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: it cannot go on, and why."""

    problem: str
