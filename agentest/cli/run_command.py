"""`agentest run`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentest.cli.main import RunCommand
from agentest.cli.options import exits, flag, option, repeat_option, run_options, where, which
from agentest.plugin import PLUGINS
from agentest.support.errors import UsageError

if TYPE_CHECKING:
    from agentest.cli.location import Location
    from agentest.cli.rerun_selection import ScenarioSelection
    from agentest.domain.events import ReportOptions
    from agentest.runner.plan import Options


@click.command(cls=RunCommand)
@click.argument("targets", nargs=-1, metavar="[PATH | PATH:LINE | PATH::NAME]…")
@where
@which
@flag("--watch", "Run again what a change affects; in a terminal, keys run more.")
@option("--conversations", "N", "Run N conversations per scenario.", kind=click.IntRange(min=1))
@repeat_option
@flag("--record-tools", "Call real tools instead of mocks, and write recorded_tools.py.")
@run_options
@exits
def run(
    location: Location,
    options: Options,
    reports: ReportOptions,
    selection: ScenarioSelection,
    targets: tuple[str, ...],
    watch: bool,
    list_only: bool,
    record_tools: bool,
) -> int:
    """Run the scenarios (*.sim.py, *.sim.yaml) against the agent: all, or those of files and folders.

    Exit status: 0 all passed, 1 a scenario failed, 2 something errored or could not be run, 130 interrupted.
    """
    from agentest.cli.location import request_of
    from agentest.runner.prepare import prepare

    runs_nothing = list_only or options.dry_run
    if watch + list_only + options.dry_run > 1:
        raise UsageError("--watch, --list and --dry-run exclude each other")
    if options.repeat and options.conversations:
        raise UsageError("--repeat and --conversations exclude each other")
    if record_tools and (watch or runs_nothing):
        raise UsageError("--record-tools runs real tools: remove --watch, --list and --dry-run")
    if selection.resume is not None and (watch or record_tools):
        raise UsageError("--resume continues one run: remove --watch and --record-tools")
    if selection.shard and watch:
        raise UsageError("--shard runs a part of one run: remove --watch")
    project = location.enter()
    request = request_of(project, options, reports, targets, offline=list_only)
    if record_tools:
        record_run = PLUGINS.hook("agentest run --record-tools", "authoring")
        status: int = record_run(request, project, selection)
        return status
    if watch:
        from agentest.cli.watch import run_and_watch

        return run_and_watch(request, selection)
    prepared = selection(prepare(request))
    if runs_nothing:
        from agentest.cli.listing import show_plan

        return show_plan(prepared, list_only=list_only)
    from agentest.cli.run import run_once

    return run_once(prepared)
