"""Which engine holds the conversations of a run: this process, or workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared
from agentest.support.errors import UsageError

if TYPE_CHECKING:  # imported when a run really begins
    from agentest.runner.engines import Engine
    from agentest.workers.ray.life import Recipe

LOCAL, WORKERS, RAY = "local", "workers", "ray"


def engine_name(options: Options) -> str:
    """The engine that is asked for: by its name, or by a number of workers. Raises UsageError."""
    several = options.workers not in (None, 1)
    name = options.engine or (WORKERS if several else LOCAL)
    if name == LOCAL and several:
        raise UsageError(f"--engine local is this process alone: leave --workers {options.workers} out")
    if options.ray_address is not None:
        if name != RAY:
            raise UsageError("--ray-address names a cluster for --engine ray: give that, too")
        if not options.ray_address.strip():  # as a variable is that was never set
            raise UsageError("--ray-address is empty: name a cluster, or leave it out to start a local Ray")
    if name == WORKERS and not hasattr(os, "fork"):
        raise UsageError("this platform cannot fork processes: leave --workers and --engine workers out")
    return name


def processes_of(prepared: Prepared) -> int:
    """Over how many processes of this machine the conversations are spread. Raises UsageError."""
    options = prepared.request.options
    if engine_name(options) in (LOCAL, RAY):
        return 1
    from agentest.workers.shares import AUTO, worker_count

    return worker_count(prepared, options.workers or AUTO)


def within_limits(prepared: Prepared, processes: int, allow: Callable[[int], int] | None = None) -> Prepared:
    """What was prepared, with no more at once than these processes may have connections; a note says so.

    On Ray it is workers that have the connections, each by the limit of its node.

    Args:
        processes: as of `processes_of`.
        allow: as of `run.file_descriptors.fitted`.
    """
    if engine_name(prepared.request.options) == RAY:
        return prepared
    from agentest.runner import file_descriptors

    return file_descriptors.fitted(prepared, processes, allow or file_descriptors.allow)


@contextmanager
def opened_engine(
    prepared: Prepared, processes: int, recipe: Recipe | None = None, *, earlier: bool
) -> Iterator[Engine]:
    """The engine of a run. To be entered before the event loop begins: processes are forked.

    Args:
        processes: as of `processes_of`.
        recipe: how the run is prepared again in another process; None: as any run of scenarios.
        earlier: whether the conversations are of an earlier run.

    Raises UsageError.
    """
    if engine_name(prepared.request.options) == RAY:
        from agentest.cli.recipes import RunRecipe
        from agentest.workers.ray.engine import ray_engine

        with ray_engine(prepared, recipe or RunRecipe(prepared.request), earlier=earlier) as on_ray:
            yield on_ray
        return
    if processes == 1 and prepared.request.options.engine != WORKERS:
        from agentest.runner.engines import InProcess

        yield InProcess()
        return
    from agentest.workers.forked import forked_engine

    with forked_engine(prepared, processes, earlier=earlier) as engine:
        yield engine
