"""What a worker process and the run say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.results import Status


@dataclass(frozen=True, slots=True)
class Ready:
    """From a worker: everything is open."""


@dataclass(frozen=True, slots=True)
class Refused:
    """From a worker: it cannot begin, and what the user has to change."""

    problem: str


@dataclass(frozen=True, slots=True)
class Take:
    """From a worker: it has a place for another unit."""


@dataclass(frozen=True, slots=True)
class Given:
    """To a worker: the unit of this scope is its own; None: there is none left."""

    scope: str | None


@dataclass(frozen=True, slots=True)
class Held:
    """From a worker: a conversation was held and judged."""

    name: str
    agent: str
    number: int
    result: bytes
    """Packed: it is only looked at where something went wrong."""
    json: bytes


@dataclass(frozen=True, slots=True)
class Note:
    """From a worker: what the user should know."""

    text: str


@dataclass(frozen=True, slots=True)
class StopNow:
    """To a worker, or from one: why the run ends before its end."""

    reason: str
    status: Status
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """From a worker: nothing is left to do for it."""


@dataclass(frozen=True, slots=True)
class Close:
    """To a worker: all have come to their end, so that recordings may replace older ones."""


@dataclass(frozen=True, slots=True)
class Done:
    """From a worker: everything is closed."""


@dataclass(frozen=True, slots=True)
class Failed:
    """From a worker: it cannot go on, and why."""

    problem: str
