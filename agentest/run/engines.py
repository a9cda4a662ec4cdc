"""What runs the units of a plan: this process, or a pool of workers (`agentest.scale`).

A new engine is one implementation of `Engine`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from agentest.results import ScenarioResult
from agentest.run.connections import Connections, check_recordings, open_models, open_recordings
from agentest.run.runner import PacedUnits, run_units
from agentest.run.session import Session
from agentest.run.sources import Origin

RunUnits = Callable[[], Awaitable[Mapping[str, ScenarioResult]]]
"""Runs all units of the plan: converses, evaluates, decides and reports. Returns their results by scope."""


class Engine(Protocol):
    """Runs the units of a plan."""

    def open(self, session: Session, origin: Origin) -> AbstractAsyncContextManager[RunUnits]:
        """Open everything that the units need, and close it after the run. Raises UsageError."""
        ...


class InProcess:
    """Runs all units in this process."""

    @asynccontextmanager
    async def open(self, session: Session, origin: Origin) -> AsyncIterator[RunUnits]:
        """Open models and recordings."""
        prepared = session.prepared
        async with AsyncExitStack() as stack:
            recordings = open_recordings(session)
            check_recordings(recordings, prepared.plan)
            models, ledger = await open_models(session, recordings, stack)
            source = await origin.make(models, stack)
            connections = Connections(
                source=source, models=models, ledger=ledger, redact=prepared.loaded.redact
            )
            units = PacedUnits(prepared.plan.left, session.settings.debounce_s)
            custom, settings = prepared.plan.custom, session.settings
            yield partial(run_units, units, custom, settings, connections, session.emit, session.stop)
