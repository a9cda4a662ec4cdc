"""`agentest merge`. It imports nothing but click until it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agentest.cli.ending import ended
from agentest.cli.options import output_options, path_option, where
from agentest.cli.requests import place_in


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@where
@path_option("--output-dir", "output_dir", "Where the merged run is kept (default: `output_dir`).")
@click.option("--allow-missing", is_flag=True, help="Merge without shards that are missing: an errored run.")
@output_options
def merge(runs: tuple[str, ...], cwd: Path | None, config: Path | None, **wish: Any) -> int:
    """Make one run of several: of all shards of a run, or of runs without a scenario in common.

    RUN is an id (agentest runs) or its beginning, the folder of a run, or a folder above several.

    Exit status as of run: 0 all passed, 1 a scenario failed, 2 something errored, is missing or does not fit.
    """

    def go() -> int:
        from agentest.cli.merge import Wish
        from agentest.cli.merge import merge as merged

        return merged(Wish(runs=runs, **wish), place_in(cwd, config), config)

    return ended(go)
