"""Command-line entry point: the `agentest` group and the commands that fit no other command module.

Modules here import only click at the top. Each command imports its work when it is called, so that
`--help` stays fast.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from agentest.cli.command_list import FIRST_STEPS, SectionedGroup
from agentest.cli.exit_status import exit_status_of as _ended
from agentest.cli.exit_status import run_to_exit
from agentest.cli.history_commands import calibrate, compare, label, merge, runs, show, ui
from agentest.cli.options import build_request as _request
from agentest.cli.options import (
    camel_case_option,
    coverage_options,
    model_option,
    offline_option,
    output_options,
    path_option,
    spread,
    where,
    which,
    with_dashes,
)
from agentest.cli.options import enter_place as _place
from agentest.cli.project_commands import doctor, eval_set, init, mcp_stdio, mcp_tools
from agentest.cli.run_commands import evaluate, report_load_errors, run
from agentest.support.errors import ExitCode
from agentest.support.terminal import Output, say, source, tell
from agentest.version import __version__

_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": with_dashes,
}


@click.group(cls=SectionedGroup, context_settings=_CONTEXT, epilog=FIRST_STEPS)
@click.version_option(__version__, prog_name="agentest")
def cli() -> None:
    """Test AI agents: simulated users, mocked tools, judged conversations, black-box over HTTP."""


@cli.command()
@where
@which
def chat(cwd: Path | None, **options: Any) -> int:
    """Talk to the agent yourself, through the mocks of one scenario."""

    def go() -> int:
        from agentest.cli.chat import chat
        from agentest.runner.prepare import prepare

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
def record_tools(cwd: Path | None, config: Path | None, agent: str | None, **chosen: Any) -> int:
    """Talk to the agent while its real tools answer, and write mocks that answer the same.

    Without --say you talk to it yourself. `agentest run --record-tools` records what scenarios make it call.

    Exit status: 0 written, 1 the conversation failed, 2 nothing was recorded, 130 interrupted. What was
    recorded until then is written.
    """

    def go() -> int:
        from agentest.cli.record_tools import RecordToolsOptions, record_tools

        place = _place(cwd, config)
        request = _request(place, config=config, agent=agent, offline=True)
        return record_tools(request, RecordToolsOptions(**chosen), place)

    return _ended(go)


@cli.command()
@click.argument("run")
@where
@which
@output_options
@model_option
@offline_option
@spread
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Judge only this metric.")
def judge(run: str, cwd: Path | None, **options: Any) -> int:
    """Judge the finished conversations of RUN again. The agent is not talked to.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """

    def go() -> int:
        from agentest.cli.judge import judge_again
        from agentest.cli.run_lookup import run_at
        from agentest.runner.prepare import prepare

        place = _place(cwd, options["config"])
        earlier = run_at(run, place, options["config"])
        return judge_again(prepare(_request(place, **options)), earlier)

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
        from agentest.adk.migration import migrate

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
        from agentest.cli.judge import prompt_text

        say(prompt_text(metric, mode))
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
@click.option(
    "--expect",
    type=click.Choice(["calls", "scenario"]),
    default="calls",
    help="What must happen again: the same calls (default), or what the scenario's file says.",
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
        from agentest.authoring.export import export, write
        from agentest.cli.run_lookup import run_here
        from agentest.runner.environment import run_folders_of

        root = run_folders_of(Path.cwd()).root
        exported = export(run_here(run), output=output, root=root, **options)
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

    RUN is an id, the beginning of one, `latest`, a folder or a file (default: the latest run and the latest
    evaluation); of a scenario that several runs have, the latest counts. Scenarios are placed by their tags
    task:NAME and path:NAME, and unit, integration or scenario; cases of evaluation sets by their tags or by
    ids like TASK/PATH. Nothing is run.

    Exit status: 0, 1 below --fail-under, 2 when something could not be loaded.
    """

    def go() -> int:
        from agentest.cli.coverage import coverage_status, measure_coverage, show
        from agentest.cli.run_lookup import run_at

        place = _place(cwd, options["config"])
        references = (*options.pop("more_results"), *options.pop("results"))
        paths = [run_at(reference, place, options["config"]) for reference in references]
        eval_sets = [place.from_root(target) for target in options.pop("eval_sets")]
        measured = measure_coverage(_request(place, offline=True, **options), paths, eval_sets)
        show(measured.coverage, form, sys.stdout)
        return report_load_errors(measured.broken) or coverage_status(measured.coverage, fail_under)

    return _ended(go)


cli.add_command(run)
cli.add_command(evaluate)
cli.add_command(init)
cli.add_command(doctor)
cli.add_command(mcp_stdio)
cli.add_command(mcp_tools)
cli.add_command(eval_set)
cli.add_command(runs)
cli.add_command(show)
cli.add_command(ui)
cli.add_command(compare)
cli.add_command(merge)
cli.add_command(label)
cli.add_command(calibrate)


def main() -> NoReturn:
    """Run the `agentest` command and exit with its status."""
    run_to_exit(cli)
