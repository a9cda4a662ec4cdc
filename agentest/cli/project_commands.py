"""Define the commands that set up a project, its tests and its servers.

These are `init`, `doctor`, `chat`, `record-tools`, `mcp-stdio`, `mcp-tools`, `eval-set` and `migrate`.

The module imports only click at the top; each command imports its work when it is called.
"""

from __future__ import annotations

from pathlib import Path

import click

from agentest.cli.command_list import with_dashes
from agentest.cli.options import (
    ParsedOptions,
    camel_case_option,
    exits,
    model_option,
    path_option,
    typed,
    where,
    which,
)
from agentest.support.errors import ExitCode
from agentest.support.terminal import say, tell


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

    from agentest.adk.set_files import SetLocation, create_set

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
@path_option("--session-input-file", "session", "Read the session of the cases: {app_name, user_id, state}.")
@exits
def add_eval_case(agent: str, set_id: str, scenarios: Path, session: Path | None) -> int:
    """Add conversation scenarios to an evaluation set, as cases with a simulated user.

    A scenario that the set already has is left out.
    """
    from time import time

    from agentest.adk.set_files import SetLocation, add_cases

    target = SetLocation(agent, set_id)
    for eval_id, is_new in add_cases(target, scenarios, session, time()):
        outcome = "added" if is_new else "exists already, left out"
        say(f"{target.file}: case {eval_id!r} {outcome}")
    return ExitCode.PASSED


@click.command()
@where
@which
@typed
def chat(parsed: ParsedOptions) -> int:
    """Talk to the agent yourself, with the mocks of one scenario."""
    from agentest.cli.chat import chat
    from agentest.cli.requests import RequestOptions

    return chat(parsed.to(RequestOptions))


@click.command("record-tools")
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


@click.command(context_settings={"token_normalize_func": with_dashes})
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
