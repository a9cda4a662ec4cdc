"""Numbers in the summary on GitHub, each with how sure it is."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.domain.results import RunResult, ScenarioResult
from agentest.report import github_selection as select
from agentest.report.figures import (
    BRACKETS,
    interval_text,
    limits,
    passed_text,
    run_rates,
)
from agentest.report.github_markdown import inline, table_row

AVERAGES_HEAD = (
    "\n### Averages\n\n| Scenario | Metric | Average | n | Threshold |\n| --- | --- | --- | --- | --- |\n"
)


def passed_cell(scenario: ScenarioResult) -> str:
    """How many conversations passed, how sure that rate is, and whether they disagree."""
    held = f"{scenario.totals.passed} of {scenario.totals.conversations}"
    facts = filter(None, (held, passed_text(scenario), "flaky" if scenario.flaky else ""))
    return inline(", ".join(facts))


def rates_paragraph(result: RunResult) -> str:
    """The run's pass rates, and what so many conversations can tell."""
    found = run_rates(result)
    if not found:
        return ""
    shown = "; ".join(inline(f"{each.agent and each.agent + ': '}{', '.join(each.facts)}") for each in found)
    told = " ".join(filter(None, (BRACKETS, limits(result))))
    return f"\nPass rate: {shown}. {inline(told)}\n"


def average_rows(scenario: ScenarioResult, several: bool) -> Iterator[str]:
    """A row for each average of a scenario."""
    for name, figure in scenario.intervals.items():
        least = scenario.thresholds.get(name)
        cells = [
            inline(select.label(scenario, several)),
            inline(name),
            inline(f"{figure.value:.2f}{interval_text(figure)}"),
            f"{figure.n:,}",
            "" if least is None else f"{least:g}",
        ]
        yield table_row(cells)
