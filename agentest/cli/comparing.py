"""`agentest compare`. It imports nothing but click until it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentest.cli.ending import ended
from agentest.cli.options import path_option, where
from agentest.cli.requests import place_in


@click.command()
@click.argument("base", required=False)
@click.argument("new", required=False)
@where
@click.option("--agents", is_flag=True, help="Compare the agents of one run: each with the first.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["console", "json", "markdown"]),
    default="console",
    show_default=True,
    help="How to tell it.",
)
@path_option("--output", "output", "File to write (default: standard output).")
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 when something regressed.")
def compare(base: str | None, new: str | None, cwd: Path | None, config: Path | None, **wish: Any) -> int:
    """Compare two runs: what regressed, what improved, and what changed within noise.

    BASE and NEW are ids (agentest runs) or their beginnings, `latest`, folders, results.json or
    journal.jsonl. Without NEW it is the latest run, without BASE, too, the latest two are compared.

    Exit status: 0; 1 when something regressed and --fail-on-regression or the configuration's
    `fail_on_regression` says so; 2 when the runs cannot be compared.
    """

    def go() -> int:
        from agentest.cli.compare import Wish, compare_runs

        return compare_runs(Wish(base=base, new=new, config=config, **wish), place_in(cwd, config))

    return ended(go)
