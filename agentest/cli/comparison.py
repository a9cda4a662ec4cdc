"""Two kept runs, or the agents of one, read and compared."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agentest.cli.run_lookup import run_at, runs_folder
from agentest.config.file import find, load
from agentest.domain.events import Event, RunFinished, ScenarioAmended, ScenarioFinished
from agentest.domain.results import ScenarioResult, Status
from agentest.history.compared_runs import (
    MeasuredRun,
    MeasuredScenario,
    check_common,
    measured_run,
    measured_scenario,
    of_agent,
)
from agentest.history.comparison import compared
from agentest.history.comparison_data import Between, as_json, for_page
from agentest.history.comparison_report import (
    as_markdown,
    changed_rows,
    headline,
    print_text,
    regressions_overall,
    story,
)
from agentest.history.comparison_result import Change, Comparison, ScenarioChange
from agentest.report.comparison import Regression
from agentest.report.console.reporter import open_console
from agentest.runner.environment import Place, output_dir
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.store.reader import read_results
from agentest.store.run_results import run_of
from agentest.store.runs.folder import KeptRun, kept_runs, run_file
from agentest.store.runs.record import RunKind, read_record
from agentest.support.errors import ConfigError, ExitCode, UsageError
from agentest.support.files import write_atomically
from agentest.support.json_text import Json
from agentest.support.terminal import Output, clean_rows, source, tell

Form = Literal["console", "json", "markdown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be compared, and what becomes of it."""

    base: str | None = None
    new: str | None = None
    config: Path | None = None
    agents: bool = False
    form: Form = "console"
    output: Path | None = None
    fail_on_regression: bool = False


def compare_runs(wish: Wish, place: Place) -> ExitCode:
    """Compare, tell, and say whether something regressed. Raises UsageError."""
    comparisons = _of_agents(wish, place) if wish.agents else [_of_runs(wish, place)]
    _tell(comparisons, wish, place)
    regressed = any(comparison.regressed for comparison in comparisons)
    if regressed and (wish.fail_on_regression or _configured(wish, place)):
        tell("agentest: something regressed")
        return ExitCode.FAILED
    return ExitCode.PASSED


def read_run(path: Path, label: str) -> MeasuredRun:
    """A stored run in numbers. Raises UsageError where the file is not what Agentest writes."""
    result = run_of(read_results(path))
    record = read_record(path.parent)
    partial = record is not None and record.partial
    return measured_run(result, label, map(measured_scenario, result.scenarios), partial=partial)


def label_of(path: Path, place: Place) -> str:
    """What the user knows a file of results by: the id of a kept run, or its path."""
    kept = path.parent.parent.name == "runs" and KeptRun(path.parent).record is not None
    return path.parent.name if kept else place.shown(path)


def between_agents(run: MeasuredRun) -> list[Comparison]:
    """Each agent of a run against the first. Raises UsageError where they have no scenario in common."""
    first, *others = (of_agent(run, agent) for agent in run.agents)
    return [compared(first, other) for other in others]


def _of_runs(wish: Wish, place: Place) -> Comparison:
    base, new = _files(wish, place)
    before = read_run(base, label_of(base, place))
    if base.resolve() == new.resolve():
        raise UsageError(
            f"both are the same run: {label_of(base, place)}; name two, or none for the latest two "
            "(`agentest runs` lists them)"
        )
    return compared(before, read_run(new, label_of(new, place)))


def _of_agents(wish: Wish, place: Place) -> list[Comparison]:
    if wish.new:
        raise UsageError("--agents compares the agents of one run: leave NEW out")
    path = run_at(wish.base or "latest", place, wish.config)
    run = read_run(path, label_of(path, place))
    if len(run.agents) < 2:
        raise UsageError(
            f"--agents: {run.label} has one agent, {run.agents[0] if run.agents else 'none'}; a run of "
            "several has `compare` in its configuration"
        )
    return between_agents(run)


