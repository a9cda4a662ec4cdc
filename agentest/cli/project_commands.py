"""Define the commands that set up a project and its servers.

These are `init`, `doctor`, `mcp-stdio`, `mcp-tools` and `eval-set`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from agentest.cli.exit_status import exit_status_of
from agentest.cli.options import build_request, enter_place, model_option, path_option, where
from agentest.support.errors import ExitCode, UsageError
from agentest.support.terminal import say


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option("--endpoint", metavar="URL", help="Where your agent listens: what it speaks is found out.")
@click.option("--demo", is_flag=True, help="Bring a little agent along, to try things on without a key.")
@click.option("--ci", type=click.Choice(["github", "gitlab"]), help="Write the workflow that runs it, too.")
def init(folder: Path, endpoint: str | None, demo: bool, ci: str | None) -> int:
    """Write a configuration, a first scenario and entries of .gitignore to DIR (default: here).

    Nothing that is there is written over.

    Exit status: 0 all is there; 2 nothing was written, or what the endpoint speaks was not recognised.
    """

    def go() -> int:
        from agentest.authoring.new_project import InitRequest
        from agentest.cli.project import init

        return init(InitRequest(folder=folder, endpoint=endpoint, demo=demo, ci=ci))  # type: ignore[arg-type]

    return exit_status_of(go)


@click.command()
@where
@click.option("--agent", metavar="NAME", help="Look at this agent of the configuration alone.")
@model_option
@click.option("--offline", is_flag=True, help="Ask no model.")
def doctor(cwd: Path | None, config: Path | None, **options: Any) -> int:
    """Look at everything that a run needs: configuration, scenarios, agents, keys, models.

    Agents' servers are started and ended again; each model answers one tiny question. No agent is talked to.

    Exit status: 0 a run can begin; 2 something is to be seen to.
    """

    def go() -> int:
        from agentest.cli.project import doctor

        return doctor(build_request(enter_place(cwd, config), config, **options))

    return exit_status_of(go)


@click.command("mcp-stdio")
@click.argument("url", required=False)
def mcp_stdio(url: str | None) -> int:
    """Be an MCP server on standard input and output: for agents that start theirs as programs.

    URL is that of the mock server (default: AGENTEST_MCP_URL of the environment).
    """

    def go() -> int:
        from agentest.cli.mcp_bridge import serve, url_of

        try:
            found = url_of(url)
        except ValueError as error:
            raise UsageError(str(error)) from None
        serve(found, os.environ, sys.stdin.buffer, sys.stdout.buffer)
        return ExitCode.PASSED

    return exit_status_of(go)


@click.command("mcp-tools")
@where
@click.option("--agent", metavar="NAME", help="Only the real server of this agent of the configuration.")
@click.option("--check", is_flag=True, help="Compare with the file, and write nothing.")
def mcp_tools(cwd: Path | None, check: bool, **options: Any) -> int:
    """Keep the tools of the real MCP server (mcp_mock.upstream) in the file mcp_mock.tools, for mocks.

    Exit status: 0; with --check 1 where the server has other tools than the file, 2 when it cannot be asked.
    """

    def go() -> int:
        from agentest.cli.mcp_bridge import mcp_tools

        return mcp_tools(build_request(enter_place(cwd, options["config"]), **options), check=check)

    return exit_status_of(go)


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

        from agentest.adk.set_creation import SetPlace, create_set

        file = create_set(SetPlace(agent, set_id), time())
        say(f"{file}: evaluation set {set_id!r} created, without cases yet")
        say(f"agentest eval_set add_eval_case {agent} {set_id} --scenarios_file FILE adds cases")
        return ExitCode.PASSED

    return exit_status_of(go)


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

        from agentest.adk.set_creation import SetPlace, add_cases

        place = SetPlace(agent, set_id)
        for case in add_cases(place, scenarios, session, time()):
            happened = "added" if case.new else "is there already, left out"
            say(f"{place.file}: case {case.eval_id!r} {happened}")
        return ExitCode.PASSED

    return exit_status_of(go)
