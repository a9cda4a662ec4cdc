"""`agentest ui`: serve the web page on this machine until it is interrupted."""

from __future__ import annotations

import anyio
import click

from agentest.cli.location import Location
from agentest.cli.options import exits, where
from agentest.support.errors import ExitCode, UsageError
from agentest.support.interrupts import exit_immediately, handled_signals, run_event_loop
from agentest.support.terminal import say, tell
from agentest.web.guard import ListeningSockets
from agentest.web.json_routes import WebProject


@click.command()
@click.argument("run", required=False)
@where
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8321,
    help="Listen on this port (default: 8321; 0: any free one).",
)
@exits
def ui(location: Location, run: str | None, port: int) -> ExitCode:
    """Serve a page that shows runs, talks to the agent and writes cases.

    Only this machine can open it, with the address that is printed. With RUN, the page opens that run: an id
    (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    place = location.enter()
    project = WebProject(
        root=place.root,
        config=place.named_config,
        output_dir=place.output_dir,
        chosen=place.run_file(run) if run else None,
    )
    if project.chosen and not project.chosen.is_file():
        raise UsageError(f"{project.chosen} is not there: expected a results.json or a journal.jsonl")
    door = ListeningSockets.at(port)
    say(f"agentest ui: the runs of {project.output_dir}, and a page to work in:")
    say(f"  {door.address(project)}")
    say("Keep the address private: it allows anyone on this machine to see and start runs. Ctrl-C stops it.")
    run_event_loop(_serve, project, door)
    return ExitCode.PASSED


async def _serve(project: WebProject, door: ListeningSockets) -> None:
    from agentest.web.app import serve_on_sockets  # slow import, started after the address is printed

    ending = anyio.Event()
    with handled_signals(ending.set, str):
        async with serve_on_sockets(project, door, _report_waiting):
            await ending.wait()
    exit_immediately()  # a thread may hang while it imports a scenario file


def _report_waiting(running: int) -> None:
    runs = "a run that was" if running == 1 else f"{running} runs that were"
    tell(f"agentest ui: ends {runs} started from the page")
