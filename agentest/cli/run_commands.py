"""Define `agentest run` and `agentest eval`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from agentest.cli.command_list import ExploreCommand, RunCommand
from agentest.cli.options import (
    exits,
    explore_options,
    flag,
    option,
    path_option,
    repeat_option,
    run_options,
    where,
    which,
)
from agentest.support.errors import UsageError

if TYPE_CHECKING:
    from agentest.cli.location import Location
    from agentest.cli.requests import EvalOptions
    from agentest.cli.selection import ScenarioSelection
    from agentest.plugins.explore.command import ExploreOptions
    from agentest.runner.plan import Options
    from agentest.runner.prepare import ReportOptions


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
    from agentest.cli.requests import request_of
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
        from agentest.plugins.authoring.commands.record_tools import record_run

        return record_run(request, project, selection)
    if watch:
        from agentest.cli.watch import run_and_watch

        return run_and_watch(request, selection)
    prepared = selection(prepare(request))
    if runs_nothing:
        from agentest.cli.listing import show_plan

        return show_plan(prepared, list_only=list_only)
    from agentest.cli.run import run_once

    return run_once(prepared)


@click.command(cls=ExploreCommand)
@click.argument("targets", nargs=-1, metavar="[PATH | PATH:LINE | PATH::NAME]…")
@where
@which
@option("--parts", "PARTS", "Try only these: faults, injections, mutations, attacks.")
@option("--faults", "KINDS", "Try only these kinds of faults, like timeout,empty.")
@option("--injections", "PLACE:TECHNIQUE:GOAL,…", "Try only these injections; parts may be empty or *.")
@option("--mutations", "NAMES", "Try only these mutations of the user's messages.")
@option("--conversations most", "N", "Run at most N conversations in all.", kind=click.IntRange(min=1))
@option("--minutes", "N", "Stop after N minutes.", kind=click.FloatRange(min=0, min_open=True))
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Try in another order (default: 0).",
)
@click.option(
    "--fail-on",
    type=click.Choice(["low", "medium", "high", "critical"]),
    default="high",
    help="Exit with 1 if a finding has this severity or a higher one (default: high).",
)
@flag("--no-shrink", "Confirm findings, but do not reduce them.")
@flag("--no-save", "Write no scenarios of findings.")
@option("--replay finding", "FINDING", "Run the saved scenario of a finding: its id or its file.")
@flag("--dry-run", "Show what would be tried and what it costs at most, and run nothing.")
@explore_options
@exits
def explore(
    location: Location,
    options: Options,
    reports: ReportOptions,
    selection: ScenarioSelection,
    exploring: ExploreOptions,
    targets: tuple[str, ...],
) -> int:
    """Find failures that no test was written for: faults of tools, injections, and other users.

    Scenarios that pass are run again with changes, and what breaks an invariant is confirmed and reduced.

    Exit status: 0 no finding at or above --fail-on, 1 findings, 2 nothing could be explored, 130 interrupted.
    """
    from agentest.plugins.explore.command import explore_project

    return explore_project(location.enter(), options, reports, selection, exploring, targets)


@click.command("eval", cls=RunCommand)
@click.argument("targets", nargs=-1, required=True, metavar="[AGENT] FILE_OR_DIR[:CASE,…]…")
@where
@option("--agent", "NAME", "Test this agent of the configuration, or the agent at a URL.")
@path_option(
    "--config-file-path criteria",
    "Use these criteria for all files (default: test_config.json next to each).",
)
@click.option("--num-runs", type=click.IntRange(min=1), default=1, metavar="N", help="Run each case N times.")
@flag("--all every_set", "Run the *.evalset.json of folders, too.")
@path_option("--mocks", "Read mocks from `tools`, a dict in this Python file.")
@path_option("--initial-session-file initial_session", "Use this session for cases that have none.")
@flag("--print-detailed-results detailed", "Show every invocation next to the expected one.")
@run_options
@exits
def evaluate(
    location: Location,
    options: Options,
    reports: ReportOptions,
    selection: ScenarioSelection,
    evaluation: EvalOptions,
    targets: tuple[str, ...],
    list_only: bool,
) -> int:
    """Run ADK evaluation sets (*.test.json of a folder, or any file) against the agent.

    AGENT may be named first: an agent of the configuration, a URL, or a package with a `root_agent`.

    Exit status as of run: 0 all passed, 1 a case failed, 2 something errored or could not be evaluated.
    """
    from agentest.cli.requests import request_of
    from agentest.cli.run_output import evaluation_run
    from agentest.plugins.adk.plan import prepare_eval

    if list_only and options.dry_run:
        raise UsageError("--list and --dry-run exclude each other")
    project, runs_nothing = location.enter(), list_only or options.dry_run
    request = request_of(project, options, reports, offline=list_only)
    eval_request = evaluation.request(request, project, targets, runs_nothing=runs_nothing)
    kind = evaluation_run(eval_request, targets)
    prepared = selection(prepare_eval(eval_request), kind.name)
    if runs_nothing:
        from agentest.cli.listing import show_plan

        return show_plan(prepared, list_only=list_only)
    from agentest.cli.run import run_once

    return run_once(prepared, kind)
