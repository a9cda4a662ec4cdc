"""Which engine holds the conversations of a run: this process, or workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, Request
from agentest.support.errors import UsageError
from agentest.support.files import moved

if TYPE_CHECKING:
    from agentest.adk.plan import EvalRequest
    from agentest.runner.executor import Engine
    from agentest.workers.ray.worker_process import Recipe

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
    from agentest.workers.worker_pool import AUTO, worker_count

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
    from agentest.runner import environment

    return environment.fitted(prepared, processes, allow or environment.allow)


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
        from agentest.workers.ray.engine import ray_engine

        with ray_engine(prepared, recipe or RunRecipe(prepared.request), earlier=earlier) as on_ray:
            yield on_ray
        return
    if processes == 1 and prepared.request.options.engine != WORKERS:
        from agentest.runner.executor import InProcess

        yield InProcess()
        return
    from agentest.workers.processes import forked_engine

    with forked_engine(prepared, processes, earlier=earlier) as engine:
        yield engine


@dataclass(frozen=True, slots=True)
class RunRecipe:
    """Of scenarios."""

    request: Request

    def prepared(self, root: Path) -> Prepared:
        from agentest.runner.prepare import prepare

        return prepare(_moved(self.request, root))


@dataclass(frozen=True, slots=True)
class EvalRecipe:
    """Of evaluation sets."""

    evaluation: EvalRequest

    def prepared(self, root: Path) -> Prepared:
        from agentest.adk.plan import prepare_eval

        asked, old = self.evaluation, self.evaluation.request.root
        criteria, session, mocks = (
            path and moved(path, old, root) for path in (asked.criteria, asked.initial_session, asked.mocks)
        )
        request = _moved(asked.request, root)
        there = replace(asked, request=request, criteria=criteria, initial_session=session, mocks=mocks)
        return prepare_eval(there)


def _moved(request: Request, root: Path) -> Request:
    """The request in another folder. Reports, and comparisons, are made elsewhere."""
    paths = tuple(replace(each, path=moved(each.path, request.root, root)) for each in request.options.paths)
    return replace(
        request,
        root=root,
        here=root,
        config=request.config and moved(request.config, request.root, root),
        options=replace(request.options, paths=paths),
        reporters=(),
        baseline=None,
    )