def _files(wish: Wish, place: Place) -> tuple[Path, Path]:
    if wish.base:
        new = run_at(wish.new or "latest", place, wish.config)
        return run_at(wish.base, place, wish.config), new
    folder = runs_folder(place, wish.config)
    runs = list(_latest_alike(folder))
    if len(runs) < 2:
        held = "one run is" if runs else "no run is"
        raise UsageError(
            f"{held} kept in {place.shown(folder)}, and two are compared: run again, or name files"
        )
    latest, *earlier = runs
    # In a part there is little to compare with.
    base = next((run for run in earlier if not _is_part(run)), earlier[0])
    return _file(base), _file(latest)


def _is_part(run: KeptRun) -> bool:
    return run.record is not None and run.record.partial


def _file(run: KeptRun) -> Path:
    assert run.file
    return run.file


def _latest_alike(folder: Path) -> Iterator[KeptRun]:
    """The latest run in which agents were talked to, and those before it of the same command."""
    wanted = None
    for run in reversed(kept_runs(folder)):
        record = None if run.under_way else run.record
        if run.file is None or record is None or record.kind is RunKind.JUDGE:
            continue
        cases = record.kind is RunKind.EVAL
        wanted = cases if wanted is None else wanted
        if cases is wanted:
            yield run


def _configured(wish: Wish, place: Place) -> bool:
    """Whether the configuration says that a regression is a failure. It need not be complete to compare."""
    try:
        path = place.path(wish.config) if wish.config else find(place.root)
        return load(path, dict(os.environ)).config.fail_on_regression
    except ConfigError as error:
        if place.config or wish.config:
            tell(f"agentest: {error}; so `fail_on_regression` is not known (--fail-on-regression sets it)")
        return False


def _tell(comparisons: Sequence[Comparison], wish: Wish, place: Place) -> None:
    if wish.output:
        path = place.path(wish.output)
        try:
            write_atomically(path, _written(comparisons, wish).encode())
        except OSError as error:
            raise UsageError(f"--output: {path} cannot be written: {error.strerror}") from None
    elif wish.form == "console":
        show(comparisons)
    else:
        Output(sys.stdout).write_bytes(_written(comparisons, wish))


def show(comparisons: Sequence[Comparison], environ: Mapping[str, str] = os.environ) -> None:
    """Print comparisons for people. Raises OutputError."""
    console = open_console(environ, sys.stdout)
    for comparison in comparisons:
        print_text(comparison, console)


def _written(comparisons: Sequence[Comparison], wish: Wish) -> str:
    """The comparisons in the form of a file."""
    if wish.form == "json":
        documents = [source(as_json(each)) for each in comparisons]
        return f"[{','.join(documents)}]\n" if wish.agents else documents[0]
    if wish.form == "markdown":
        return clean_rows("\n".join(map(as_markdown, comparisons)))
    from io import StringIO

    text = StringIO()
    for comparison in comparisons:
        print_text(comparison, open_console({"NO_COLOR": "1"}, text))
    return text.getvalue()


COMPARISON = "comparison.json"
_HERE = "this run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier run that this one is compared with."""

    run: MeasuredRun
    fail_on_regression: bool


def read_baseline(prepared: Prepared) -> Baseline | None:
    """The baseline that the command line or the configuration names; None: it names none.

    Raises UsageError where it cannot be read, or has no scenario of this run.
    """
    request, config = prepared.request, prepared.loaded.config
    wanted, here = request.baseline, request.here or request.root
    if wanted is None:
        wanted, here = config.baseline, request.root
    fails = request.fail_on_regression or config.fail_on_regression
    if wanted is None:
        if request.fail_on_regression:
            raise UsageError(
                "--fail-on-regression: there is nothing to compare with; name a run: --baseline RUN"
            )
        return None
    try:
        path = run_file(wanted, output_dir(prepared), here)
        run = read_run(path, label_of(path, Place(request.root, here)))
        planned = _planned(prepared)
        check_common(run, planned)
    except UsageError as error:
        raise UsageError(f"baseline: {error}") from None
    return Baseline(run=run, fail_on_regression=fails)


def _planned(prepared: Prepared) -> MeasuredRun:
    """The run as it is planned, with nothing measured yet."""
    entries = prepared.plan.entries
    return MeasuredRun(
        label=_HERE,
        started_at="",
        version="",
        agents=tuple(prepared.plan.agents),
        scenarios=tuple(_nothing_measured(entry) for entry in entries),
    )


