"""The engine of a run whose conversations are held by workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from agentest.runner.connections import (
    Connections,
    allowance_of,
    check_recordings,
    local_gates,
    new_ledger,
    open_models,
    open_recordings,
)
from agentest.runner.engines import RunUnits, in_order
from agentest.runner.session import Session
from agentest.runner.sources import Origin
from agentest.workers.crew import Crew
from agentest.workers.desks import Desks
from agentest.workers.fleet import Fleet
from agentest.workers.lease_desk import LeaseDesk


class Spread:
    """The engine whose workers hold the conversations."""

    has_workers = True
    opens = "workers to open agents and models"

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    @asynccontextmanager
    async def open(self, session: Session, origin: Origin) -> AsyncIterator[RunUnits]:
        """Wait until workers are ready; afterwards, have all of them close what they have opened.

        Raises UsageError for what the user has to change.
        """
        prepared, ledger = session.prepared, new_ledger(session)
        async with AsyncExitStack() as stack:
            recordings = open_recordings(session)
            check_recordings(recordings, prepared.plan)
            gates = local_gates(session)
            models, _ = await open_models(session, recordings, stack, gates, ledger)
            crew = Crew(self._fleet, session, origin, Desks(ledger, recordings), LeaseDesk(gates))
            stack.push_async_callback(crew.disconnect)
            await crew.assemble()
            allowance = allowance_of(session, gates.budget, ledger, recordings)
            connections = Connections(models, ledger, prepared.loaded.redact, allowance)
            yield partial(crew.work, in_order(session, crew, connections, origin))
            await crew.close()
