"""`agentest import`: write a scenario file for rows of data.

The rows stay in their own file, which the scenario file reads with `each`.
"""

from __future__ import annotations

import click

from agentest.authoring.row_import import ImportRequest, import_rows
from agentest.cli.options import exits, flag, option, path_option
from agentest.support.errors import ExitCode
from agentest.support.terminal import say, tell


@click.command("import")
@click.argument("source")
@path_option("--output", "Write to this file, *.sim.yaml or *.sim.py (default: next to SOURCE).")
@option("--name", "TEXT", "Name scenarios like 'order {id}' (default: by the columns).")
@option("--turn turns", "TEXT", "Send a user message like '{question}'; repeat for more.", multiple=True)
@option("--says", "TEXT", "Expect a reply that contains a text like '{answer}'.")
@option("--outcome", "TEXT", "Expect an outcome, which a judge decides.")
@option("--split", "NAME", "Use this split of a dataset (default: train).")
@option("--rows limit", "N", "Use the first N rows of a dataset.", kind=click.IntRange(min=1))
@flag("--force", "Replace existing files.")
@exits
def import_(rows: ImportRequest) -> ExitCode:
    """Write a scenario file for the rows of SOURCE.

    SOURCE is a .csv, .tsv, .jsonl or .json file, or the name of a Hugging Face dataset, whose rows are stored
    next to the scenario file. Without options, messages and answers are found by the names of columns.

    Exit status: 0 every row is a valid scenario; 2 a row is invalid, or nothing was written.
    """
    imported = import_rows(rows)
    for note in imported.notes:
        tell(f"agentest: {note}")
    for path in imported.files:
        say(f"wrote {path}")
    say(f"{imported.summary}. Next: agentest run {imported.files[-1]}")
    return ExitCode.PASSED if imported.is_valid else ExitCode.ERRORED
