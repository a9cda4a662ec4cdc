"""`agentest ui`: serve the web page on this machine until it is interrupted."""

from __future__ import annotations

from pathlib import Path

import anyio
import click

from agentest.cli.location import Location
from agentest.cli.options import exits, flag, option, where
from agentest.domain.results import Status
from agentest.plugins.page.server.guard import ListeningSockets
from agentest.plugins.page.server.json_routes import WebProject
from agentest.store.runs.folder import list_stored_runs
from agentest.support.errors import ExitCode, UsageError
from agentest.support.interrupts import exit_immediately, handled_signals, run_event_loop
from agentest.support.terminal import open_in_browser, say


@click.command()
@click.argument("run", required=False)
@where
@option(
    "--port",
    None,
    "Listen on this port (default: 8321; 0: any free one).",
    kind=click.IntRange(0, 65535),
    default=8321,
)
@flag("--no-open", "Do not open the browser.")
@exits
def ui(location: Location, run: str | None, port: int, no_open: bool) -> ExitCode:
    """Serve a page that shows runs, talks to the agent and writes cases.

    In a terminal it opens in the browser; only this machine can open it, with the address that is printed.
    The page begins with RUN: an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a
    journal.jsonl. Without RUN it begins with the latest run, if that did not pass.
    """
    place = location.enter()
    project = WebProject(
        root=place.root,
        config=place.named_config,
        output_dir=place.output_dir,
        chosen=place.run_file(run) if run else _latest_unpassed(place.output_dir),
    )
    if project.chosen and not project.chosen.is_file():
        raise UsageError(f"{project.chosen} is not there: expected a results.json or a journal.jsonl")
    listener = ListeningSockets.at(port)
    say(f"agentest ui: the runs of {project.output_dir}, and a page to work in:")
    address = listener.address(project)
    say(f"  {address}")
    say("Keep the address private: it allows anyone on this machine to see and start runs. Ctrl-C stops it.")
    if not no_open:
        open_in_browser(address)
    run_event_loop(_serve, project, listener)
    return ExitCode.PASSED


def _latest_unpassed(output_dir: Path) -> Path | None:
    stored = list_stored_runs(output_dir)
    if not stored or stored[-1].state in (Status.PASSED, Status.SKIPPED, "under way", "unknown"):
        return None
    return stored[-1].file


async def _serve(project: WebProject, listener: ListeningSockets) -> None:
    # A slow import, which begins after the address is printed.
    from agentest.plugins.page.server.app import serve_on_sockets

    ending = anyio.Event()
    with handled_signals(ending.set, str):
        async with serve_on_sockets(project, listener):
            await ending.wait()
    exit_immediately()  # a thread may hang while it imports a scenario file
