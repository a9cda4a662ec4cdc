"""`agentest ui`: serve the web page on this machine until it is interrupted."""

from __future__ import annotations

from dataclasses import field

import anyio

from agentest.cli.location import Location
from agentest.support.errors import ExitCode, UsageError
from agentest.support.interrupts import exit_immediately, handled_signals, run_event_loop
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import say, tell
from agentest.web.guard import ListeningSockets
from agentest.web.json_routes import WebProject


@dataclass(frozen=True, slots=True, kw_only=True)
class UiOptions:
    """Options of `agentest ui`."""

    location: Location = field(default_factory=Location)
    run: str | None = None
    port: int = 8321


def ui(options: UiOptions) -> ExitCode:
    """Serve the page. Raises UsageError if the port is not available or the run does not exist."""
    location = options.location.enter()
    project = WebProject(
        root=location.root,
        config=location.named_config,
        output_dir=location.output_dir,
        chosen=location.run_file(options.run) if options.run else None,
    )
    if project.chosen and not project.chosen.is_file():
        raise UsageError(f"{project.chosen} is not there: expected a results.json or a journal.jsonl")
    door = ListeningSockets.at(options.port)
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
