"""Stored runs: `agentest runs` lists them, `show` reports one again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

import click

from agentest.cli.location import Location
from agentest.cli.options import exits, flag, format_option, names_option, option, verbosity_options, where
from agentest.config.fields import check_can_be_written, requested_reports
from agentest.domain.events import ConversationFinished, ReportOptions, ReportRequest, stored_events
from agentest.domain.results import RunResult
from agentest.plugin import PLUGINS
from agentest.store.reader import StoredConversations, is_quoted, read_results
from agentest.store.runs.folder import (
    RUNS,
    EndedRunNumbers,
    StoredRunFolder,
    check_readable,
    list_stored_runs,
    read_record,
    report_file,
)
from agentest.support.errors import ExitCode, UsageError
from agentest.support.terminal import open_in_browser, say
from agentest.support.text import did_you_mean, duration, nearest

_FEW = 20
_COMMIT_CHARS = 7
_HEADINGS = ("RUN", "STARTED", "STATUS", "PASSED", "FAILED", "ERRORED", "COST", "TIME", "MODEL", "COMMIT")
_NUMBER_COLUMNS = range(3, 8)


@click.command()
@where
@flag("--all every", f"List all of them (default: the latest {_FEW}).")
@format_option("text", "json")
@exits
def runs(location: Location, every: bool, form: Literal["text", "json"]) -> ExitCode:
    """List the stored runs, latest first: start, outcome, cost, model, commit."""
    folder = location.enter().output_dir
    check_readable(folder)
    stored = list(reversed(list_stored_runs(folder)))
    listed = stored if every else stored[:_FEW]
    if form == "json":
        records = [asdict(run.record) if run.record else {"id": run.id} for run in listed]
        states = [{"state": run.state_of(run.record), "folder": str(run.path)} for run in listed]
        say(json.dumps([{**a, **b} for a, b in zip(records, states, strict=True)], indent=2))
    elif not stored:
        say(f"no run is stored in {folder / RUNS}")
    else:
        for row in _table([_HEADINGS, *map(_row, listed)]):
            say(row)
        if len(stored) > len(listed):
            say(f"and {len(stored) - len(listed)} older ones (--all)")
    return ExitCode.PASSED


@click.command()
@click.argument("run", default="latest")
@where
@names_option
@verbosity_options
@option(
    "--reporter reporters",
    "NAME",
    "Report as NAME, or as NAME=PATH to a file (default: console).",
    multiple=True,
)
@flag("--open as_page", "Open its page in the browser instead.")
@flag("--credentials", "Show values that look like credentials.")
@exits
def show(
    location: Location,
    run: str,
    scenarios: tuple[str, ...],
    reports: ReportOptions,
    as_page: bool,
    credentials: bool,
) -> ExitCode:
    """Print a stored run again, or open its page.

    RUN is an id (agentest runs) or its beginning, `latest`, a folder, a results.json or a journal.jsonl.
    """
    project = location.enter()
    path = project.run_file(run)
    page_of_run = PLUGINS.hook("agentest show --open", "page") if as_page else None
    if requested := _reports(reports.reporters, project.here, or_console=not as_page):
        report_again(path, project.root, requested, scenarios, reports.verbosity, credentials=credentials)
    if page_of_run:
        page = page_of_run(path, project.root, scenarios)
        say(str(page))
        open_in_browser(page.as_uri())
    return ExitCode.PASSED


def report_again(
    path: Path,
    root: Path,
    reports: Sequence[ReportRequest],
    scenarios: tuple[str, ...] = (),
    verbosity: int = 0,
    *,
    credentials: bool = False,
) -> None:
    """Report a stored run again, given its results.json or journal. Raises UsageError."""
    from agentest.report.registry import ReporterContext, make_reporters, receives

    record = read_record(path.parent)
    result = replace(read_results(path), addresses=record.agents if record else {})
    result = only_named(result, scenarios, path)
    against = None
    if result.comparison and len(result.agents) > 1:
        from agentest.cli.comparison import RunComparison

        against = RunComparison()
    setting = ReporterContext(
        root=root,
        folder=path.parent,
        run_id=record.id if record else "",
        environ={**os.environ, "CI": "true"},
        verbosity=verbosity,
        record=record,
        compared=against,
        credentials=credentials,
        texts=_texts(result, everything=verbosity > 0 or any(each.name != "console" for each in reports)),
    )
    reporters = make_reporters(reports, setting)
    if against:
        reporters = [against, *reporters]
    needed = any(
        receives(each, ConversationFinished) and not getattr(each, "counts_conversations", False)
        for each in reporters
    )
    for event in stored_events(result, conversations=needed):
        for reporter in reporters:
            if receives(reporter, type(event)):
                reporter.on_event(event)


def _texts(result: RunResult, *, everything: bool) -> Iterator[bytes]:
    """Yield the texts of conversations that a report quotes; a console quotes only those of failures."""
    for scenario in result.scenarios:
        stored, rate = scenario.conversations, scenario.pass_rate
        may_quote = everything or scenario.verdict.reasons or rate is None or rate.value < 1
        if isinstance(stored, StoredConversations) and may_quote:
            yield from stored.stored_texts(None if everything or scenario.case else is_quoted)


def _reports(words: tuple[str, ...], folder: Path, *, or_console: bool) -> tuple[ReportRequest, ...]:
    """Return the requested reports. A file needs a path, so that it never replaces one of the run."""
    reports = requested_reports(words or ("console",), folder) if words or or_console else ()
    for report in reports:
        if report.path is None and report_file(report.name):
            raise UsageError(f"--reporter {report.name}: name a file: {report.name}=PATH")
    check_can_be_written(reports)
    return reports


def only_named(result: RunResult, wanted: Sequence[str], path: Path | str) -> RunResult:
    """Return a run with the scenarios that `--scenario` selects; all without it. Raises UsageError."""
    if not wanted:
        return result
    from agentest.scenarios.discovery import matches_name

    names = [scenario.name for scenario in result.scenarios]
    for text in wanted:
        if not any(matches_name(name, (text,)) for name in names):
            name = text.removeprefix("=")
            close = did_you_mean(name, names if nearest(name, names) else names[:_FEW])
            raise UsageError(f"--scenario: {path} has no scenario named {text!r}; {close}")
    return replace(result, scenarios=tuple(s for s in result.scenarios if matches_name(s.name, wanted)))


def _row(run: StoredRunFolder) -> tuple[str, ...]:
    record = run.record
    if record is None:
        return (run.id, "", "unknown", *[""] * 7)
    kind = record.kind if record.kind != "run" else None
    shard = f"shard {record.shard}" if record.shard else None
    qualifiers = ", ".join(filter(None, (kind, shard)))
    what = f"{run.state_of(record)} ({qualifiers})" if qualifiers else run.state_of(record)
    models = dict.fromkeys(model for model in record.models.values() if model)
    try:
        started = datetime.fromisoformat(record.started_at).astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        started = record.started_at
    return (
        run.id,
        started,
        what,
        *_numbers(record.ended),
        ", ".join(models) or "offline",
        (record.commit or "")[:_COMMIT_CHARS],
    )


def _numbers(ended: EndedRunNumbers | None) -> tuple[str, ...]:
    if ended is None:
        return ("",) * 5
    cost = "" if not ended.cost else f"${ended.cost:.2f}" if ended.cost >= 0.005 else "<$0.01"
    return (str(ended.passed), str(ended.failed), str(ended.errored), cost, duration(ended.duration_ms))


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
    for row in rows:
        cells = (
            cell.rjust(width) if i in _NUMBER_COLUMNS else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
