"""`agentest eval_set`: evaluation sets made on the command line. It imports nothing but click until then."""

from __future__ import annotations

from pathlib import Path

import click

from agentest.cli.ending import ended
from agentest.cli.options import path_option
from agentest.support.errors import ExitCode
from agentest.support.terminal import say


@click.group("eval-set")
def eval_set() -> None:
    """Make evaluation sets: `eval_set create`, `eval_set add_eval_case`, as in ADK's command line.

    AGENT is the agent's folder, where its sets are kept as ID.evalset.json. For a name or a URL that is the
    working directory.
    """


@eval_set.command()
@click.argument("agent")
@click.argument("set_id", metavar="ID")
def create(agent: str, set_id: str) -> int:
    """Make an evaluation set without cases."""

    def go() -> int:
        from time import time

        from agentest.adk.authoring import SetPlace, create_set

        file = create_set(SetPlace(agent, set_id), time())
        say(f"{file}: evaluation set {set_id!r} created, without cases yet")
        say(f"agentest eval_set add_eval_case {agent} {set_id} --scenarios_file FILE adds cases")
        return ExitCode.PASSED

    return ended(go)


@eval_set.command("add-eval-case")
@click.argument("agent")
@click.argument("set_id", metavar="ID")
@click.option(
    "--scenarios-file",
    "scenarios",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help='Conversation scenarios: {"scenarios": [{"starting_prompt": …, "conversation_plan": …}]}.',
)
@path_option("--session-input-file", "session", "Session of the cases: {app_name, user_id, state}.")
def add_eval_case(agent: str, set_id: str, scenarios: Path, session: Path | None) -> int:
    """Add conversation scenarios to an evaluation set, each as a case that a simulated user leads.

    A scenario that the set has already is left out.
    """

    def go() -> int:
        from time import time

        from agentest.adk.authoring import SetPlace, add_cases

        place = SetPlace(agent, set_id)
        for case in add_cases(place, scenarios, session, time()):
            happened = "added" if case.new else "is there already, left out"
            say(f"{place.file}: case {case.eval_id!r} {happened}")
        return ExitCode.PASSED

    return ended(go)
