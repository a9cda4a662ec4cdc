"""`agentest ui`: the page, served on this machine until it is interrupted."""

from __future__ import annotations

from pathlib import Path

import anyio

from agentest.cli.kept_runs import run_at, runs_folder
from agentest.errors import ExitCode
from agentest.run.place import Place
from agentest.support.terminal import say
from agentest.web.app import serving
from agentest.web.project import Project


def ui(place: Place, config: Path | None, port: int, run: str | None) -> ExitCode:
    """Serve the page. Raises UsageError where the port cannot be had, or there is no such run."""
    project = Project(
        root=place.root,
        config=place.path(config) if config else None,
        output_dir=runs_folder(place, config),
        chosen=run_at(run, place, config) if run else None,
    )
    anyio.run(_serve, project, port)
    return ExitCode.PASSED


async def _serve(project: Project, port: int) -> None:
    async with serving(project, port) as served:
        say(f"agentest ui: {served.address}")
        say("The address is for you alone: it opens your runs. Ctrl-C ends the page.")
        await anyio.sleep_forever()
