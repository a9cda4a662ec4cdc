"""The requests that commands make of their options to prepare a run.

Another process prepares a run again from its request (`RunRecipe`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentest.cli.location import Project
from agentest.runner.engines import engine_of
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared, ReportOptions, RunRequest
from agentest.scenarios.discovery import parse_path_choice
from agentest.support.files import moved
from agentest.support.lazy_dataclasses import dataclass


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
    engine_of(options)
    return RunRequest(project.root, project.named_config, options, reports or ReportOptions(), project.here)


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
