"""From two runs to what regressed, improved, or changed within noise."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agentest.domain.results import Status
from agentest.history.comparison.conditions import conditions
from agentest.history.comparison.measured import MeasuredRun, MeasuredScenario, counts_failures
from agentest.history.comparison.pairing import Pair, check_common, did_not_load, paired, selected
from agentest.history.comparison.scripts import agents_random_in_scripts, came_out_otherwise, played_once
from agentest.history.comparison.values import PASS_RATE, Change, Comparison, Row, ScenarioChange, Verdicts
from agentest.support.statistics.mean_difference import Cluster, Stratum, mean_difference
from agentest.support.statistics.paired import holm, holm_of_testable, mcnemar, newcombe, shares_differ

LEVEL = 0.05
"""In how many comparisons something is found falsely, at most: among scenarios, and over all of them."""
_ROUNDING = 1e-9
_DECIDED = (Status.PASSED, Status.FAILED)
_MOST_ASKED = 50


def compared(base: MeasuredRun, new: MeasuredRun) -> Comparison:
    """The new run against the base. Raises UsageError where they have no scenario in common."""
    check_common(base, new)
    every = paired(base, new)
    pairs = selected(every, base, new)
    random = agents_random_in_scripts(pairs)
    drafts = [_draft(pair, base, new, random) for pair in pairs]
    decided = [draft for draft in drafts if draft.decided]
    verdicts, overall = _overall(decided)
    return Comparison(
        base=base,
        new=new,
        notes=tuple(conditions(base, new, pairs, left_out=len(every) - len(pairs))),
        verdicts=verdicts,
        overall=overall,
        scenarios=tuple(_with_changes(drafts)),
        enough=_enough(decided),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A scenario before it is known how much is compared besides it."""

    pair: Pair
    change: Change | None = None
    """Set where no figure decides."""
    why: str = ""
    rows: tuple[Row, ...] = ()
    tests: tuple[tuple[float, float], ...] = ()
    """Of each row, how likely it is by chance, and how likely it could be at least."""

    @property
    def decided(self) -> bool:
        """Whether it passed or failed in both runs."""
        return self.change not in (Change.NEW, Change.GONE, Change.NOT_COMPARED)

    @property
    def sides(self) -> tuple[MeasuredScenario, MeasuredScenario]:
        assert self.pair.base
        assert self.pair.new
        return self.pair.base, self.pair.new


def _draft(pair: Pair, base: MeasuredRun, new: MeasuredRun, random: Collection[str]) -> _Draft:
    if pair.base is None or pair.new is None:
        return _one_sided(pair, base, new)
    for label, side in (("base", pair.base), ("new", pair.new)):
        if side.status in _DECIDED and not side.conversations:
            return _Draft(pair=pair, change=Change.NOT_COMPARED, why=f"no conversation in the {label} run")
    unknown = [
        f"{side.state} in the {label} run"
        for label, side in (("base", pair.base), ("new", pair.new))
        if side.status not in _DECIDED
    ]
    if unknown:
        return _Draft(pair=pair, change=Change.NOT_COMPARED, why=", ".join(unknown))
    rows, tests = _rows(pair.base, pair.new)
    certain = None if pair.shown.agent in random else came_out_otherwise(pair.base, pair.new)
    return _Draft(pair=pair, change=certain, rows=rows, tests=tests)


def _one_sided(pair: Pair, base: MeasuredRun, new: MeasuredRun) -> _Draft:
    if did_not_load(pair, new):
        return _Draft(pair=pair, change=Change.NOT_COMPARED, why="its file did not load in the new run")
    lacking, label = (new, "new") if pair.new is None else (base, "base")
    if lacking.stopped:
        why = f"the {label} run ended before it"
        return _Draft(pair=pair, change=Change.NOT_COMPARED, why=why)
    return _Draft(pair=pair, change=Change.GONE if pair.new is None else Change.NEW)


def _rows(
    base: MeasuredScenario, new: MeasuredScenario
) -> tuple[tuple[Row, ...], tuple[tuple[float, float], ...]]:
    rows: list[Row] = []
    tests: list[tuple[float, float]] = []
    if base.known and new.known:
        shares = (base.passed, base.known), (new.passed, new.known)
        low, high = newcombe(*shares)
        often = _times_by_chance(base, new)
        p = min(1.0, often * shares_differ(*shares))
        rows.append(
            Row(
                name=PASS_RATE,
                base=base.passed / base.known,
                new=new.passed / new.known,
                n_base=base.known,
                n_new=new.known,
                low=low,
                high=high,
                p=p,
            )
        )
        tests.append((p, min(1.0, often * shares_differ((base.known, base.known), (0, new.known)))))
    for row, least in _metric_rows([(base, new)]):
        rows.append(row)
        tests.append((row.p, least))
    return tuple(rows), tuple(tests)


