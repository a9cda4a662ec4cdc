"""`agentest merge`: merge the shards of a run into one run with reports and an exit status."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path

from agentest.cli.location import Location, Project
from agentest.cli.run_output import LATEST, RESULTS_REPORT, RunOutput, open_reporters
from agentest.config.config import Config
from agentest.config.fields import parse_reports
from agentest.domain.events import ReportRequest, RunFinished
from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import run_status
from agentest.history.merge import MergedRun, check_complete, check_parts, find_parts, part_names
from agentest.report.registry import Broadcast, NotesReporter, ReporterContext
from agentest.runner.environment import check_can_be_written
from agentest.store.journal import Journal
from agentest.store.runs.folder import JOURNAL, RunKind, RunRecord, new_run_folder, write_record
from agentest.support.errors import ConfigError, ExitCode, UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import tell
from agentest.support.text import count
from agentest.version import __version__

_STATUSES = {
    Status.PASSED: ExitCode.PASSED,
    Status.FAILED: ExitCode.FAILED,
    Status.ERRORED: ExitCode.ERRORED,
}
_DEFAULT_KEEP_RUNS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOptions:
    """Options of `agentest merge`."""

    location: Location = field(default_factory=Location)
    runs: tuple[str, ...]
    output_dir: Path | None = None
    allow_missing: bool = False
    reporters: tuple[str, ...] = ()
    verbose: bool = False


def merge(options: MergeOptions, environ: Mapping[str, str] = os.environ) -> ExitCode:
    """Merge several runs into one and write its reports.

    Raises UsageError, before anything is written, if the runs do not fit together.
    """
    project = options.location.enter()
    settings = project.settings("merged without it")
    default_output = project.output_dir_of(settings)
    reports = _reports(options, settings, project)
    found_parts = find_parts(options.runs, default_output, project.here)
    check_parts(found_parts.parts)
    missing = check_complete(found_parts.parts, allow_missing=options.allow_missing)
    merged = MergedRun(parts=found_parts.parts, missing=missing)
    merged.entries  # noqa: B018 - raises errors before anything is written
    for note in (
        *found_parts.notes,
        f"merge: {count(len(found_parts.parts), 'run')}: {part_names(found_parts.parts)}",
    ):
        _note(note)
    output_dir = project.path(options.output_dir) if options.output_dir else default_output
    with _open_run_folder(
        merged, output_dir, settings.keep_runs if settings else _DEFAULT_KEEP_RUNS
    ) as output:
        return _write_reports(merged, output, reports, options, project, environ)


def _reports(options: MergeOptions, settings: Config | None, project: Project) -> tuple[ReportRequest, ...]:
    """Return the requested reports, or those of the configuration. Raises UsageError."""
    try:
        requested = parse_reports(options.reporters, project.here)
    except ValueError as error:
        raise UsageError(f"--reporter: {error}") from None
    reports = requested or parse_reports(settings.reporters if settings else ("console",), project.root)
    check_can_be_written(reports)
    return reports


@contextmanager
def _open_run_folder(merged: MergedRun, output_dir: Path, keep_runs: int) -> Iterator[RunOutput]:
    """Create the run's folder, and remove it if the block raises. Raises ConfigError."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(new_run_folder(output_dir, datetime.now(UTC)))
            record = _record(merged, folder.id)
            write_record(folder.path, record)
        except OSError as error:
            raise ConfigError(
                f"{output_dir} cannot be written to ({error.strerror}); name another folder with --output-dir"
            ) from None
        journal = stack.enter_context(closing(Journal(folder.path / JOURNAL, _note)))
        try:
            yield RunOutput(
                folder=folder,
                fixed=LATEST,
                record=record,
                journal=journal,
                keep_span=None,
                keep_output=None,
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
    merged: MergedRun,
    output: RunOutput,
    reports: Sequence[ReportRequest],
    options: MergeOptions,
    project: Project,
    environ: Mapping[str, str],
) -> ExitCode:
    context = ReporterContext(
        root=project.root, folder=output.folder.path, environ=environ, verbose=options.verbose
    )
    broadcast = Broadcast([*open_reporters(reports, context, output), NotesReporter()], _note)
    result = _send_events(merged, broadcast)
    broadcast.finish()
    written = [each for each in {*reports, RESULTS_REPORT} if each.name not in broadcast.failed]
    problems = list(output.end(result, written))
    if not output.journal.flush():
        problems.append(f"{output.journal.path} is not complete: there was no room for all of it")
    for text in (*problems, *_outcome_line(result, reports, broadcast)):
        _note(text)
    code = _STATUSES[run_status(result)]
    return code or (ExitCode.ERRORED if problems or broadcast.failed else code)


def _send_events(merged: MergedRun, broadcast: Callable[..., None]) -> RunResult:
    result: RunResult | None = None
    for event in merged.events():
        broadcast(event)
        if isinstance(event, RunFinished):
            result = event.result
    assert result  # RunFinished is the last event of every run
    return result


def _outcome_line(result: RunResult, reports: Sequence[ReportRequest], broadcast: Broadcast) -> Iterator[str]:
    """Yield the outcome in one line, unless a reporter has printed it to the console."""
    printed = {report.name for report in reports if report.path is None} - broadcast.failed
    if printed & {"console", "github-actions"}:
        return
    counts = [(len(result.with_status(status)), str(status)) for status in Status]
    yield f"{run_status(result)}: " + ", ".join(f"{number} {status}" for number, status in counts if number)


def _note(text: str) -> None:
    tell(f"agentest: {text}")
