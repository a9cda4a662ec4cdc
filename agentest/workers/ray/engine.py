"""The engine whose workers are on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from agentest.runner.connections import stopping
from agentest.runner.engines import RunUnits
from agentest.runner.ports import known_ports
from agentest.runner.prepare import Prepared
from agentest.runner.reach import check_reach
from agentest.runner.session import Session
from agentest.runner.sources import Origin
from agentest.workers.engine import Spread
from agentest.workers.ray.address import cluster_address
from agentest.workers.ray.cluster import Cluster, joined
from agentest.workers.ray.environment import needed_variables
from agentest.workers.ray.files import check_inside, files_of
from agentest.workers.ray.fleet import RayFleet
from agentest.workers.ray.life import Holding, Recipe
from agentest.workers.ray.membership import watched_membership
from agentest.workers.shares import AUTO, worker_count


@contextmanager
def ray_engine(
    prepared: Prepared, recipe: Recipe, *, earlier: bool, environ: Mapping[str, str] = os.environ
) -> Iterator[RayEngine]:
    """The engine of a run. Must be entered before the event loop begins. Raises UsageError.

    Args:
        earlier: whether the conversations are of an earlier run.
    """
    options, root = prepared.request.options, prepared.request.root
    address = cluster_address(options.ray_address, environ)
    if address is not None:
        named = [unit.file for unit in prepared.plan.units]
        check_inside(root, [prepared.loaded.path, *(root / file for file in named)])
    wanted = options.workers or AUTO
    count = None if wanted == AUTO else worker_count(prepared, wanted)
    with joined(address, files_of(prepared), count) as cluster:
        check_reach(prepared, [node.shown for node in cluster.nodes if not node.here])
        life = Holding(
            recipe=recipe,
            root=root if address is None else None,
            files={unit.scope: unit.file for unit in prepared.plan.left},
            ports=known_ports(prepared),
            earlier=earlier,
        )
        size = count or worker_count(prepared, cluster.cpus)
        yield RayEngine(cluster, size, life, needed_variables(prepared, environ))


@dataclass(frozen=True, slots=True)
class RayEngine:
    """Has conversations held by workers on a cluster."""

    cluster: Cluster
    size: int
    life: Holding
    variables: Mapping[str, str]
    has_workers: bool = True
    opens: str = "Ray to start workers, which open agents and models"

    @asynccontextmanager
    async def open(self, session: Session, origin: Origin) -> AsyncIterator[RunUnits]:
        """Wait until the first worker is ready (`scale.engine.Spread`). Raises UsageError."""
        fleet = RayFleet(self.size, self.life, self.variables, session.say)
        stop = stopping(session)

        def on_lost(reason: str) -> None:
            if not session.stop.called.is_set():
                stop(reason)

        async with (
            watched_membership(self.cluster.head, self.cluster.is_node_dead, on_lost),
            Spread(fleet).open(session, origin) as run,
        ):
            yield run
