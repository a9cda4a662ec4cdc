"""`agentest ui`: serve the web page on this machine until it is interrupted."""

from __future__ import annotations

from pathlib import Path

import anyio

from agentest.cli.run_lookup import run_at, runs_folder
from agentest.runner.environment import RunFolders
from agentest.support.errors import ExitCode, UsageError
from agentest.support.interrupts import end_at_once, handled_signals, run_event_loop
from agentest.support.terminal import say, tell
from agentest.web.listener import ListeningSockets
from agentest.web.project import WebProject


def ui(place: RunFolders, config: Path | None, port: int, run: str | None) -> ExitCode:
    """Serve the page. Raises UsageError if the port is not available or the run does not exist."""
    project = WebProject(
        root=place.root,
        config=place.path(config) if config else None,
        output_dir=runs_folder(place, config),
        chosen=run_at(run, place, config) if run else None,
    )
    if project.chosen and not project.chosen.is_file():
        raise UsageError(f"{project.chosen} is not there: expected a results.json or a journal.jsonl")
    door = ListeningSockets.at(port)
    say(f"agentest ui: the runs of {project.output_dir}, and a page to work in:")
    say(f"  {door.address(project)}")
    say("The address is for you alone: whoever has it sees and starts runs. Ctrl-C ends it.")
    run_event_loop(_serve, project, door)
    return ExitCode.PASSED


async def _serve(project: WebProject, door: ListeningSockets) -> None:
    from agentest.web.app import serve_on_sockets  # slow import, started after the address is printed

    ending = anyio.Event()
    with handled_signals(ending.set, str):
        async with serve_on_sockets(project, door, _report_waiting):
            await ending.wait()
    end_at_once()  # a thread may hang while it imports a scenario file


def _report_waiting(running: int) -> None:
    runs = "a run that was" if running == 1 else f"{running} runs that were"
    tell(f"agentest ui: ends {runs} started from the page")
