"""`agentest coverage`: measure which paths and tools have tests, and print the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TextIO

from agentest.adk.cases import CaseSet, case_entries
from agentest.adk.formats.criteria import Criteria
from agentest.adk.plan import EvalRequest, read_sets
from agentest.authoring.coverage import Coverage, as_json, as_markdown, measure, print_text
from agentest.cli.listing import broken, report_load_errors
from agentest.cli.requests import RequestOptions
from agentest.domain.results import ScenarioResult, Status
from agentest.report.console.printer import open_console
from agentest.runner.environment import output_dir
from agentest.runner.plan import Options, Unit
from agentest.runner.prepare import Prepared, RunRequest, is_configured, prepare
from agentest.scenarios.discovery import matches_name
from agentest.store.reader import read_results
from agentest.store.runs.folder import RunKind, latest_run
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import contains_any, shown_path
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import Output, clean_rows, source, tell

Form = Literal["text", "json", "markdown"]
_KINDS = ((RunKind.RUN, RunKind.MERGE), (RunKind.EVAL,))
"""Runs and evaluations have different scenarios, so the latest of each is read."""
_NO_AGENT = ""
"""Coverage uses no agent: a case counts once, whichever agent runs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageOptions(RequestOptions):
    """Options of `agentest coverage`."""

    runs: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    """More runs."""
    eval_sets: tuple[str, ...] = ()
    fail_under: float | None = None
    form: Form = "text"


def coverage(options: CoverageOptions) -> ExitCode:
    """Measure the coverage, print it and compare it with the required share. Raises UsageError."""
    project = options.location.enter()
    paths = [project.run_file(reference) for reference in (*options.runs, *options.results)]
    eval_sets = [project.from_root(target) for target in options.eval_sets]
    measured = measure_coverage(options.request(project, offline=True), paths, eval_sets)
    show(measured.coverage, options.form, sys.stdout)
    return report_load_errors(measured.broken) or coverage_status(measured.coverage, options.fail_under)


@dataclass(frozen=True, slots=True)
class MeasuredCoverage:
    """The coverage, and the files that could not be loaded."""

    coverage: Coverage
    broken: tuple[ScenarioResult, ...]


def measure_coverage(
    request: RunRequest, results: Sequence[Path] = (), eval_sets: Sequence[str] = ()
) -> MeasuredCoverage:
    """Measure the coverage of scenarios, evaluation cases and their results. Raises UsageError.

    Args:
        results: files to read; () for the latest run and the latest evaluation, if any.
        eval_sets: files and folders; a file can be followed by `:case1,case2`.
    """
    root, options = request.root, request.options
    prepared = _prepared(request, alone=not (results or eval_sets))
    entries = prepared.plan.entries if prepared else ()
    planned = [*(entry for entry in entries if isinstance(entry, Unit)), *_cases(request, eval_sets)]
    if options.filtered and not (planned or entries):
        raise UsageError("no scenario and no case fits the filters --scenario, --file, --tag")
    paths = list(results) or (_last_results(prepared) if prepared else [])
    coverage = measure(
        planned,
        len([entry for entry in entries if _status(entry) is Status.SKIPPED]),
        {shown_path(str(path.resolve()), root): read_results(path) for path in paths},
        only_units=options.filtered,
        agent=options.agent,
    )
    return MeasuredCoverage(coverage, tuple(broken(prepared)) if prepared else ())


def _prepared(request: RunRequest, *, alone: bool) -> Prepared | None:
    """Prepare the scenarios; None if there is no configuration and other input was given."""
    if not (alone or is_configured(request)):
        return None
    return prepare(request, may_be_empty=not alone)


def _last_results(prepared: Prepared) -> list[Path]:
    folder = output_dir(prepared)
    latest = [latest_run(folder, kinds) for kinds in _KINDS]
    files = [run.file for run in latest if run and run.file] or [folder / "results.json"]
    return [file for file in files if file.exists()]


def _cases(request: RunRequest, eval_sets: Sequence[str]) -> Iterator[Unit]:
    """Yield the evaluation cases that can run and match the filters."""
    reads = read_sets(EvalRequest(request, tuple(eval_sets)))
    sets = [CaseSet(read, Criteria(()), graded=False) for read in reads]
    options = request.options
    for entry in case_entries(sets, [_NO_AGENT], 1, request.root):
        if isinstance(entry, Unit) and _chosen(entry, options):
            yield entry


def _chosen(unit: Unit, options: Options) -> bool:
    return (
        (not options.scenarios or matches_name(unit.scenario.name, options.scenarios))
        and (not options.files or contains_any(unit.file, options.files))
        and (not options.tags or bool({*options.tags} & {*unit.scenario.tags}))
    )


def _status(entry: Unit | ScenarioResult) -> Status | None:
    return entry.verdict.status if isinstance(entry, ScenarioResult) else None


def show(coverage: Coverage, form: Form, out: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Write the coverage in one of its forms. Raises OutputError."""
    if form == "text":
        print_text(coverage, open_console(environ, out))
    else:
        text = source(as_json(coverage)) if form == "json" else clean_rows(as_markdown(coverage))
        Output(out, environ).write_bytes(text)


def coverage_status(coverage: Coverage, least: float | None) -> ExitCode:
    """Return FAILED if a share is below `least` percent. Raises UsageError if there is nothing to measure."""
    if least is None:
        return ExitCode.PASSED
    shares = {"cells with a scenario": coverage.cells_share, "tools called": coverage.tools_share}
    if not any(shares.values()):
        raise UsageError(
            "--fail-under: there is nothing to measure: no scenario has a task: and a path: tag, "
            "and there are no results; tag scenarios, or run them with --reporter json"
        )
    below = {name: share for name, share in shares.items() if share and share.below(least)}
    for name, share in below.items():
        tell(
            f"agentest: {name}: {share.covered} of {share.of} ({share.percent} %), "
            f"less than the {least:g} % of --fail-under"
        )
    return ExitCode.FAILED if below else ExitCode.PASSED
