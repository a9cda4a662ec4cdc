"""Compare two stored runs, the agents of one run, or a run in progress with its baseline."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from agentest.cli.location import Location, Project
from agentest.cli.options import exits, flag, format_option, path_option, where
from agentest.domain.events import Event, Reporter, RunFinished, ScenarioAmended, ScenarioFinished
from agentest.domain.results import ScenarioResult, Status
from agentest.history.compared_runs import (
    MeasuredRun,
    MeasuredScenario,
    check_common_scenarios,
    measure_run,
    measure_scenario,
    part_of_agent,
)
from agentest.history.comparison import WORSE, Comparison, ScenarioChange, compare_measured_runs
from agentest.history.comparison_report import (
    as_json,
    as_markdown,
    conclusion,
    describe_change,
    headline,
    print_text,
)
from agentest.report.console.printer import open_console
from agentest.report.content import Regression
from agentest.store.reader import read_results
from agentest.store.runs.folder import RunKind, StoredRunFolder, list_stored_runs, read_record, run_file
from agentest.support.errors import ExitCode, UsageError, errors_as
from agentest.support.files import write_atomically, write_for_user
from agentest.support.redaction import CredentialFilter
from agentest.support.terminal import Output, clean_rows, source, tell

if TYPE_CHECKING:
    from agentest.cli.run_output import RunOutput
    from agentest.runner.plan import Unit
    from agentest.runner.prepare import Prepared

Form = Literal["console", "json", "markdown"]
COMPARISON = "comparison.json"
_THIS_RUN = "this run"


@click.command()
@click.argument("base", required=False)
@click.argument("new", required=False)
@where
@flag("--agents", "Compare the agents of one run with its first agent.")
@format_option("console", "json", "markdown")
@path_option("--output", "Write to this file (default: standard output).")
@flag("--fail-on-regression", "Exit with 1 if something broke or regressed.")
@exits
def compare(
    location: Location,
    base: str | None,
    new: str | None,
    agents: bool,
    form: Form,
    output: Path | None,
    fail_on_regression: bool,
) -> ExitCode:
    """Compare two runs: what broke or regressed, what improved, and what changed within noise.

    BASE and NEW are ids (agentest runs) or their beginnings, `latest`, folders, results.json or
    journal.jsonl. NEW is the latest run by default. Without BASE and NEW, the latest two are compared.

    Exit status: 0; 1 if something broke or regressed and --fail-on-regression or `fail_on_regression` in
    the configuration is set; 2 if the runs cannot be compared.
    """
    project = location.enter()
    comparisons = _of_agents(base, new, project) if agents else [compare_runs(base, new, project)]
    if output:
        text = format_comparisons(comparisons, form, several=agents)
        write_for_user(project.path(output), text.encode(), "--output")
    elif form == "console":
        print_comparisons(comparisons)
    else:
        Output(sys.stdout).write_bytes(format_comparisons(comparisons, form, several=agents))
    if any(each.regressed for each in comparisons) and (fail_on_regression or _fails_on_regression(project)):
        tell("agentest: something broke or regressed")
        return ExitCode.FAILED
    return ExitCode.PASSED


def read_run(path: Path, label: str) -> MeasuredRun:
    """Read a stored run as measurements. Raises UsageError if the file is not a results file of Agentest."""
    result = read_results(path)
    record = read_record(path.parent)
    partial = record is not None and record.partial
    return measure_run(result, label, map(measure_scenario, result.scenarios), partial=partial)


def run_label(path: Path, project: Project) -> str:
    """Return the name of a results file for the user: the id of a stored run, or the path."""
    is_stored_run = path.parent.parent.name == "runs" and StoredRunFolder(path.parent).record is not None
    return path.parent.name if is_stored_run else project.display_path(path)


def compare_runs(base: str | None, new: str | None, project: Project) -> Comparison:
    """Compare two stored runs; by default the latest with the one before. Raises UsageError."""
    if base:
        found, problems = list[Path](), list[str]()
        for reference in (base, new or "latest"):
            try:
                found.append(project.run_file(reference))
            except UsageError as error:
                problems.append(str(error))
        if problems:
            raise UsageError("\n".join(problems))
        earlier, later = found
    else:
        earlier, later = _latest_two(project)
    before = read_run(earlier, run_label(earlier, project))
    if earlier.resolve() == later.resolve():
        raise UsageError(
            f"both are the same run: {run_label(earlier, project)}; name two, or none for the latest two "
            "(`agentest runs` lists them)"
        )
    comparison = compare_measured_runs(before, read_run(later, run_label(later, project)))
    return CredentialFilter()(comparison)


def compare_agents(run: MeasuredRun) -> list[Comparison]:
    """Compare each agent of a run with the first one. Raises UsageError if they share no scenario."""
    first, *others = (part_of_agent(run, agent) for agent in run.agents)
    return [compare_measured_runs(first, other) for other in others]


def print_comparisons(comparisons: Sequence[Comparison]) -> None:
    """Print comparisons to the console. Raises OutputError."""
    console = open_console(os.environ, sys.stdout)
    for comparison in comparisons:
        print_text(comparison, console)


def read_baseline(prepared: Prepared) -> MeasuredRun | None:
    """Return the baseline named by the command line or the configuration; None if neither names one.

    Raises UsageError if it cannot be read or shares no scenario with this run.
    """
    request, config = prepared.request, prepared.loaded.config
    wanted, folder = request.reports.baseline, request.here or request.root
    if wanted is None:
        wanted, folder = config.baseline, request.root
    if wanted is None:
        if request.reports.fail_on_regression and not prepared.plan.comparison:
            raise UsageError(
                "--fail-on-regression: there is nothing to compare with; name a run: --baseline RUN"
            )
        return None
    with errors_as(UsageError, "baseline: ", UsageError):
        path = run_file(wanted, prepared.output_dir, folder)
        run = read_run(path, run_label(path, Project(request.root, folder)))
        entries = prepared.plan.entries
        agents, scenarios = tuple(prepared.plan.agents), tuple(map(_unmeasured, entries))
        check_common_scenarios(
            run, MeasuredRun(label=_THIS_RUN, started_at="", version="", agents=agents, scenarios=scenarios)
        )
    return run


class RunComparison:
    """Measure the scenarios of a run as they finish, and compare the run when it ends.

    Register it before the reporters, because they report regressions. `ComparisonReporter` comes after them.
    """

    name = "baseline"

    def __init__(
        self, baseline: MeasuredRun | None = None, *, partial: bool = False, fails: bool = False
    ) -> None:
        """Create the comparison.

        Args:
            baseline: the run to compare with; None to compare the agents of the run.
            partial: True if filters selected the scenarios of this run.
            fails: True if a regression fails the run.
        """
        self.baseline = baseline
        self._fails = fails
        self.label = _THIS_RUN
        self._partial = partial
        self.comparisons: list[Comparison] = []
        self._scenarios: dict[tuple[str, str, str], MeasuredScenario] = {}

    def on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            self._scenarios[_key(event.result)] = measure_scenario(event.result)
        elif isinstance(event, ScenarioAmended) and _key(event.result) in self._scenarios:
            key = _key(event.result)  # the conversations are already measured; only the verdict changes
            self._scenarios[key] = replace(self._scenarios[key], status=event.result.verdict.status)
        elif isinstance(event, RunFinished):
            # Scenarios that were decided without a conversation may have no ScenarioFinished event.
            scenarios = [
                self._scenarios.get(_key(each)) or measure_scenario(each) for each in event.result.scenarios
            ]
            run = measure_run(event.result, self.label, scenarios, partial=self._partial)
            baseline = self.baseline
            compared = [compare_measured_runs(baseline, run)] if baseline else compare_agents(run)
            self.comparisons = CredentialFilter()(compared)

    def around(self, reporters: Sequence[Reporter], prepared: Prepared) -> list[Reporter]:
        """Return the reporters of a run with those of its comparison."""
        on_console = any(each.name == "console" and each.path is None for each in prepared.reports)
        return [self, *reporters, *([ComparisonReporter(self)] if on_console else [])]

    def in_a_line(self) -> str:
        """Return the comparisons in one line, for runs without a console reporter."""
        return "; ".join(f"{headline(each)}: {conclusion(each)}" for each in self.comparisons)

    def store(self, output: RunOutput) -> Iterator[str]:
        """Write comparison.json. Yields a message if it could not be written."""
        if self.baseline is None or not self.comparisons:
            return
        path = output.folder.path / COMPARISON
        try:
            write_atomically(path, as_json(self.comparisons[0]).encode())
            output.folder.publish(COMPARISON)
        except OSError as error:
            yield f"{path} could not be written ({error.strerror or error})"

    def exit_code(self, code: ExitCode) -> ExitCode:
        """Return the exit status, counting a regression as a failure if the user configured that."""
        if code is ExitCode.INTERRUPTED or not (self.baseline or self._fails):
            return code
        if not self.comparisons:  # the comparison was requested, but its result is unknown
            return code or ExitCode.ERRORED
        is_worse = any(each.regressed for each in self.comparisons)
        return ExitCode.FAILED if is_worse and self._fails else code

    def markdown(self) -> list[str]:
        """Return the comparisons as Markdown, for a job summary."""
        return [as_markdown(each, "###") for each in self.comparisons]

    def regressions(self) -> list[Regression]:
        """Return the regressions against the baseline; [] if agents are compared with each other."""
        comparisons = self.comparisons if self.baseline else []
        return [_regression(each) for comparison in comparisons for each in comparison.of(*WORSE)]


class ComparisonReporter:
    """Print the comparison to the console after the other reports."""

    name = "comparison"

    def __init__(self, against: RunComparison) -> None:
        self._against = against

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            print_comparisons(self._against.comparisons)


def _of_agents(base: str | None, new: str | None, project: Project) -> list[Comparison]:
    if new:
        raise UsageError("--agents compares the agents of one run: remove NEW")
    path = project.run_file(base or "latest")
    run = read_run(path, run_label(path, project))
    if len(run.agents) < 2:
        raise UsageError(
            f"--agents: {run.label} has one agent, {run.agents[0] if run.agents else 'none'}; a run of "
            "several has `compare` in its configuration"
        )
    return CredentialFilter()(compare_agents(run))


def _latest_two(project: Project) -> tuple[Path, Path]:
    folder = project.output_dir
    runs = list(_comparable_runs(folder))
    if len(runs) < 2:
        count_text = "one run is" if runs else "no run of the agent is"
        raise UsageError(
            f"{count_text} kept in {project.display_path(folder)}, and a comparison needs two: "
            "run again, or name two that `agentest runs` lists, or files"
        )
    latest, *earlier = runs
    # A partial run shares few scenarios with other runs, so it is the last choice.
    base = next((run for run in earlier if not (run.record and run.record.partial)), earlier[0])
    assert base.file
    assert latest.file
    return base.file, latest.file


def _comparable_runs(folder: Path) -> Iterator[StoredRunFolder]:
    wanted = None
    for run in reversed(list_stored_runs(folder)):
        record = None if run.under_way else run.record
        if run.file is None or record is None or record.kind is RunKind.JUDGE:
            continue
        cases = record.kind is RunKind.EVAL
        wanted = cases if wanted is None else wanted
        if cases is wanted:
            yield run


def _fails_on_regression(project: Project) -> bool:
    settings = project.settings("so `fail_on_regression` is not known (--fail-on-regression sets it)")
    return settings is not None and settings.fail_on_regression


def format_comparisons(comparisons: Sequence[Comparison], form: Form, *, several: bool) -> str:
    if form == "json":
        documents = [source(as_json(each)) for each in comparisons]
        return f"[{','.join(documents)}]\n" if several else documents[0]
    if form == "markdown":
        return clean_rows("\n".join(map(as_markdown, comparisons)))
    from io import StringIO

    text = StringIO()
    for comparison in comparisons:
        print_text(comparison, open_console({"NO_COLOR": "1"}, text))
    return text.getvalue()


def _unmeasured(entry: Unit | ScenarioResult) -> MeasuredScenario:
    if isinstance(entry, ScenarioResult):
        return measure_scenario(entry)
    return MeasuredScenario(
        name=entry.scenario.name,
        agent=entry.agent,
        file=entry.file,
        line=entry.scenario.line,
        status=Status.SKIPPED,
        scripted=False,
    )


def _regression(change: ScenarioChange) -> Regression:
    latest = change.pair.latest
    figures = [f"{row.name} {row.base:.2f} → {row.new:.2f}" for row in change.tested]
    return Regression(
        name=latest.name,
        agent=latest.agent,
        file=latest.file,
        line=latest.line,
        change=str(change.change),
        message="\n".join([describe_change(change), *figures]),
    )


def _key(result: ScenarioResult) -> tuple[str, str, str]:
    return result.name, result.agent, result.file
