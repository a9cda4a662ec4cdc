"""Command-line entry point: the `agentest` group and the commands that fit no other command module.

Modules here import only click at the top. Each command imports its work when it is called, so that
`--help` stays fast.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from agentest.cli.command_list import FIRST_STEPS, SectionedGroup
from agentest.cli.exit_status import run_to_exit
from agentest.cli.history_commands import calibrate, compare, label, merge, runs, show, ui
from agentest.cli.options import (
    ParsedOptions,
    camel_case_option,
    exits,
    model_option,
    offline_option,
    output_options,
    path_option,
    spread,
    typed,
    where,
    which,
    with_dashes,
)
from agentest.cli.project_commands import doctor, eval_set, init, mcp_stdio, mcp_tools
from agentest.cli.run_commands import evaluate, run
from agentest.support.errors import ExitCode
from agentest.support.terminal import say, tell
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.authoring.export import Expecting, Form

_CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": with_dashes,
}


@click.group(cls=SectionedGroup, context_settings=_CONTEXT, epilog=FIRST_STEPS)
@click.version_option(__version__, prog_name="agentest")
def cli() -> None:
    """Test AI agents with simulated users, mocked tools and judged conversations."""


@cli.command()
@where
@which
@typed
def chat(parsed: ParsedOptions) -> int:
    """Talk to the agent yourself, with the mocks of one scenario."""
    from agentest.cli.chat import chat
    from agentest.cli.requests import RequestOptions

    return chat(parsed.to(RequestOptions))


@cli.command("record-tools")
@where
@click.option("--agent", metavar="NAME", help="Talk to this agent of the configuration.")
@click.option("--say", multiple=True, metavar="TEXT", help="Send TEXT as the user; repeat it for more turns.")
@click.option("--serve", is_flag=True, help="Start only the servers in front of the real tools.")
@path_option("--output", "output", "Write the mocks to this module (default: recorded_tools.py).")
@path_option("--scenario", "scenario", "Write the conversation as a scenario, too: NAME.sim.py.")
@click.option("--force", is_flag=True, help="Replace existing files.")
@typed
def record_tools(parsed: ParsedOptions) -> int:
    """Talk to the agent while its real tools answer, and write mocks that give the same results.

    Without --say, you type the user's messages. `agentest run --record-tools` records the calls of
    scenarios.

    Exit status: 0 written, 1 the conversation failed, 2 nothing was recorded, 130 interrupted. Calls that
    were recorded before a failure or an interruption are written.
    """
    from agentest.cli.record_tools import RecordToolsOptions, record_tools

    return record_tools(parsed.to(RecordToolsOptions))


@cli.command()
@click.argument("run")
@where
@which
@output_options
@model_option
@offline_option
@spread
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Judge only this metric.")
@typed
def judge(parsed: ParsedOptions) -> int:
    """Judge the finished conversations of RUN again, without calling the agent.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    from agentest.cli.judge import JudgeOptions, judge_again

    return judge_again(parsed.to(JudgeOptions))


@cli.command(context_settings={"token_normalize_func": with_dashes})
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@path_option("--initial-session-file", "initial_session", "Use this session for cases that have none.")
@path_option("--config-out", "config_out", "Write OLD's criteria to this file (default: next to NEW).")
@camel_case_option
@exits
def migrate(
    old: Path, new: Path, initial_session: Path | None, config_out: Path | None, camel_case: bool
) -> int:
    """Convert the evaluation set OLD, in any format, to an EvalSet, and write it to NEW.

    The criteria in OLD are written to a test_config.json next to NEW.
    """
    from agentest.adk.migration import migrate

    for note in migrate(old, new, initial_session, camel_case=camel_case, config_out=config_out):
        tell(f"agentest: {note}")
    return ExitCode.PASSED


@cli.command("show-prompts")
@click.option(
    "--metric", metavar="NAME", help="Show one metric, also of evaluation sets; criteria; user.check."
)
@click.option(
    "--mode",
    type=click.Choice(["off", "false", "turn", "true", "conversation"]),
    help="Show all calls for an example, as this `judge.batch` makes them.",
)
@exits
def show_prompts(metric: str | None, mode: str | None) -> int:
    """Show the prompts of the judges."""
    from agentest.cli.judge import prompt_text

    say(prompt_text(metric, mode))
    return ExitCode.PASSED


@cli.command()
@click.argument("run")
@click.option(
    "--to", "form", type=click.Choice(["evalset", "scenario"]), required=True, help="Choose what to write."
)
@click.option("--scenario", "scenarios", multiple=True, metavar="TEXT", help="Select names with TEXT.")
@click.option("--conversation", "ids", multiple=True, metavar="ID", help="Select a conversation by its id.")
@click.option(
    "--expect",
    type=click.Choice(["calls", "scenario"]),
    default="calls",
    help="Expect the same calls (default), or what the scenario's file expects.",
)
@path_option("--output", "output", "Write to this file (default: standard output).")
@camel_case_option
@click.option("--force", is_flag=True, help="Replace an existing file.")
@exits
def export(
    run: str,
    form: Form,
    scenarios: tuple[str, ...],
    ids: tuple[str, ...],
    expect: Expecting,
    output: Path | None,
    camel_case: bool,
    force: bool,
) -> int:
    """Turn the finished conversations of RUN into test cases.

    The cases are an evaluation set of ADK, or scripted scenarios whose mocks repeat the recorded results.
    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    import sys

    from agentest.authoring.export import export, write
    from agentest.cli.location import project_of
    from agentest.support.terminal import Output, source

    project = project_of(Path.cwd())
    file = project.run_file(run)
    exported = export(
        file, form, scenarios, ids, output, camel_case=camel_case, expect=expect, root=project.root
    )
    for note in exported.notes:
        tell(f"agentest: {note}")
    if output is None:
        Output(sys.stdout).write_bytes(source(exported.content.decode()))
    else:
        write(exported, output, force=force)
        say(f"{output}: {exported.summary}")
    return ExitCode.PASSED


@cli.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@click.option("--results", multiple=True, metavar="RUN", help="Read RUN, like the argument.")
@click.option(
    "--eval-set",
    "eval_sets",
    multiple=True,
    metavar="FILE_OR_DIR[:CASE,…]",
    help="Count the cases of these evaluation sets, too.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PERCENT",
    help="Fail if fewer cells have a scenario, or fewer tools were called.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown"]),
    default="text",
    show_default=True,
    help="Choose the output format.",
)
@where
@which
@typed
def coverage(parsed: ParsedOptions) -> int:
    """Show which paths of which tasks have tests of which kind, and which tools were called and failed.

    RUN is an id or its beginning, `latest`, a folder or a file (default: the latest run and the latest
    evaluation). A scenario that several runs have counts as in the latest. Scenarios are placed by the tags
    task:NAME, path:NAME, and unit, integration or scenario; cases of evaluation sets by their tags or by
    ids like TASK/PATH. Nothing is run.

    Exit status: 0, 1 below --fail-under, 2 if a file could not be loaded.
    """
    from agentest.cli.coverage import CoverageOptions, coverage

    return coverage(parsed.to(CoverageOptions))


for command in (run, evaluate, init, doctor, mcp_stdio, mcp_tools, eval_set):
    cli.add_command(command)
for command in (runs, show, ui, compare, merge, label, calibrate):
    cli.add_command(command)


def main() -> NoReturn:
    """Run the `agentest` command and exit with its status."""
    run_to_exit(cli)
