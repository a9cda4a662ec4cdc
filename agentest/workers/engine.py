"""The engine that runs conversations in worker processes on this machine, and how many there are."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.runner.engines import Engine, EngineProvider, LocalEngineProvider, PreparationRecipe
from agentest.support.errors import UsageError

if TYPE_CHECKING:
    from agentest.runner.plan import Options
    from agentest.runner.prepare import Prepared

AUTO = "auto"
_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


class ForkedEngineProvider(EngineProvider):
    """Opens the engine that runs conversations in worker processes on this machine."""

    def check(self, options: Options) -> None:  # noqa: ARG002 - the machine decides
        if not hasattr(os, "fork"):
            raise UsageError("this platform cannot fork processes: remove --workers and --engine workers")

    def limited(self, prepared: Prepared) -> Prepared:
        from agentest.runner.environment import limited_to_connections

        return limited_to_connections(prepared, _process_count(prepared))

    def open(
        self, prepared: Prepared, recipe: PreparationRecipe, *, earlier: bool
    ) -> AbstractContextManager[Engine]:
        count = _process_count(prepared)
        if count == 1 and prepared.request.options.engine is None:
            return LocalEngineProvider().open(prepared, recipe, earlier=earlier)
        from agentest.workers.processes import open_forked_engine

        return open_forked_engine(prepared, count, earlier=earlier)


def _process_count(prepared: Prepared) -> int:
    return worker_count(prepared, prepared.request.options.workers or AUTO)


def worker_count(prepared: Prepared, wanted: int | str) -> int:
    """Return how many workers to start: at most one per conversation and concurrency slot."""
    count = cores() if wanted == AUTO else int(wanted)
    left = sum(unit.conversations - len(unit.finished_part.conversations) for unit in prepared.plan.remaining)
    return max(1, min(count, left, prepared.concurrency))


def cores(quota: Path = _CGROUP_CPU) -> int:
    """Return how many cores this process may use, by its affinity and its container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(count, int(allowed) // int(period)))
    except (OSError, ValueError):  # no such file, or the content is `max`
        return count