def _times_by_chance(*scenarios: MeasuredScenario) -> int:
    """How much more is explained by chance: who stops when a verdict is decided stops at an extreme."""
    return 2 if any(each.repeated for each in scenarios) else 1


def _metric_rows(
    sides: Sequence[tuple[MeasuredScenario, MeasuredScenario]],
) -> Iterator[tuple[Row, float]]:
    """Each metric over these scenarios, and how likely its difference could be at least."""
    names = {
        name: None for both in sides for side in both for each in side.conversations for name in each.sums
    }
    for name in names:
        strata = [Stratum(before=_clusters(base, name), after=_clusters(new, name)) for base, new in sides]
        if found := _row(name, strata):
            yield found


def _row(name: str, strata: Sequence[Stratum]) -> tuple[Row, float] | None:
    found = mean_difference(strata)
    if found is None:
        return None
    row = Row(
        name=name,
        base=found.before,
        new=found.after,
        n_base=found.n_before,
        n_new=found.n_after,
        low=found.low,
        high=found.high,
        p=found.p,
    )
    return row, found.least


def _clusters(scenario: MeasuredScenario, metric: str) -> list[Cluster]:
    return [each.sums[metric] for each in scenario.conversations if metric in each.sums]


def _outcomes(scenario: MeasuredScenario) -> list[Cluster]:
    return [(float(each.passed), 1) for each in scenario.conversations if each.passed is not None]


def _overall(decided: Sequence[_Draft]) -> tuple[Verdicts, tuple[Row, ...]]:
    """All scenarios that passed or failed in both runs, together."""
    sides = [draft.sides for draft in decided]
    statuses = [(base.status, new.status) for base, new in sides]
    worse = statuses.count((Status.PASSED, Status.FAILED))
    better = statuses.count((Status.FAILED, Status.PASSED))
    p = mcnemar(worse, better)
    outcomes = [Stratum(before=_outcomes(base), after=_outcomes(new)) for base, new in sides]
    rate = _row(PASS_RATE, outcomes)
    often = _times_by_chance(*(side for both in sides for side in both))
    rows = [replace(rate[0], p=min(1.0, often * rate[0].p))] if rate else []
    rows += [row for row, _ in _metric_rows(sides)]
    adjusted = holm([p, *(row.p for row in rows)])
    verdicts = Verdicts(regressed=worse, improved=better, p=p, adjusted=adjusted[0])
    return verdicts, tuple(map(_judged, rows, adjusted[1:]))


def _with_changes(drafts: Iterable[_Draft]) -> Iterator[ScenarioChange]:
    drafts = list(drafts)
    adjusted = iter(holm_of_testable([test for draft in drafts for test in draft.tests], LEVEL))
    for draft in drafts:
        rows = tuple(_judged(row, next(adjusted)) for row in draft.rows)
        certain = draft.decided and draft.change is not None
        if certain and draft.change:
            rows = tuple(replace(row, change=draft.change) if row.name == PASS_RATE else row for row in rows)
        yield ScenarioChange(
            pair=draft.pair,
            change=draft.change or _worst(draft, rows),
            why=draft.why,
            certain=certain,
            rows=rows,
        )


def _judged(row: Row, adjusted: float) -> Row:
    return replace(row, adjusted=adjusted, change=_change(row, adjusted))


def _change(row: Row, adjusted: float) -> Change:
    """What became of a figure. Both test and interval must speak for a difference."""
    if abs(row.difference) <= _ROUNDING:
        return Change.UNCHANGED
    inside = row.low is not None and row.high is not None and row.low <= 0 <= row.high
    if adjusted > LEVEL or inside:
        return Change.WITHIN_NOISE
    worse = (row.difference < 0) is not counts_failures(row.name)
    return Change.REGRESSED if worse else Change.IMPROVED


def _worst(draft: _Draft, rows: Iterable[Row]) -> Change:
    changes = {row.change for row in rows}
    for change in (Change.REGRESSED, Change.IMPROVED, Change.WITHIN_NOISE):
        if change in changes:
            return change
    base, new = draft.sides
    return Change.UNCHANGED if base.status is new.status else Change.WITHIN_NOISE


def _enough(decided: Sequence[_Draft]) -> int | None:
    """From how many conversations on a scenario that always passed and never does now would count."""
    by_chance = [draft for draft in decided if draft.tests and not played_once(*draft.sides)]
    if not by_chance:
        return None
    enough = next((n for n in range(2, _MOST_ASKED) if _told(n, len(by_chance))), None)
    most = min(min(side.known for side in draft.sides) for draft in by_chance)
    return enough if enough and most < enough else None


def _told(n: int, family: int) -> bool:
    return shares_differ((n, n), (0, n)) * family <= LEVEL
