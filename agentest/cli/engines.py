"""Select and open the engine that runs the conversations: this process, local workers or Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, RunRequest
from agentest.support.errors import UsageError
from agentest.support.files import moved

if TYPE_CHECKING:
    from agentest.adk.plan import EvalRequest
    from agentest.runner.executor import Engine
    from agentest.workers.ray.worker_process import PreparationRecipe

LOCAL, WORKERS, RAY = "local", "workers", "ray"


def engine_name(options: Options) -> str:
    """Return the engine that the options select, by name or by number of workers. Raises UsageError."""
    several = options.workers not in (None, 1)
    name = options.engine or (WORKERS if several else LOCAL)
    if name == LOCAL and several:
        raise UsageError(f"--engine local is this process alone: leave --workers {options.workers} out")
    if options.ray_address is not None:
        if name != RAY:
            raise UsageError("--ray-address names a cluster for --engine ray: give that, too")
        if not options.ray_address.strip():  # an unset environment variable expands to an empty value
            raise UsageError("--ray-address is empty: name a cluster, or leave it out to start a local Ray")
    if name == WORKERS and not hasattr(os, "fork"):
        raise UsageError("this platform cannot fork processes: leave --workers and --engine workers out")
    return name


def process_count(prepared: Prepared) -> int:
    """Return the number of processes on this machine that run conversations. Raises UsageError."""
    options = prepared.request.options
    if engine_name(options) in (LOCAL, RAY):
        return 1
    from agentest.workers.worker_pool import AUTO, worker_count

    return worker_count(prepared, options.workers or AUTO)


def limit_concurrency(
    prepared: Prepared, processes: int, allow: Callable[[int], int] | None = None
) -> Prepared:
    """Limit the concurrency to the connections that the processes can open, and add a note if it changes.

    On Ray the workers open the connections, so each of them applies the limit of its node.

    Args:
        processes: result of `processes_of`.
        allow: takes the file descriptors that a process needs and returns how many it can have.
    """
    if engine_name(prepared.request.options) == RAY:
        return prepared
    from agentest.runner import environment

    return environment.limited_to_connections(prepared, processes, allow or environment.allow)


@contextmanager
def open_engine(
    prepared: Prepared, processes: int, recipe: PreparationRecipe | None = None, *, earlier: bool
) -> Iterator[Engine]:
    """Open the engine of a run. Call it before the event loop starts, because it forks processes.

    Args:
        processes: result of `processes_of`.
        recipe: how another process prepares the run; None for a run of scenarios.
        earlier: True if the conversations come from an earlier run.

    Raises UsageError.
    """
    if engine_name(prepared.request.options) == RAY:
        from agentest.workers.ray.engine import open_ray_engine

        with open_ray_engine(prepared, recipe or RunRecipe(prepared.request), earlier=earlier) as on_ray:
            yield on_ray
        return
    if processes == 1 and prepared.request.options.engine != WORKERS:
        from agentest.runner.executor import LocalEngine

        yield LocalEngine()
        return
    from agentest.workers.processes import open_forked_engine

    with open_forked_engine(prepared, processes, earlier=earlier) as engine:
        yield engine


@dataclass(frozen=True, slots=True)
class RunRecipe:
    """Prepare a run of scenarios in another process."""

    request: RunRequest

    def prepared(self, root: Path) -> Prepared:
        from agentest.runner.prepare import prepare

        return prepare(_moved(self.request, root))


@dataclass(frozen=True, slots=True)
class EvalRecipe:
    """Prepare a run of evaluation sets in another process."""

    evaluation: EvalRequest

    def prepared(self, root: Path) -> Prepared:
        from agentest.adk.plan import prepare_eval

        evaluation, old = self.evaluation, self.evaluation.request.root
        criteria, session, mocks = (
            path and moved(path, old, root)
            for path in (evaluation.criteria, evaluation.initial_session, evaluation.mocks)
        )
        request = _moved(evaluation.request, root)
        there = replace(evaluation, request=request, criteria=criteria, initial_session=session, mocks=mocks)
        return prepare_eval(there)


def _moved(request: RunRequest, root: Path) -> RunRequest:
    """Move the request to another folder, without reports and comparisons, which the main process makes."""
    paths = tuple(replace(each, path=moved(each.path, request.root, root)) for each in request.options.paths)
    return replace(
        request,
        root=root,
        here=root,
        config=request.config and moved(request.config, request.root, root),
        options=replace(request.options, paths=paths),
        reports=replace(request.reports, reporters=(), baseline=None),
    )
