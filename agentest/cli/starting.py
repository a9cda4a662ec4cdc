"""The commands of the first hour: `init` and `doctor`. It imports nothing but click until one is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentest.cli.ending import ended
from agentest.cli.options import model_option, where
from agentest.cli.requests import place_in, request_at


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
        from agentest.authoring.project.init.project import Wish
        from agentest.cli.init import init

        return init(Wish(folder=folder, endpoint=endpoint, demo=demo, ci=ci))  # type: ignore[arg-type]

    return ended(go)


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
        from agentest.cli.doctor import doctor

        return doctor(request_at(place_in(cwd, config), config, **options))

    return ended(go)
