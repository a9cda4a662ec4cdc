"""`agentest run --baseline`: a run that is compared with an earlier one when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentest.cli.compare import between_agents, label_of, read_run, show
from agentest.domain.events import Event, RunFinished, ScenarioAmended, ScenarioFinished
from agentest.domain.results import ScenarioResult, Status
from agentest.history.comparison.as_json import as_json
from agentest.history.comparison.comparing import compared
from agentest.history.comparison.for_page import Between, for_page
from agentest.history.comparison.markdown import as_markdown
from agentest.history.comparison.measured import (
    MeasuredRun,
    MeasuredScenario,
    measured_run,
    measured_scenario,
)
from agentest.history.comparison.pairing import check_common
from agentest.history.comparison.values import Change, Comparison, ScenarioChange
from agentest.history.comparison.words import changed_rows, headline, regressions_overall, story
from agentest.report.compared import Regression
from agentest.runner.outputs import output_dir
from agentest.runner.place import Place
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.store.runs.finding import run_file
from agentest.support.errors import UsageError
from agentest.support.files import write_atomically
from agentest.support.json_text import Json

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
