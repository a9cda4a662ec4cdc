"""Define `agentest run` and `agentest eval`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from agentest.cli.command_list import RunCommand
from agentest.cli.exit_status import exit_status_of
from agentest.cli.options import (
    EVAL_FILES,
    baseline_options,
    build_request,
    cassette_mode,
    enter_place,
    limits,
    model_option,
    not_run,
    order,
    output_options,
    path_option,
    recording,
    repeat_option,
    resume_option,
    scenario_selection,
    shard_options,
    split_selection_options,
    spread,
    strict_option,
    unmocked_option,
    where,
    which,
)
from agentest.support.errors import ExitCode
from agentest.support.terminal import say, tell


@click.command(cls=RunCommand)
@click.argument("paths", nargs=-1, metavar="[PATH | PATH:LINE | PATH::NAME]…")
@where
@which
@output_options
@model_option
@click.option(
    "--watch", is_flag=True, help="Run again when scenarios, their imports or the configuration change."
)
@click.option("--conversations", type=click.IntRange(min=1), metavar="N", help="Conversations per scenario.")
@repeat_option
@unmocked_option
@strict_option
@click.option(
    "--record-tools",
    is_flag=True,
    help="Leave the mocks out, let the real tools answer, and write mocks: recorded_tools.py.",
)
@limits
@spread
@recording
@order
@resume_option
@shard_options
@baseline_options
@not_run
def run(cwd: Path | None, watch: bool, list_only: bool, record_tools: bool, **options: Any) -> int:
    """Run the scenarios (*.sim.py) against the agent: all, or those of files and folders.

    Exit status: 0 all passed, 1 a scenario failed, 2 something errored or could not be run, 130 interrupted.
    """
    if watch + list_only + options["dry_run"] > 1:
        raise click.UsageError("--watch, --list and --dry-run exclude each other")
    if options["repeat"] and options["conversations"]:
        raise click.UsageError("--repeat and --conversations exclude each other")
    if record_tools and watch + list_only + options["dry_run"]:
        raise click.UsageError("--record-tools runs real tools: leave --watch, --list and --dry-run out")
    options["tape"] = cassette_mode(options)
    selection, options["paths"] = split_selection_options(options, options["paths"])
    if selection["resume"] is not None and (watch or record_tools):
        raise click.UsageError("--resume goes on with one run: leave --watch and --record-tools out")
    if selection["shard"] and watch:
        raise click.UsageError("--shard runs a part of one run: leave --watch out")

    def go() -> int:
        place = enter_place(cwd, options["config"])
        request = build_request(place, **options)
        choose = scenario_selection(selection)
        if record_tools:
            from agentest.cli.record_tools import record_run

            return record_run(request, place, choose)
        if watch:
            from agentest.cli.watch import run_and_watch

            return run_and_watch(request, choose)
        from agentest.runner.prepare import prepare

        prepared = choose(prepare(request))
        if request.options.dry_run:
            return _dry_run(prepared)
        if list_only:
            return _list(prepared)
        from agentest.cli.run import run_once

        return run_once(prepared)

    options["offline"] = options["offline"] or list_only  # a list needs no model and no API key
    return exit_status_of(go)


@click.command("eval", cls=RunCommand)
@click.argument("targets", nargs=-1, required=True, metavar="[AGENT] FILE_OR_DIR[:CASE,…]…")
@where
@click.option("--agent", metavar="NAME", help="Test this agent of the configuration, or the one at a URL.")
@path_option(
    "--config-file-path", "criteria", "Criteria for all files (default: test_config.json beside each)."
)
@click.option("--num-runs", type=click.IntRange(min=1), default=1, metavar="N", help="Runs of each case.")
@click.option("--all", "every_set", is_flag=True, help="Run the *.evalset.json of folders, too.")
@path_option("--mocks", "mocks", "Python file with a dict `tools` of mocks.")
@path_option("--initial-session-file", "initial_session", "Session for cases that have none of their own.")
@click.option(
    "--print-detailed-results",
    "detailed",
    is_flag=True,
    help="Show every invocation beside what was expected.",
)
@output_options
@model_option
@unmocked_option
@strict_option
@limits
@spread
@recording
@order
@resume_option
@shard_options
@baseline_options
@not_run
def evaluate(cwd: Path | None, targets: tuple[str, ...], list_only: bool, **options: Any) -> int:
    """Run ADK evaluation sets (*.test.json of a folder, or any file) against the agent.

    AGENT may be named first: an agent of the configuration, a URL, or a package with a `root_agent`.

    Exit status as of run: 0 all passed, 1 a case failed, 2 something errored or could not be evaluated.
    """
    if list_only and options["dry_run"]:
        raise click.UsageError("--list and --dry-run exclude each other")
    options["tape"] = cassette_mode(options)
    options["offline"] = options["offline"] or list_only  # a list needs no model and no API key
    selection, targets = split_selection_options(options, targets)

    def go() -> int:
        from dataclasses import replace

        from agentest.adk.plan import EvalRequest, prepare_eval
        from agentest.cli.engines import EvalRecipe
        from agentest.cli.run import run_once
        from agentest.cli.run_output import evaluation_run

        place = enter_place(cwd, options["config"])
        eval_options: dict[str, Any] = {
            key: place.path(path) if (path := options.pop(key)) else None for key in EVAL_FILES
        }
        eval_options |= {key: options.pop(key) for key in ("num_runs", "every_set")}
        kind = evaluation_run(targets, {"agent": options["agent"], "num_runs": eval_options["num_runs"]})
        request = build_request(place, **options)
        alone = list_only or options["dry_run"]
        words = tuple(map(place.word, targets))
        evaluation = EvalRequest(request, words, without_agent=alone, **eval_options)
        kind = replace(kind, recipe=EvalRecipe(evaluation))
        prepared = scenario_selection(selection)(prepare_eval(evaluation), kind.name)
        if list_only:
            return _list(prepared)
        return _dry_run(prepared) if request.options.dry_run else run_once(prepared, kind)

    return exit_status_of(go)


def _dry_run(prepared: Any) -> ExitCode:
    from agentest.cli.listing import dry_run

    return _print_lines(prepared, dry_run(prepared))


def _list(prepared: Any) -> ExitCode:
    from agentest.cli.listing import listing

    return _print_lines(prepared, listing(prepared))


def _print_lines(prepared: Any, lines: Iterable[str]) -> ExitCode:
    from agentest.cli.listing import broken

    for note in prepared.notes:
        tell(f"agentest: {note}")
    for line in lines:
        say(line)
    return report_load_errors(broken(prepared))


def report_load_errors(problems: Sequence[Any]) -> ExitCode:
    for entry in problems:
        tell(f"{entry.file}:{entry.line}: {entry.verdict.reasons[0].message}")
    return ExitCode.ERRORED if problems else ExitCode.PASSED
