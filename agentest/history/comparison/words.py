"""Figures and scenarios of a comparison in words, for the console and for Markdown alike."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.domain.results import Status
from agentest.history.comparison.measured import MeasuredRun, MeasuredScenario, counts_failures
from agentest.history.comparison.scripts import played_once
from agentest.history.comparison.values import PASS_RATE, Change, Comparison, Row, ScenarioChange
from agentest.support.text import count

HEAD = ("", "base", "new", "difference", "95 % interval", "p", "")
_LEAST_P = 0.001
_ALWAYS = {
    Change.REGRESSED: "passed before, fails now",
    Change.IMPROVED: "failed before, passes now",
}
"""What became of a script."""


def headline(comparison: Comparison) -> str:
    """How many of what; the worst first."""
    counts = ((len(comparison.of(change)), change) for change in Change)
    return ", ".join(f"{number:,} {change}" for number, change in counts if number)


def regressions_overall(comparison: Comparison) -> str:
    """What regressed over all scenarios together; "" where nothing did."""
    names = comparison.overall_regressions
    return f"regressed over all scenarios: {', '.join(names)}" if names else ""


def run_line(run: MeasuredRun) -> str:
    """Which run it is."""
    held = sum(len(each.conversations) for each in run.scenarios)
    size = f"{count(len(run.scenarios), 'scenario')}, {count(held, 'conversation')}"
    begun = run.started_at[:16].replace("T", " ")
    return f"{run.label}  {size}{f', begun {begun} UTC' if begun else ''}"


def cells(row: Row) -> tuple[str, ...]:
    """A figure in both runs, as the columns of `HEAD` want it."""
    return (
        f"{row.name} (failures)" if counts_failures(row.name) else row.name,
        f"{row.base:.2f}",
        f"{row.new:.2f}",
        f"{row.difference:+.2f}",
        interval(row),
        likelihood(row.adjusted),
        "" if row.change is Change.UNCHANGED else _short(row.change),
    )


def interval(row: Row) -> str:
    if row.low is None or row.high is None:
        return "unknown" if row.difference else ""
    return f"{row.low:+.2f} to {row.high:+.2f}"


def likelihood(p: float) -> str:
    return f"< {_LEAST_P}" if p < _LEAST_P else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def verdict_line(comparison: Comparison) -> str:
    """How many verdicts changed, and how likely that is by chance."""
    verdicts = comparison.verdicts
    if not verdicts.regressed + verdicts.improved:
        return "no verdict changed"
    return (
        f"verdicts: {verdicts.regressed} from passed to failed, {verdicts.improved} from failed to passed, "
        f"p {likelihood(verdicts.adjusted)}"
    )


def story(change: ScenarioChange) -> str:
    """What became of a scenario, in a row."""
    pair = change.pair
    if change.why or pair.base is None or pair.new is None:
        return change.why or _state(pair.shown)
    base, new = pair.base, pair.new
    if change.certain:
        return f"{_ALWAYS[change.change]} ({_of(base)} → {_of(new)})"
    status = f"{base.status} → {new.status}" if base.status is not new.status else str(new.status)
    passed = _passed(base), _passed(new)
    # Where nothing but scores changed, how many passed is said once.
    held = passed[0] if passed[0] == passed[1] else " → ".join(passed)
    return f"{status}, {held} conversations passed"


def changed_rows(change: ScenarioChange) -> Iterator[Row]:
    """The figures that make a scenario what it is; of those within noise none but the pass rate."""
    if change.certain:
        return
    wanted = change.change if change.change is not Change.UNCHANGED else None
    for row in change.rows:
        if row.change is wanted and (wanted is not Change.WITHIN_NOISE or row.name == PASS_RATE):
            yield row


def footnotes(comparison: Comparison) -> Iterator[str]:
    """What a reader must know to take the words rightly."""
    unknown = len(comparison.of(Change.NOT_COMPARED))
    if unknown:
        verb = "was" if unknown == 1 else "were"
        yield f"{count(unknown, 'scenario')} {verb} not compared: nothing is known of what became of them"
    once = [each for each in comparison.scenarios if each.certain and _once(each)]
    if once:
        verb = "was" if len(once) == 1 else "were"
        yield (
            f"{count(len(once), 'script')} that changed {verb} played once in each run: an agent "
            "that does not answer alike each time looks the same (`--conversations 3` shows whether it does)"
        )
    if comparison.enough:
        yield (
            "within noise is not unchanged: by its conversations alone a scenario counts as regressed only "
            f"from {comparison.enough} in each run on, even if all passed before and none does now "
            f"(`--conversations {comparison.enough}`)"
        )


def _once(change: ScenarioChange) -> bool:
    base, new = change.pair.base, change.pair.new
    return bool(base and new) and played_once(base, new)  # type: ignore[arg-type]


def in_order(comparison: Comparison) -> list[ScenarioChange]:
    """The scenarios to tell of, the worst first; those within noise by how near they are to a finding."""
    told = [each for each in comparison.scenarios if each.change is not Change.UNCHANGED]
    order = list(Change)
    return sorted(told, key=lambda each: (order.index(each.change), not each.verdict_changed, _nearest(each)))


def _nearest(change: ScenarioChange) -> float:
    return min((row.p for row in change.rows), default=1.0)


def _short(change: Change) -> str:
    return "within noise" if change is Change.WITHIN_NOISE else str(change)


def _state(scenario: MeasuredScenario) -> str:
    held = f", {_passed(scenario)} conversations passed" if scenario.known else ""
    return f"{scenario.state}{held}"


def _of(scenario: MeasuredScenario) -> str:
    return f"{scenario.passed} of {scenario.known}"


def _passed(scenario: MeasuredScenario) -> str:
    unknown = len(scenario.conversations) - scenario.known
    errored = f" ({unknown} errored)" if unknown and scenario.status is not Status.SKIPPED else ""
    return f"{scenario.passed}/{scenario.known}{errored}"
