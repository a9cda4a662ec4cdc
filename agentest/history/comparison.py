"""Compare two runs statistically: find regressions, improvements and changes within noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from agentest.domain.results import Status
from agentest.history.compared_runs import (
    MeasuredRun,
    MeasuredScenario,
    ScenarioPair,
    check_common_scenarios,
    counts_failures,
    did_not_load,
    pair_scenarios,
    selected_pairs,
)
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.differences import (
    Cluster,
    Stratum,
    holm,
    holm_of_testable,
    mcnemar,
    mean_difference,
    newcombe,
    shares_differ,
)
from agentest.support.text import count


class Change(StrEnum):
    """Change of a scenario or figure between two runs, worst first."""

    REGRESSED = "regressed"
    NOT_COMPARED = "not compared"
    """The scenario errored or did not run in one of the runs."""
    GONE = "gone"
    NEW = "new"
    IMPROVED = "improved"
    WITHIN_NOISE = "changed within noise"
    """The values differ, but chance can explain the difference."""
    UNCHANGED = "unchanged"


PASS_RATE = "pass rate"
LATENCY, COST = "latency", "cost"
VERDICTS = "verdicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A rate or an average in both runs.

    Attributes:
        n_base, n_new: number of conversations or turns behind the value.
        low, high: 95 % confidence interval of `new - base`; None if unknown.
        p: two-sided p-value of the difference.
        least: the lowest p-value that it could reach.
        adjusted: p-value adjusted for all comparisons (Holm).
        change: the resulting change.
    """

    name: str
    base: float
    new: float
    n_base: int
    n_new: int
    low: float | None
    high: float | None
    p: float
    least: float
    adjusted: float = 1.0
    change: Change = Change.UNCHANGED

    @property
    def difference(self) -> float:
        return self.new - self.base


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """Numbers of scenarios with a changed verdict, and the p-value (exact McNemar test)."""

    regressed: int
    improved: int
    p: float
    adjusted: float = 1.0

    @property
    def change(self) -> Change:
        """Change of the whole run according to its verdicts."""
        if self.regressed == self.improved == 0:
            return Change.UNCHANGED
        if self.adjusted > 0.05:
            return Change.WITHIN_NOISE
        return Change.REGRESSED if self.regressed > self.improved else Change.IMPROVED


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioChange:
    """Change of one scenario with one agent."""

    pair: ScenarioPair
    change: Change
    why: str = ""
    """Explanation, if the rows do not contain it."""
    certain: bool = False
    """True if a script always passed in one run and always failed in the other.

    This assumes that the agent answers the same each time, because no result contradicts it.
    """
    rows: tuple[ComparedFigure, ...] = ()

    @property
    def decided(self) -> bool:
        """True if the scenario passed or failed in both runs."""
        return self.change not in (Change.NEW, Change.GONE, Change.NOT_COMPARED)

    @property
    def verdict_changed(self) -> bool:
        """True if the scenario passed in one run and failed in the other."""
        base, new = self.pair.base, self.pair.new
        return bool(base and new) and {base.status, new.status} == {Status.PASSED, Status.FAILED}  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of two runs."""

    base: MeasuredRun
    new: MeasuredRun
    notes: tuple[str, ...]
    """Conditions that differ, other than the agent."""
    verdicts: Verdicts
    overall: tuple[ComparedFigure, ...]
    resources: tuple[ComparedFigure, ...] = ()
    """The agent's latency per turn in milliseconds, and the cost of its models per conversation in USD.

    They never make a run regress, because a busy machine is slow, too; thresholds limit them.
    """
    scenarios: tuple[ScenarioChange, ...] = ()
    """Scenarios in the order of the new run."""
    enough: int | None = None
    """Conversations per run that make a drop from all to none significant; None if there are enough."""

    def of(self, change: Change) -> tuple[ScenarioChange, ...]:
        return tuple(each for each in self.scenarios if each.change is change)

    @property
    def overall_regressions(self) -> tuple[str, ...]:
        """Names of the figures that regressed over all scenarios."""
        verdicts = (VERDICTS,) if self.verdicts.change is Change.REGRESSED else ()
        return (*verdicts, *(row.name for row in self.overall if row.change is Change.REGRESSED))

    @property
    def regressed(self) -> bool:
        """True if any scenario or overall figure regressed."""
        return bool(self.of(Change.REGRESSED) or self.overall_regressions)


LEVEL = 0.05
"""Significance level: maximum probability of a false finding, among the scenarios and over all of them."""
_ROUNDING = 1e-9
_DECIDED = (Status.PASSED, Status.FAILED)
_MAX_CONVERSATIONS = 50
_MIN_CONTRADICTING = 2
"""A single script can be flaky for its own reasons."""
_SCRIPTS_PER_CONTRADICTION = 20
"""An agent counts as random if at least one script in this many has contradicting results."""


def compare_measured_runs(base: MeasuredRun, new: MeasuredRun) -> Comparison:
    """Compare a new run with a base run. Raises UsageError if they have no scenario in common."""
    check_common_scenarios(base, new)
    every = pair_scenarios(base, new)
    pairs = selected_pairs(every, base, new)
    random = agents_random_in_scripts(pairs)
    drafts = [_draft(pair, base, new, random) for pair in pairs]
    decided = [draft for draft in drafts if draft.decided]
    verdicts, overall = _overall(decided)
    return Comparison(
        base=base,
        new=new,
        notes=tuple(differing_conditions(base, new, pairs, left_out=len(every) - len(pairs))),
        verdicts=verdicts,
        overall=overall,
        resources=tuple(_resources(decided)),
        scenarios=tuple(_with_changes(drafts)),
        enough=_enough(decided),
    )


def differing_conditions(
    base: MeasuredRun, new: MeasuredRun, pairs: Sequence[ScenarioPair], left_out: int = 0
) -> Iterator[str]:
    """Yield a sentence for each condition that differs between the runs.

    Args:
        left_out: number of scenarios that one of the runs did not select.
    """
    for label, run in (("base", base), ("new", new)):
        if run.stopped:
            yield f"the {label} run ended early ({run.stopped}): what had finished is compared"
    if base.version != new.version:
        yield f"Agentest: {base.version}, now {new.version}; judges may have had other prompts"
    if base.agents != new.agents:
        yield f"agents: {', '.join(base.agents)}, now {', '.join(new.agents)}"
    for role in dict.fromkeys((*base.models, *new.models)):
        before, now = base.models.get(role), new.models.get(role)
        if before != now:
            yield f"model of the {role}: {before or 'none'}, now {now or 'none'}"
    if left_out:
        yield f"{count(left_out, 'scenario')} not selected in both runs: left out"
    yield from _count_notes(pairs)
    ended = sum(any(side and side.repeated for side in (p.base, p.new)) for p in pairs if p.base and p.new)
    if ended:
        yield (
            f"repeat: {count(ended, 'scenario')} ended when decided, which makes good pass rates better and "
            "bad ones worse; chance counts twice there"
        )


def agents_random_in_scripts(pairs: Iterable[ScenarioPair]) -> frozenset[str]:
    """Return the agents whose scripts have contradicting results, so that no single result is certain."""
    scripts, disagreeing = Counter[str](), Counter[str]()
    for pair in pairs:
        sides = [side for side in (pair.base, pair.new) if side and side.scripted]
        scripts[pair.latest.agent] += bool(sides)
        disagreeing[pair.latest.agent] += any(side.disagrees for side in sides)
    return frozenset(
        agent
        for agent, n in disagreeing.items()
        if n >= max(_MIN_CONTRADICTING, scripts[agent] / _SCRIPTS_PER_CONTRADICTION)
    )


def certain_change(base: MeasuredScenario, new: MeasuredScenario) -> Change | None:
    """Return the change of a script that always passed and now never does, or the reverse; else None."""
    if not (base.scripted or new.scripted) or not base.known or not new.known:
        return None
    shares = base.passed / base.known, new.passed / new.known
    return {(1.0, 0.0): Change.REGRESSED, (0.0, 1.0): Change.IMPROVED}.get(shares)


def is_single_script_run(base: MeasuredScenario, new: MeasuredScenario) -> bool:
    """Return True if a script ran at most once in each run, so that its variation is unknown."""
    return (base.scripted or new.scripted) and base.known <= 1 and new.known <= 1


def _draft(
    pair: ScenarioPair, base: MeasuredRun, new: MeasuredRun, random: Collection[str]
) -> ScenarioChange:
    """Compare a scenario, before the correction for multiple comparisons decides its change."""
    if pair.base is None or pair.new is None:
        incomplete, label = (new, "new") if pair.new is None else (base, "base")
        if did_not_load(pair, new):
            why = "its file did not load in the new run"
        elif incomplete.stopped:
            why = f"the {label} run ended before it"
        else:
            return ScenarioChange(pair=pair, change=Change.GONE if pair.new is None else Change.NEW)
        return ScenarioChange(pair=pair, change=Change.NOT_COMPARED, why=why)
    sides = {"base": pair.base, "new": pair.new}
    for label, side in sides.items():
        if side.status in _DECIDED and not side.conversations:
            why = f"no conversation in the {label} run"
            return ScenarioChange(pair=pair, change=Change.NOT_COMPARED, why=why)
    unknown = [f"{x.state} in the {label} run" for label, x in sides.items() if x.status not in _DECIDED]
    if unknown:
        return ScenarioChange(pair=pair, change=Change.NOT_COMPARED, why=", ".join(unknown))
    rows = (*_pass_rate_row(*pair.both), *_metric_rows([pair.both]))
    certain = None if pair.latest.agent in random else certain_change(*pair.both)
    change = certain or Change.UNCHANGED
    return ScenarioChange(pair=pair, change=change, certain=certain is not None, rows=rows)


def _pass_rate_row(base: MeasuredScenario, new: MeasuredScenario) -> Iterator[ComparedFigure]:
    if not base.known or not new.known:
        return
    shares = (base.passed, base.known), (new.passed, new.known)
    low, high = newcombe(*shares)
    factor = _stopping_factor(base, new)
    yield ComparedFigure(
        name=PASS_RATE,
        base=base.passed / base.known,
        new=new.passed / new.known,
        n_base=base.known,
        n_new=new.known,
        low=low,
        high=high,
        p=min(1.0, factor * shares_differ(*shares)),
        least=min(1.0, factor * shares_differ((base.known, base.known), (0, new.known))),
    )


def _stopping_factor(*scenarios: MeasuredScenario) -> int:
    """Return the factor for p-values: stopping as soon as a verdict is decided favors extreme results."""
    return 2 if any(each.repeated for each in scenarios) else 1


def _metric_rows(sides: Sequence[tuple[MeasuredScenario, MeasuredScenario]]) -> Iterator[ComparedFigure]:
    names = {
        name: None for both in sides for side in both for each in side.conversations for name in each.sums
    }
    for name in names:
        strata = [Stratum(before=_clusters(base, name), after=_clusters(new, name)) for base, new in sides]
        if row := _row(name, strata):
            yield row


def _row(name: str, strata: Sequence[Stratum]) -> ComparedFigure | None:
    difference = mean_difference(strata)
    if difference is None:
        return None
    return ComparedFigure(
        name=name,
        base=difference.before,
        new=difference.after,
        n_base=difference.n_before,
        n_new=difference.n_after,
        low=difference.low,
        high=difference.high,
        p=difference.p,
        least=difference.least,
    )


def _clusters(scenario: MeasuredScenario, metric: str) -> list[Cluster]:
    return [each.sums[metric] for each in scenario.conversations if metric in each.sums]


def _outcomes(scenario: MeasuredScenario) -> list[Cluster]:
    return [(float(each.passed), 1) for each in scenario.conversations if each.passed is not None]


def _overall(decided: Sequence[ScenarioChange]) -> tuple[Verdicts, tuple[ComparedFigure, ...]]:
    sides = [draft.pair.both for draft in decided]
    statuses = [(base.status, new.status) for base, new in sides]
    worse = statuses.count((Status.PASSED, Status.FAILED))
    better = statuses.count((Status.FAILED, Status.PASSED))
    p = mcnemar(worse, better)
    rate = _row(PASS_RATE, [Stratum(before=_outcomes(base), after=_outcomes(new)) for base, new in sides])
    factor = _stopping_factor(*(side for both in sides for side in both))
    rows = [replace(rate, p=min(1.0, factor * rate.p))] if rate else []
    rows += _metric_rows(sides)
    adjusted = holm([p, *(row.p for row in rows)])
    verdicts = Verdicts(regressed=worse, improved=better, p=p, adjusted=adjusted[0])
    return verdicts, tuple(map(_with_change, rows, adjusted[1:]))


def _resources(decided: Sequence[ScenarioChange]) -> Iterator[ComparedFigure]:
    sides = [draft.pair.both for draft in decided]
    for name, clusters in ((LATENCY, _latencies), (COST, _costs)):
        strata = [Stratum(before=clusters(base), after=clusters(new)) for base, new in sides]
        if row := _row(name, strata):
            yield _with_change(row, row.p, more_is_worse=True)


def _latencies(scenario: MeasuredScenario) -> list[Cluster]:
    return [each.latency for each in scenario.conversations if each.latency[1]]


def _costs(scenario: MeasuredScenario) -> list[Cluster]:
    return [(each.cost, 1) for each in scenario.conversations if each.cost is not None]


def _with_changes(drafts: Sequence[ScenarioChange]) -> Iterator[ScenarioChange]:
    tests = [(row.p, row.least) for draft in drafts for row in draft.rows]
    adjusted = iter(holm_of_testable(tests, LEVEL))
    for draft in drafts:
        rows = tuple(_with_change(row, next(adjusted)) for row in draft.rows)
        if draft.certain:
            rows = tuple(replace(row, change=draft.change) if row.name == PASS_RATE else row for row in rows)
            yield replace(draft, rows=rows)
        elif draft.decided:
            yield replace(draft, change=_worst(draft, rows), rows=rows)
        else:
            yield draft


def _with_change(
    row: ComparedFigure, adjusted: float, *, more_is_worse: bool | None = None
) -> ComparedFigure:
    """Set the change of a figure. It differs only if both the test and the interval say so."""
    change = Change.UNCHANGED
    if abs(row.difference) > _ROUNDING:
        inside = row.low is not None and row.high is not None and row.low <= 0 <= row.high
        more_is_worse = counts_failures(row.name) if more_is_worse is None else more_is_worse
        worse = (row.difference < 0) is not more_is_worse
        change = Change.REGRESSED if worse else Change.IMPROVED
        change = Change.WITHIN_NOISE if adjusted > LEVEL or inside else change
    return replace(row, adjusted=adjusted, change=change)


def _worst(draft: ScenarioChange, rows: Iterable[ComparedFigure]) -> Change:
    changes = {row.change for row in rows}
    for change in (Change.REGRESSED, Change.IMPROVED, Change.WITHIN_NOISE):
        if change in changes:
            return change
    base, new = draft.pair.both
    return Change.UNCHANGED if base.status is new.status else Change.WITHIN_NOISE


def _enough(decided: Sequence[ScenarioChange]) -> int | None:
    """Return the number of conversations from which a drop from always to never passing is significant."""
    by_chance = [each.pair.both for each in decided if each.rows]
    by_chance = [both for both in by_chance if not is_single_script_run(*both)]
    if not by_chance:
        return None
    level = LEVEL / len(by_chance)
    enough = next((n for n in range(2, _MAX_CONVERSATIONS) if shares_differ((n, n), (0, n)) <= level), None)
    most = min(min(base.known, new.known) for base, new in by_chance)
    return enough if enough and most < enough else None


def _count_notes(pairs: Sequence[ScenarioPair]) -> Iterator[str]:
    both = [
        (p.base, p.new) for p in pairs if p.base and p.new and p.base.conversations and p.new.conversations
    ]
    other = [(b, n) for b, n in both if len(b.conversations) != len(n.conversations)]
    if other:
        first, second = other[0]
        yield (
            f"conversations: other numbers in {count(len(other), 'scenario')}, "
            f"{len(first.conversations)} and now {len(second.conversations)} in {second.name!r}"
        )