def _nothing_measured(entry: Unit | ScenarioResult) -> MeasuredScenario:
    if isinstance(entry, ScenarioResult):
        return measured_scenario(entry)
    return MeasuredScenario(
        name=entry.scenario.name,
        agent=entry.agent,
        file=entry.file,
        line=entry.scenario.line,
        status=Status.SKIPPED,
        scripted=False,
        planned=entry.conversations,
    )


class Against:
    """Measures the scenarios of a run as they finish, and compares it when it ends.

    It comes before the reporters, as they tell of regressions; `Told` comes after them.
    """

    name = "baseline"

    def __init__(self, baseline: Baseline | None, *, partial: bool = False) -> None:
        """`partial`: whether filters have chosen the scenarios of this run."""
        self.baseline = baseline
        self.label = _HERE
        """What the user knows the run by."""
        self._partial = partial
        self.comparisons: list[Comparison] = []
        self._scenarios: dict[tuple[str, str, str], MeasuredScenario] = {}

    def on_event(self, event: Event) -> None:
        if isinstance(event, ScenarioFinished):
            self._scenarios[_key(event.result)] = measured_scenario(event.result)
        elif isinstance(event, ScenarioAmended) and _key(event.result) in self._scenarios:
            key = _key(event.result)  # its conversations are those that were measured
            self._scenarios[key] = replace(self._scenarios[key], status=event.result.verdict.status)
        elif isinstance(event, RunFinished):
            # What was decided without a conversation need not have been told of one by one.
            scenarios = [
                self._scenarios.get(_key(each)) or measured_scenario(each) for each in event.result.scenarios
            ]
            self._compare(measured_run(event.result, self.label, scenarios, partial=self._partial))

    @property
    def regressed(self) -> bool:
        """Whether something did that makes the run a failure, if that is wanted."""
        return bool(self.baseline and self.comparisons and self.comparisons[0].regressed)

    def _compare(self, run: MeasuredRun) -> None:
        if self.baseline is None:
            self.comparisons = between_agents(run)
        else:
            self.comparisons = [compared(self.baseline.run, run)]

    def markdown(self) -> list[str]:
        """The comparisons, for a job's summary."""
        return [as_markdown(each, "###") for each in self.comparisons]

    def pages(self) -> list[Json]:
        """The comparisons, for the page."""
        between = Between.RUNS if self.baseline else Between.AGENTS
        return [for_page(each, between) for each in self.comparisons]

    def regressions(self) -> list[Regression]:
        """What regressed against the baseline; agents that are compared with each other have none."""
        found = self.comparisons if self.baseline else []
        return [_regression(each) for comparison in found for each in comparison.of(Change.REGRESSED)]


class Told:
    """Tells of the comparison on the console when the other reports have been given."""

    name = "comparison"

    def __init__(self, against: Against, prepared: Prepared, environ: Mapping[str, str]) -> None:
        self._against = against
        self._printed = {report.name for report in prepared.reports if report.path is None}
        self._environ = environ

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished) and "console" in self._printed:
            show(self._against.comparisons, self._environ)


def _regression(change: ScenarioChange) -> Regression:
    shown = change.pair.shown
    return Regression(
        name=shown.name,
        agent=shown.agent,
        file=shown.file,
        line=shown.line,
        message=_message(change),
    )


def _message(change: ScenarioChange) -> str:
    figures = [f"{row.name} {row.base:.2f} → {row.new:.2f}" for row in changed_rows(change)]
    return "\n".join([story(change), *figures])


def in_a_line(against: Against) -> str:
    """The comparison in one line, for who has no console."""
    parts = [(headline(each), regressions_overall(each)) for each in against.comparisons]
    return "; ".join(text for part in parts for text in part if text)


def write_comparison(against: Against, folder: Path) -> None:
    """Write comparison.json. Raises OSError."""
    write_atomically(folder / COMPARISON, as_json(against.comparisons[0]).encode())


def _key(result: ScenarioResult) -> tuple[str, str, str]:
    return result.name, result.agent, result.file
