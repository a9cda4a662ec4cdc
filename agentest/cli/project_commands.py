"""Define the commands that set up a project and its servers.

These are `init`, `doctor`, `mcp-stdio`, `mcp-tools` and `eval-set`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from pathlib import Path

import click

from agentest.cli.options import ParsedOptions, exits, model_option, path_option, typed, where
from agentest.support.errors import ExitCode
from agentest.support.terminal import say


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option("--endpoint", metavar="URL", help="Detect the protocol of your agent at URL.")
@click.option("--demo", is_flag=True, help="Add a small agent, to try Agentest without a key.")
@click.option("--ci", type=click.Choice(["github", "gitlab"]), help="Write the workflow that runs it, too.")
@typed
def init(parsed: ParsedOptions) -> int:
    """Write a configuration, a first scenario and entries of .gitignore to DIR (default: here).

    Existing files are never replaced.

    Exit status: 0 all files exist; 2 nothing was written, or the endpoint's protocol was not recognized.
    """
    from agentest.authoring.new_project import InitRequest
    from agentest.cli.project import init

    return init(parsed.to(InitRequest))


@click.command()
@where
@click.option("--agent", metavar="NAME", help="Check only this agent of the configuration.")
@model_option
@click.option("--offline", is_flag=True, help="Call no model.")
@typed
def doctor(parsed: ParsedOptions) -> int:
    """Check everything that a run needs: configuration, scenarios, agents, keys, models.

    Servers of agents are started and stopped; each model answers one short question. No agent is called.

    Exit status: 0 a run can start; 2 something needs attention.
    """
    from agentest.cli.project import doctor
    from agentest.cli.requests import RequestOptions

    return doctor(parsed.to(RequestOptions))


@click.command("mcp-stdio")
@click.argument("url", required=False)
@exits
def mcp_stdio(url: str | None) -> int:
    """Serve MCP on standard input and output, for agents that start their servers as programs.

    URL is that of the mock server (default: AGENTEST_MCP_URL of the environment).
    """
    from agentest.cli.mcp_bridge import serve_stdio

    return serve_stdio(url)


@click.command("mcp-tools")
@where
@click.option("--agent", metavar="NAME", help="Read only the real server of this agent.")
@click.option("--check", is_flag=True, help="Compare with the file, and write nothing.")
@typed
def mcp_tools(parsed: ParsedOptions) -> int:
    """Store the tools of the real MCP server (mcp_mock.upstream) in the file mcp_mock.tools, for mocks.

    Exit status: 0; with --check, 1 if the server's tools differ from the file, 2 if it cannot be reached.
    """
    from agentest.cli.mcp_bridge import McpToolsOptions, mcp_tools

    return mcp_tools(parsed.to(McpToolsOptions))


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
def create(agent: str, set_id: str) -> int:
    """Create an evaluation set without cases."""
    from time import time

    from agentest.adk.set_creation import SetPlace, create_set

    file = create_set(SetPlace(agent, set_id), time())
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
@path_option("--session-input-file", "session", "Read the session of the cases: {app_name, user_id, state}.")
@exits
def add_eval_case(agent: str, set_id: str, scenarios: Path, session: Path | None) -> int:
    """Add conversation scenarios to an evaluation set, as cases with a simulated user.

    A scenario that the set already has is left out.
    """
    from time import time

    from agentest.adk.set_creation import SetPlace, add_cases

    target = SetPlace(agent, set_id)
    for case in add_cases(target, scenarios, session, time()):
        outcome = "added" if case.new else "exists already, left out"
        say(f"{target.file}: case {case.eval_id!r} {outcome}")
    return ExitCode.PASSED
