"""`agentest runs`, `agentest show` and `agentest ui`. It imports nothing but click until they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentest.cli.ending import ended
from agentest.cli.options import where
from agentest.cli.requests import place_in

_FEW = 20


@click.command()
@where
@click.option("--all", "every", is_flag=True, help=f"List all of them (default: the latest {_FEW}).")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="How to tell it.")
def runs(cwd: Path | None, config: Path | None, every: bool, form: Any) -> int:
    """List the kept runs, the latest first: when, how they ended, cost, model, commit."""

    def go() -> int:
        from agentest.cli.kept_runs import list_runs
        from agentest.cli.named_runs import runs_folder

        place = place_in(cwd, config)
        return list_runs(runs_folder(place, config), form, None if every else _FEW)

    return ended(go)


@click.command()
@click.argument("run", default="latest")
@where
@click.option(
    "--scenario", "scenarios", multiple=True, metavar="TEXT", help="Only names with TEXT; =NAME: this name."
)
@click.option("--verbose", is_flag=True, help="Show transcripts.")
@click.option("--reporter", "reporters", multiple=True, metavar="NAME", help="Default: console; NAME=PATH.")
def show(run: str, cwd: Path | None, config: Path | None, **wish: Any) -> int:
    """Print a past run as it was printed when it ran.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """

    def go() -> int:
        from agentest.cli.kept_runs import Wish
        from agentest.cli.kept_runs import show as shown
        from agentest.cli.named_runs import run_at

        place = place_in(cwd, config)
        return shown(run_at(run, place, config), Wish(**wish), place)

    return ended(go)


@click.command()
@click.argument("run", required=False)
@where
@click.option("--port", type=click.IntRange(0, 65535), default=8321, help="Default: 8321; 0: any free one.")
def ui(run: str | None, cwd: Path | None, config: Path | None, port: int) -> int:
    """Serve a page to look at runs, to talk to the agent and to make cases.

    It is served on this machine alone, to whoever has the address that is printed. With RUN it shows that one
    first: an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """

    def go() -> int:
        from agentest.cli.ui import ui as served

        return served(place_in(cwd, config), config, port, run)

    return ended(go)
