"""The requests that commands make of their options to prepare a run.

Another process prepares a run again from its request (`RunRecipe`).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from agentest.cli.location import Project
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, ReportOptions, RunRequest
from agentest.scenarios.discovery import parse_path_choice
from agentest.support.errors import UsageError
from agentest.support.files import moved
from agentest.support.lazy_dataclasses import dataclass

LOCAL, WORKERS, RAY = "local", "workers", "ray"


def request_of(
    project: Project,
    options: Options | None = None,
    reports: ReportOptions | None = None,
    targets: tuple[str, ...] = (),
    *,
    offline: bool = False,
) -> RunRequest:
    """Return the request for a run.

    Args:
        targets: words of the command line that name files or places of scenarios.
        offline: True if the command calls no model, whatever its options say.

    Raises UsageError if the engine options exclude each other, even if nothing runs.
    """
    options = options or Options()
    options = replace(
        options,
        paths=tuple(parse_path_choice(target, project.here) for target in targets),
        cassettes=options.cassettes and project.from_root(options.cassettes),
        offline=options.offline or offline,
    )
    engine_name(options)
    return RunRequest(project.root, project.named_config, options, reports or ReportOptions(), project.here)


def engine_name(options: Options) -> str:
    """Return the engine that the options select, by name or by number of workers. Raises UsageError."""
    several = options.workers not in (None, 1)
    name = options.engine or (WORKERS if several else LOCAL)
    if name == LOCAL and several:
        raise UsageError(f"--engine local uses only this process: remove --workers {options.workers}")
    if options.ray_address is not None:
        if name != RAY:
            raise UsageError("--ray-address names a cluster for --engine ray: add --engine ray")
        if not options.ray_address.strip():  # an unset environment variable expands to an empty value
            raise UsageError("--ray-address is empty: name a cluster, or remove it to start a local Ray")
    if name == WORKERS and not hasattr(os, "fork"):
        raise UsageError("this platform cannot fork processes: remove --workers and --engine workers")
    return name


@dataclass(frozen=True, slots=True)
class RunRecipe:
    """Prepare a run of scenarios in another process."""

    request: RunRequest

    def prepared(self, root: Path) -> Prepared:
        from agentest.runner.prepare import prepare

        return prepare(moved_request(self.request, root))


def moved_request(request: RunRequest, root: Path) -> RunRequest:
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
