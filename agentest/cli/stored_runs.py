"""List stored runs (`agentest runs`) and report one again (`agentest show`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agentest.cli.location import Location
from agentest.config.fields import parse_reports
from agentest.domain.events import ReportRequest
from agentest.domain.results import RunResult
from agentest.store.reader import events_of, read_results
from agentest.store.runs.folder import (
    FILES,
    RUNS,
    EndedRunNumbers,
    RunRecord,
    StoredRunFolder,
    check_readable,
    list_stored_runs,
    read_record,
)
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import contains_any
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import say
from agentest.support.text import did_you_mean, duration

if TYPE_CHECKING:
    from agentest.cli.comparison import RunComparison

_COMMIT_CHARS = 7
_HEADINGS = ("RUN", "STARTED", "STATUS", "PASSED", "FAILED", "ERRORED", "COST", "TIME", "MODEL", "COMMIT")
_NUMBER_COLUMNS = range(3, 8)
"""Right-aligned columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """Options of `agentest show`."""

    location: Location = field(default_factory=Location)
    run: str = "latest"
    scenarios: tuple[str, ...] = ()
    verbose: bool = False
    reporters: tuple[str, ...] = ()


def report_stored_run(options: ShowOptions, environ: Mapping[str, str] = os.environ) -> ExitCode:
    """Report a stored run again. Raises UsageError."""
    from agentest.report.registry import ReporterContext, make_reporters

    project = options.location.enter()
    path = project.run_file(options.run)
    record = read_record(path.parent)
    result = replace(read_results(path), addresses=record.agents if record else {})
    result = _only(result, options.scenarios, path)
    against = _between_agents(result)
    setting = ReporterContext(
        root=project.root,
        folder=path.parent,
        run_id=record.id if record else "",
        environ={**environ, "CI": "true"},
        verbose=options.verbose,
        record=record,
        compared=against,
    )
    reporters = make_reporters(_reports(options.reporters, project.here), setting)
    if against:
        reporters = [against, *reporters]
    for event in events_of(result):
        for reporter in reporters:
            reporter.on_event(event)
    return ExitCode.PASSED


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Options of `agentest runs`."""

    location: Location = field(default_factory=Location)
    every: bool = False
    form: Literal["text", "json"] = "text"


def list_runs(options: ListOptions, limit: int) -> ExitCode:
    """List the stored runs, latest first. Raises UsageError if their folder cannot be read.

    Args:
        limit: maximum number of runs to list, unless the options ask for all.
    """
    folder = options.location.enter().output_dir
    check_readable(folder)
    runs = list(reversed(list_stored_runs(folder)))
    listed = runs if options.every else runs[:limit]
    if options.form == "json":
        say(json.dumps([_as_json(run) for run in listed], indent=2))
    elif not runs:
        say(f"no run is stored in {folder / RUNS}")
    else:
        for row in _table([_HEADINGS, *map(_row, listed)]):
            say(row)
        if len(runs) > len(listed):
            say(f"and {len(runs) - len(listed)} older ones (--all)")
    return ExitCode.PASSED


def _between_agents(result: RunResult) -> RunComparison | None:
    """Return the comparison of the run's agents; None if the run did not compare agents."""
    if not result.comparison or len(result.agents) < 2:
        return None
    from agentest.cli.comparison import RunComparison

    return RunComparison(None)


def _reports(words: tuple[str, ...], folder: Path) -> tuple[ReportRequest, ...]:
    """Return the requested reports. A file needs a path, so that it never replaces one of the run."""
    from agentest.runner.environment import check_can_be_written

    try:
        reports = parse_reports(words or ("console",), folder)
    except ValueError as error:
        raise UsageError(f"--reporter: {error}") from None
    for report in reports:
        if report.path is None and report.name in FILES:
            raise UsageError(f"--reporter {report.name}: name a file: {report.name}=PATH")
    check_can_be_written(reports)
    return reports


def _only(result: RunResult, wanted: tuple[str, ...], path: Path) -> RunResult:
    """Keep scenarios whose name contains one of the texts; `=NAME` must match the whole name."""
    if not wanted:
        return result
    exact = {text[1:] for text in wanted if text.startswith("=")}
    parts = [text for text in wanted if not text.startswith("=")]
    selected = [s for s in result.scenarios if s.name in exact or contains_any(s.name, parts)]
    if not selected:
        names = [scenario.name for scenario in result.scenarios]
        raise UsageError(
            f"--scenario: {path} has no scenario of that name; "
            + did_you_mean(wanted[0].removeprefix("="), names)
        )
    return replace(result, scenarios=tuple(selected))


def _as_json(run: StoredRunFolder) -> dict[str, object]:
    record = run.record
    known = asdict(record) if record else {"id": run.id}
    return {**known, "state": run.state_of(record), "folder": str(run.path)}


def _row(run: StoredRunFolder) -> tuple[str, ...]:
    record = run.record
    if record is None:
        return (run.id, "", "unknown", *[""] * 7)
    status = run.state_of(record)
    qualifiers = ", ".join(_qualifiers(record))
    what = f"{status} ({qualifiers})" if qualifiers else status
    models = dict.fromkeys(model for model in record.models.values() if model)
    return (
        run.id,
        _local_time(record.started_at),
        what,
        *_numbers(record.ended),
        ", ".join(models) or "offline",
        (record.commit or "")[:_COMMIT_CHARS],
    )


def _qualifiers(record: RunRecord) -> Iterator[str]:
    """Yield what distinguishes the run from an ordinary one."""
    if record.kind != "run":
        yield record.kind
    if record.shard:
        yield f"shard {record.shard}"


def _numbers(ended: EndedRunNumbers | None) -> tuple[str, ...]:
    if ended is None:
        return ("",) * 5
    cost = "" if not ended.cost else f"${ended.cost:.2f}" if ended.cost >= 0.005 else "<$0.01"
    return (str(ended.passed), str(ended.failed), str(ended.errored), cost, duration(ended.duration_ms))


def _local_time(moment: str) -> str:
    """Format a time in the user's time zone."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return moment


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    for row in rows:
        cells = (
            cell.rjust(width) if i in _NUMBER_COLUMNS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
