"""`agentest import`: write scenarios for rows of data, or for the sessions of traces.

Rows stay in their own file, which the scenario file reads with `each`. Sessions become scripts with mocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from agentest.authoring.row_import import ImportRequest, import_rows
from agentest.authoring.trace_import import TraceRequest, import_traces
from agentest.authoring.trace_sessions import FORMS, has_sessions
from agentest.cli.options import exits, flag, option, path_option
from agentest.support.errors import ExitCode, UsageError
from agentest.support.terminal import say, tell


@click.command("import")
@click.argument("sources", nargs=-1, required=True)
@path_option("--output", "Write to this file, *.sim.yaml or *.sim.py (default: next to the first SOURCE).")
@option("--name", "TEXT", "Name scenarios like 'order {id}' (default: by the columns).")
@option("--turn turns", "TEXT", "Send a user message like '{question}'; repeat for more.", multiple=True)
@option("--says", "TEXT", "Expect a reply that contains a text like '{answer}'.")
@option("--outcome", "TEXT", "Expect an outcome, which a judge decides.")
@option("--split", "NAME", "Use this split of a dataset (default: train).")
@option("--rows limit", "N", "Use the first N rows of a dataset.", kind=click.IntRange(min=1))
@option("--as form", "FORM", "Read traces of this form (default: by their keys).", kind=click.Choice(FORMS))
@option("--count most", "N", "Write at most N scenarios of traces (default: 20).", kind=click.IntRange(min=1))
@option("--redact", "REGEX", "Replace matches in traces, too; repeat for more.", multiple=True)
@flag("--force", "Replace existing files.")
@exits
def import_(
    rows: ImportRequest, sources: tuple[str, ...], form: str | None, most: int | None, redact: tuple[str, ...]
) -> ExitCode:
    """Write a scenario file for rows of data, or for the recorded sessions of an agent.

    Rows: SOURCE is a .csv, .tsv, .jsonl or .json file, or the name of a Hugging Face dataset, whose rows are
    stored next to the scenario file. Without options, messages and answers are found by the names of columns.

    Sessions: SOURCES are exports of OpenTelemetry (GenAI), Langfuse, LangSmith or Phoenix, logs of the OpenAI
    API, sessions of ADK, or lines with messages. Those that differ become scripts with recorded mocks.
    Personal data is replaced.

    Exit status: 0 every scenario is valid; 2 one is invalid, or nothing was written.
    """
    paths = tuple(map(Path, sources))
    if form or (all(path.is_file() for path in paths) and all(map(has_sessions, paths))):
        given = (rows.name, rows.turns, rows.says, rows.outcome, rows.split, rows.limit)
        if any(given):
            raise UsageError(
                f"{paths[0]} has recorded sessions; --name, --turn, --says and others are for rows"
            )
        output = rows.output or paths[0].with_name(f"{paths[0].stem}.sim.py")
        request = TraceRequest(
            paths=paths, form=form, output=output, most=most or 20, redact=redact, force=rows.force
        )
        traces = import_traces(request)
        return _report((traces.output,), traces.summary, traces.notes, is_valid=traces.is_valid)
    if len(sources) > 1:
        raise UsageError(
            f"{sources[1]}: rows are imported from one file; the sessions of traces from several"
        )
    if most or redact:
        raise UsageError(f"--{'count' if most else 'redact'}: is for traces; {sources[0]} has rows of data")
    imported = import_rows(replace(rows, source=sources[0]))
    return _report(imported.files, imported.summary, imported.notes, is_valid=imported.is_valid)


def _report(files: Sequence[Path], summary: str, notes: Sequence[str], *, is_valid: bool) -> ExitCode:
    for note in notes:
        tell(f"agentest: {note}")
    for path in files:
        say(f"wrote {path}")
    say(f"{summary}. Next: agentest run {files[-1]}")
    return ExitCode.PASSED if is_valid else ExitCode.ERRORED
