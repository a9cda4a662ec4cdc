"""What holds the conversations of a run: this process, or workers (`agentest.workers`).

A new engine is one implementation of `Engine`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from agentest.domain.results import ScenarioResult
from agentest.runner.connections import (
    Connections,
    allowance_of,
    check_recordings,
    local_gates,
    open_models,
    open_recordings,
)
from agentest.runner.holding import HeldHere, Holder
from agentest.runner.joined_causes import NOT_JOINED, JoinedCauses, joined_causes
from agentest.runner.runner import run_units
from agentest.runner.session import Session
from agentest.runner.sources import Origin
from agentest.runner.trials import Trials


@dataclass(frozen=True, slots=True)
class Concluded:
    """What came of all units: their results by scope, and the root causes that a model joined."""

    results: Mapping[str, ScenarioResult]
    joined: JoinedCauses = NOT_JOINED


RunUnits = Callable[[], Awaitable[Concluded]]
"""Runs all units of the plan: converses, evaluates, decides and reports."""


class Engine(Protocol):
    """Runs the units of a plan."""

    @property
    def has_workers(self) -> bool:
        """Whether conversations are held in other processes than the run's own."""
        ...

    @property
    def opens(self) -> str:
        """What is waited for until the run can begin: "agents and models to be opened"."""
        ...

    def open(self, session: Session, origin: Origin) -> AbstractAsyncContextManager[RunUnits]:
        """Open everything that the units need, and close it after the run. Raises UsageError."""
        ...


class InProcess:
    """Runs all units in this process."""

    has_workers = False
    opens = "agents and models to be opened"

    @asynccontextmanager
    async def open(self, session: Session, origin: Origin) -> AsyncIterator[RunUnits]:
        """Open models and recordings."""
        prepared = session.prepared
        async with AsyncExitStack() as stack:
            recordings = open_recordings(session)
            check_recordings(recordings, prepared.plan)
            gates = local_gates(session)
            models, ledger = await open_models(session, recordings, stack, gates)
            source = await origin.make(models, stack)
            allowance = allowance_of(session, gates.budget, ledger, recordings)
            connections = Connections(models, ledger, prepared.loaded.redact, allowance)
            holder = HeldHere(source, prepared.plan.custom, session.settings, connections)
            yield in_order(session, holder, connections, origin)


def in_order(
    session: Session, holder: Holder, connections: Connections, origin: Origin | None = None
) -> RunUnits:
    """Runs the units that are left in their order, wherever their conversations are held.

    Args:
        origin: where conversations come from; None: they are held now, with no mock servers.
    """
    trials = Trials(live=origin is None or origin.held is None)
    reached = origin.is_reached if origin else _anyone

    async def run() -> Concluded:
        plan, settings, stop = session.prepared.plan, session.settings, session.stop
        results = await run_units(
            plan.left, holder, settings, connections, session.emit, stop, trials, reached
        )
        kept = [unit.kept.result for unit in plan.units if unit.kept.result]
        return Concluded(results, await joined_causes([*kept, *results.values()], session, connections))

    return run


def _anyone(agent: str, key: str) -> bool:
    del agent, key
    return True
