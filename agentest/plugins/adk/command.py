"""ADK's evaluation sets: `agentest eval-set` creates them, `agentest migrate` converts old ones."""

from __future__ import annotations

from pathlib import Path
from time import time

import click

from agentest.cli.command_list import with_dashes
from agentest.cli.options import camel_case_option, exits, path_option
from agentest.plugins.adk.migration import migrate as converted
from agentest.plugins.adk.set_files import SetLocation, add_cases, create_set
from agentest.support.errors import ExitCode
from agentest.support.terminal import say, tell


@click.group("eval-set")
def eval_set() -> None:
    """Create evaluation sets: `eval_set create`, `eval_set add_eval_case`, as in ADK's command line.

    AGENT is the agent's folder, which stores its sets as ID.evalset.json. For a name or a URL, the working
    directory stores them.
    """


@eval_set.command()
@click.argument("agent")
@click.argument("set_id", metavar="ID")
@exits
def create(agent: str, set_id: str) -> ExitCode:
    """Create an evaluation set without cases."""
    file = create_set(SetLocation(agent, set_id), time())
    say(f"{file}: evaluation set {set_id!r} created, without cases yet")
    say(f"agentest eval_set add_eval_case {agent} {set_id} --scenarios_file FILE adds cases")
    return ExitCode.PASSED


@eval_set.command("add-eval-case")
@click.argument("agent")
@click.argument("set_id", metavar="ID")
@click.option(
    "--scenarios-file",
    "scenarios",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help='Read scenarios: {"scenarios": [{"starting_prompt": …, "conversation_plan": …}]}.',
)
@path_option("--session-input-file session", "Read the session of the cases: {app_name, user_id, state}.")
@exits
def add_eval_case(agent: str, set_id: str, scenarios: Path, session: Path | None) -> ExitCode:
    """Add conversation scenarios to an evaluation set, as cases with a simulated user.

    A scenario that the set already has is left out.
    """
    target = SetLocation(agent, set_id)
    for eval_id, is_new in add_cases(target, scenarios, session, time()):
        outcome = "added" if is_new else "exists already, left out"
        say(f"{target.file}: case {eval_id!r} {outcome}")
    return ExitCode.PASSED


@click.command(context_settings={"token_normalize_func": with_dashes})
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@path_option("--initial-session-file initial_session", "Use this session for cases that have none.")
@path_option("--config-out", "Write OLD's criteria to this file (default: next to NEW).")
@camel_case_option
@exits
def migrate(
    old: Path, new: Path, initial_session: Path | None, config_out: Path | None, camel_case: bool
) -> ExitCode:
    """Convert the evaluation set OLD, in any format, to an EvalSet, and write it to NEW.

    The criteria in OLD are written to a test_config.json next to NEW.
    """
    for note in converted(old, new, initial_session, camel_case=camel_case, config_out=config_out):
        tell(f"agentest: {note}")
    return ExitCode.PASSED
