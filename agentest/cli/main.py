"""The command line. It imports nothing but click until a command needs more, so that `--help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from agentest.cli.commands import FIRST_STEPS, Commands, Running
from agentest.cli.comparing import compare
from agentest.cli.ending import ended as _ended
from agentest.cli.ending import hear_interrupts as _hear_interrupts
from agentest.cli.ending import run_to_exit
from agentest.cli.eval_set import eval_set
from agentest.cli.history import runs, show
from agentest.cli.labelling import calibrate, label
from agentest.cli.mcp import mcp_stdio, mcp_tools
from agentest.cli.merging import merge
from agentest.cli.options import (
    EVAL_FILES,
    baseline_options,
    camel_case_option,
    coverage_options,
    limits,
    model_option,
    not_run,
    offline_option,
    order,
    output_options,
    path_option,
    recording,
    repeat_option,
    resume_option,
    shard_options,
    unmocked_option,
    where,
    which,
    with_dashes,
)
from agentest.cli.requests import choosing as _choosing
from agentest.cli.requests import choosing_options as _wish
from agentest.cli.requests import place_in as _place
from agentest.cli.requests import request_at as _request
from agentest.cli.requests import tape as _tape
from agentest.cli.starting import doctor, init
from agentest.errors import ExitCode
from agentest.support.terminal import Output, say, source, tell
from agentest.version import __version__

_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": with_dashes,
}


@click.group(cls=Commands, context_settings=_CONTEXT, epilog=FIRST_STEPS)
@click.version_option(__version__, prog_name="agentest")
def cli() -> None:
    """Test AI agents: simulated users, mocked tools, judged conversations, black-box over HTTP."""


@cli.command(cls=Running)
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
@click.option(
    "--record-tools",
    is_flag=True,
    help="Leave the mocks out, let the real tools answer, and write mocks: recorded_tools.py.",
)
@limits
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
    options["tape"] = _tape(options)
    wish, options["paths"] = _wish(options, options["paths"])
    if wish["resume"] is not None and (watch or record_tools):
        raise click.UsageError("--resume goes on with one run: leave --watch and --record-tools out")
    if wish["shard"] and watch:
        raise click.UsageError("--shard runs a part of one run: leave --watch out")

    def go() -> int:
        _hear_interrupts()
        place = _place(cwd, options["config"])
        request = _request(place, **options)
        choose = _choosing(wish)
        if record_tools:
            from agentest.cli.record_tools import record_run

            return record_run(request, place, choose)
        if watch:
            from agentest.cli.watch import run_and_watch

            return run_and_watch(request, choose)
        from agentest.run.prepare import prepare

        prepared = choose(prepare(request))
        if request.options.dry_run:
            return _dry_run(prepared)
        if list_only:
            return _listed(prepared)
        from agentest.cli.run import run_once

        return run_once(prepared)

    options["offline"] = options["offline"] or list_only  # a list needs no model, nor its key
    return _ended(go)


@cli.command()
@where
@which
def chat(cwd: Path | None, **options: Any) -> int:
    """Talk to the agent yourself, through the mocks of one scenario."""

    def go() -> int:
        from agentest.cli.chat import chat
        from agentest.run.prepare import prepare

        return chat(prepare(_request(_place(cwd, options["config"]), offline=True, **options)))

    return _ended(go)


@cli.command("record-tools")
@where
@click.option("--agent", metavar="NAME", help="Talk to this agent of the configuration.")
@click.option("--say", multiple=True, metavar="TEXT", help="What the user says; several times: turn by turn.")
@click.option("--serve", is_flag=True, help="Talk to nobody: only put servers before the real tools.")
@path_option("--output", "output", "Module of mocks to write (default: recorded_tools.py).")
@path_option("--scenario", "scenario", "Write the conversation as a scenario, too: NAME.sim.py.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def record_tools(cwd: Path | None, config: Path | None, agent: str | None, **wish: Any) -> int:
    """Talk to the agent while its real tools answer, and write mocks that answer the same.

    Without --say you talk to it yourself. `agentest run --record-tools` records what scenarios make it call.

    Exit status: 0 written, 1 the conversation failed, 2 nothing was recorded, 130 interrupted. What was
    recorded until then is written.
    """

    def go() -> int:
        _hear_interrupts()
        from agentest.cli.record_tools import Wish, record_tools

        place = _place(cwd, config)
        request = _request(place, config=config, agent=agent, offline=True)
        return record_tools(request, Wish(**wish), place)

    return _ended(go)


@cli.command()
@click.argument("run")
@where
@which
@output_options
@model_option
@offline_option
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Judge only this metric.")
def judge(run: str, cwd: Path | None, **options: Any) -> int:
    """Judge the finished conversations of RUN again. The agent is not talked to.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """

    def go() -> int:
        _hear_interrupts()
        from agentest.cli.judge import judge_again
        from agentest.cli.kept_runs import run_at
        from agentest.run.prepare import prepare

        place = _place(cwd, options["config"])
        earlier = run_at(run, place, options["config"])
        return judge_again(prepare(_request(place, **options)), earlier)

    return _ended(go)


@cli.command("eval", cls=Running)
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
@limits
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
    options["tape"] = _tape(options)
    options["offline"] = options["offline"] or list_only  # a list needs no model, nor its key
    wish, targets = _wish(options, targets)

    def go() -> int:
        _hear_interrupts()
        from agentest.cli.run import eval_of, run_once
        from agentest.evalset.planning import EvalRequest, prepare_eval

        place = _place(cwd, options["config"])
        asked: dict[str, Any] = {
            key: place.path(path) if (path := options.pop(key)) else None for key in EVAL_FILES
        }
        asked |= {key: options.pop(key) for key in ("num_runs", "every_set")}
        kind = eval_of(targets, {"agent": options["agent"], "num_runs": asked["num_runs"]})
        request = _request(place, **options)
        alone = list_only or options["dry_run"]
        words = tuple(map(place.word, targets))
        evaluation = EvalRequest(request, words, without_agent=alone, **asked)
        prepared = _choosing(wish)(prepare_eval(evaluation), kind.name)
        if list_only:
            return _listed(prepared)
        return _dry_run(prepared) if request.options.dry_run else run_once(prepared, kind)

    return _ended(go)


@cli.command(context_settings={"token_normalize_func": with_dashes})
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@path_option("--initial-session-file", "initial_session", "Session for cases that have none of their own.")
@path_option("--config-out", "config_out", "Where to write OLD's criteria (default: beside NEW).")
@camel_case_option
def migrate(old: Path, new: Path, **options: Any) -> int:
    """Convert OLD, an evaluation set of any form, to the EvalSet form, and write it to NEW.

    The criteria that OLD names go into a test_config.json beside NEW.
    """

    def go() -> int:
        from agentest.evalset.migrate import migrate

        for note in migrate(old, new, **options):
            tell(f"agentest: {note}")
        return ExitCode.PASSED

    return _ended(go)


@cli.command("show-prompts")
@click.option(
    "--metric", metavar="NAME", help="Only this metric, also of evaluation sets; criteria; user.check."
)
@click.option(
    "--mode",
    type=click.Choice(["off", "false", "turn", "true", "conversation"]),
    help="All calls about an example, as this `judge.batch` has them made; off is false.",
)
def show_prompts(metric: str | None, mode: str | None) -> int:
    """Show what the judges are asked."""

    def go() -> int:
        from agentest.cli.prompts import prompts

        say(prompts(metric, mode))
        return ExitCode.PASSED

    return _ended(go)


@cli.command()
@click.argument("run")
@click.option(
    "--to", "form", type=click.Choice(["evalset", "scenario"]), required=True, help="What to write."
)
@click.option("--scenario", "scenarios", multiple=True, metavar="TEXT", help="Only names with TEXT.")
@click.option(
    "--conversation", "ids", multiple=True, metavar="ID", help="Only the conversation with this id."
)
@path_option("--output", "output", "File to write (default: standard output).")
@camel_case_option
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
def export(run: str, output: Path | None, force: bool, **options: Any) -> int:
    """Turn the finished conversations of RUN into test cases.

    As an evaluation set of ADK, or as scripted scenarios, whose mocks answer as before. RUN is an id
    (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """

    def go() -> int:
        from agentest.analysis.export.export import export, write
        from agentest.cli.kept_runs import run_here

        exported = export(run_here(run), output=output, **options)
        for note in exported.notes:
            tell(f"agentest: {note}")
        if output is None:
            Output(sys.stdout).write_bytes(source(exported.content.decode()))
        else:
            write(exported, output, force=force)
            say(f"{output}: {exported.summary}")
        return ExitCode.PASSED

    return _ended(go)


@cli.command()
@where
@which
@coverage_options
def coverage(cwd: Path | None, fail_under: float | None, form: Any, **options: Any) -> int:
    """Show which paths of which tasks have tests of which kind, and which tools were called and failed.

    RESULTS are those of one run or of several (default: the last run's); of a scenario that several have, the
    latest counts. Scenarios are placed by their tags task:NAME and path:NAME, and unit, integration or
    scenario; cases of evaluation sets by their tags or by ids like TASK/PATH. Nothing is run.

    Exit status: 0, 1 below --fail-under, 2 when something could not be loaded.
    """

    def go() -> int:
        from agentest.cli.coverage import covered, enough, show

        place = _place(cwd, options["config"])
        paths = (*options.pop("more_results"), *options.pop("results"))
        eval_sets = [place.from_root(target) for target in options.pop("eval_sets")]
        measured = covered(
            _request(place, offline=True, **options), [place.path(path) for path in paths], eval_sets
        )
        show(measured.coverage, form, sys.stdout)
        return _tell_broken(measured.broken) or enough(measured.coverage, fail_under)

    return _ended(go)


cli.add_command(init)
cli.add_command(doctor)
cli.add_command(mcp_stdio)
cli.add_command(mcp_tools)
cli.add_command(eval_set)
cli.add_command(runs)
cli.add_command(show)
cli.add_command(compare)
cli.add_command(merge)
cli.add_command(label)
cli.add_command(calibrate)


def _dry_run(prepared: Any) -> ExitCode:
    from agentest.cli.listing import dry_run

    return _shown(prepared, dry_run(prepared))


def _listed(prepared: Any) -> ExitCode:
    from agentest.cli.listing import listing

    return _shown(prepared, listing(prepared))


def _shown(prepared: Any, lines: Iterable[str]) -> ExitCode:
    """Say what would run, after what the user should know of it."""
    from agentest.cli.listing import broken

    for note in prepared.notes:
        tell(f"agentest: {note}")
    for line in lines:
        say(line)
    return _tell_broken(broken(prepared))


def _tell_broken(problems: Sequence[Any]) -> ExitCode:
    for entry in problems:
        tell(f"{entry.file}:{entry.line}: {entry.verdict.reasons[0].message}")
    return ExitCode.ERRORED if problems else ExitCode.PASSED


def main() -> NoReturn:
    """Entry point of the `agentest` command."""
    run_to_exit(cli)
