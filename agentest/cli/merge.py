"""`agentest merge`: merge the shards of a run into one run with reports and an exit status."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from agentest.cli.location import Location
from agentest.cli.options import exits, flag, output_options, path_option, where
from agentest.cli.run import STATUSES
from agentest.cli.run_output import RESULTS_REPORT, RunOutput, claim_names, open_reporters
from agentest.config.fields import check_can_be_written, parse_reports, requested_reports
from agentest.domain.events import ReportOptions, ReportRequest, RunFinished
from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import run_status
from agentest.history.merge import MergedRun, check_complete, check_parts, find_parts, part_names
from agentest.report.registry import Broadcast, NotesReporter, ReporterContext
from agentest.store.journal import Journal
from agentest.store.runs.folder import JOURNAL, RunKind, RunRecord, new_run_folder, write_record
from agentest.support.errors import ConfigError, ExitCode
from agentest.support.terminal import tell
from agentest.support.text import count
from agentest.version import __version__

_DEFAULT_KEEP_RUNS = 20


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@where
@path_option("--output-dir", "Store the merged run in this folder (default: `output_dir`).")
@flag("--allow-missing", "Merge even if shards are missing, as an errored run.")
@output_options
@exits
def merge(
    location: Location,
    runs: tuple[str, ...],
    output_dir: Path | None,
    allow_missing: bool,
    reports: ReportOptions,
) -> ExitCode:
    """Merge several runs into one: all shards of a run, or runs with no scenario in common.

    RUN is an id (agentest runs) or its beginning, the folder of a run, or a folder above several.

    Exit status as of run: 0 all passed, 1 a scenario failed, 2 something errored, is missing or does not fit.
    """
    project = location.enter()
    settings = project.settings("merged without it")
    default_output = project.output_dir_of(settings)
    wanted = requested_reports(reports.reporters, project.here) or parse_reports(
        settings.reporters if settings else ("console",), project.root
    )
    check_can_be_written(wanted)
    parts, notes = find_parts(runs, default_output, project.here)
    check_parts(parts)
    merged = MergedRun(parts=parts, missing=check_complete(parts, allow_missing=allow_missing))
    merged.entries  # noqa: B018 - raises errors before anything is written
    for note in (*notes, f"merge: {count(len(parts), 'run')}: {part_names(parts)}"):
        _note(note)
    folder = project.path(output_dir) if output_dir else default_output
    with _open_run_folder(merged, folder, settings.keep_runs if settings else _DEFAULT_KEEP_RUNS) as output:
        context = ReporterContext(
            root=project.root, folder=output.folder.path, environ=os.environ, verbosity=reports.verbosity
        )
        return _write_reports(merged, output, wanted, context)


@contextmanager
def _open_run_folder(merged: MergedRun, output_dir: Path, keep_runs: int) -> Iterator[RunOutput]:
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(new_run_folder(output_dir, datetime.now(UTC)))
            record = _record(merged, folder.id)
            write_record(folder.path, record)
            folder = claim_names(folder, str, stack, _note)
        except OSError as error:
            raise ConfigError(
                f"{output_dir} cannot be written to ({error.strerror}); name another folder with --output-dir"
            ) from None
        journal = stack.enter_context(closing(Journal(folder.path / JOURNAL, _note)))
        try:
            yield RunOutput(
                folder=folder,
                record=record,
                journal=journal,
                keep_span=None,
                keep_output=lambda *_: None,
                keep_runs=keep_runs,
            )
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise


def _record(merged: MergedRun, id: str) -> RunRecord:
    records = [part.record for part in merged.parts]
    planned = [entry.planned.conversations for entry in merged.entries if entry.planned]
    return RunRecord(
        id=id,
        kind=RunKind.MERGE,
        started_at=merged.started_at,
        version=__version__,
        models=merged.models,
        agents=merged.agents,
        scenarios=len(merged.entries),
        conversations=sum(planned),
        commit=next((record.commit for record in records if record.commit), None),
        partial=any(record.part.filtered if record.part else record.partial for record in records),
    )


def _write_reports(
    merged: MergedRun, output: RunOutput, reports: Sequence[ReportRequest], context: ReporterContext
) -> ExitCode:
    broadcast = Broadcast([*open_reporters(reports, context, output), NotesReporter()], _note)
    result: RunResult | None = None
    for event in merged.events():
        broadcast(event)
        result = event.result if isinstance(event, RunFinished) else result
    assert result  # RunFinished is the last event of every run
    written = [each for each in {*reports, RESULTS_REPORT} if each.name not in broadcast.failed]
    problems = output.end(result, written, broadcast.unwritten)
    counts = [f"{number} {status}" for status in Status if (number := len(result.with_status(status)))]
    outcome = [] if broadcast.has("prints_outcome") else [f"{run_status(result)}: {', '.join(counts)}"]
    for text in (*problems, *outcome):
        _note(text)
    code = STATUSES[run_status(result)]
    return code or (ExitCode.ERRORED if problems or broadcast.failed else code)


def _note(text: str) -> None:
    tell(f"agentest: {text}")
