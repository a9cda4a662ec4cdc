"""`agentest coverage`: measure which paths and tools have tests, and print the result."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TextIO

import click

from agentest.cli.listing import broken, report_load_errors
from agentest.cli.location import Location, request_of
from agentest.cli.options import exits, format_option, option, where, which
from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.results.exploration import ExploredCoverage
from agentest.plugins.adk.cases import CaseSet, case_entries
from agentest.plugins.adk.formats.criteria import Criteria
from agentest.plugins.adk.plan import EvalRequest, read_sets
from agentest.plugins.authoring.coverage import Coverage, as_json, as_markdown, measure, print_text
from agentest.report.console.printer import open_console
from agentest.runner.plan import Options, Unit
from agentest.runner.prepare import Prepared, RunRequest, is_configured, prepare
from agentest.scenarios.discovery import matches_name
from agentest.store.reader import read_results
from agentest.store.runs.folder import RunKind, latest_run
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import contains_any, shown_path
from agentest.support.terminal import Output, clean_rows, source, tell

Form = Literal["text", "json", "markdown"]
_KINDS = ((RunKind.RUN, RunKind.MERGE), (RunKind.EVAL,))
_NO_AGENT = ""  # coverage uses no agent: a case counts once, whichever agent runs it


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]…")
@option("--results", "RUN", "Read RUN, like the argument.", multiple=True)
@option(
    "--eval-set eval_sets",
    "FILE_OR_DIR[:CASE,…]",
    "Count the cases of these evaluation sets, too.",
    multiple=True,
)
@option(
    "--fail-under",
    "PERCENT",
    "Fail if fewer cells have a scenario, or fewer tools were called.",
    kind=click.FloatRange(0, 100),
)
@format_option("text", "json", "markdown")
@where
@which
@exits
def coverage(
    location: Location,
    options: Options,
    runs: tuple[str, ...],
    results: tuple[str, ...],
    eval_sets: tuple[str, ...],
    fail_under: float | None,
    form: Form,
) -> ExitCode:
    """Show which paths of which tasks have tests of which kind, and which tools were called and failed.

    RUN is an id or its beginning, `latest`, a folder or a file (default: the latest run and the latest
    evaluation). A scenario that several runs have counts as in the latest. Scenarios are placed by the tags
    task:NAME, path:NAME, and unit, integration or scenario; cases of evaluation sets by their tags or by
    ids like TASK/PATH. Nothing is run.

    Exit status: 0, 1 below --fail-under, 2 if a file could not be loaded.
    """
    project = location.enter()
    paths = [project.run_file(reference) for reference in (*runs, *results)]
    sets = [project.from_root(target) for target in eval_sets]
    measured, unloaded = measure_coverage(request_of(project, options, offline=True), paths, sets)
    show(measured, form, sys.stdout)
    return report_load_errors(unloaded) or coverage_status(measured, fail_under)


def measure_coverage(
    request: RunRequest, results: Sequence[Path] = (), eval_sets: Sequence[str] = ()
) -> tuple[Coverage, list[ScenarioResult]]:
    """Measure the coverage, and return the scenarios that could not be loaded. Raises UsageError.

    Args:
        results: files to read; () for the latest run and the latest evaluation, if any.
        eval_sets: files and folders; a file can be followed by `:case1,case2`.
    """
    root, options = request.root, request.options
    prepared, alone = None, not (results or eval_sets)
    if alone or is_configured(request):
        prepared = prepare(request, may_be_empty=not alone)
    entries = prepared.plan.entries if prepared else ()
    planned = [*(entry for entry in entries if isinstance(entry, Unit)), *_cases(request, eval_sets)]
    if options.filtered and not (planned or entries):
        raise UsageError("no scenario and no case fits the filters --scenario, --file, --tag")
    paths = list(results)
    if prepared and not paths:
        latest = [latest_run(prepared.output_dir, kinds) for kinds in _KINDS]
        files = [run.file for run in latest if run and run.file] or [prepared.output_dir / "results.json"]
        paths = [file for file in files if file.exists()]
    read = {shown_path(str(path.resolve()), root): read_results(path) for path in paths}
    coverage = measure(
        planned,
        sum(isinstance(e, ScenarioResult) and e.verdict.status is Status.SKIPPED for e in entries),
        read,
        only_units=options.filtered,
        agent=options.agent,
        explored=_explored(prepared, read.values(), is_latest=not results),
    )
    return coverage, broken(prepared) if prepared else []


def _explored(
    prepared: Prepared | None, given: Iterable[RunResult], *, is_latest: bool
) -> ExploredCoverage | None:
    runs = list(given)
    if prepared and is_latest:
        run = latest_run(prepared.output_dir, [RunKind.EXPLORE])
        runs += [read_results(run.file)] if run and run.file and run.file.exists() else []
    found = [each.explored.coverage for each in runs if each.explored and each.explored.coverage]
    if not (found and prepared):
        return found[-1] if found else None
    from agentest.plugins.explore.corpus import Corpus, with_entries

    return with_entries(
        found[-1], Corpus(prepared.request.root / prepared.loaded.config.explore.corpus).read()
    )


def _cases(request: RunRequest, eval_sets: Sequence[str]) -> Iterator[Unit]:
    reads, _ = read_sets(EvalRequest(request, tuple(eval_sets)))
    sets = [CaseSet(read, Criteria(()), graded=False) for read in reads]
    options = request.options
    for entry in case_entries(sets, [_NO_AGENT], 1, request.root):
        if isinstance(entry, Unit) and (
            (not options.scenarios or matches_name(entry.scenario.name, options.scenarios))
            and (not options.files or contains_any(entry.file, options.files))
            and (not options.tags or bool({*options.tags} & {*entry.scenario.tags}))
        ):
            yield entry


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
