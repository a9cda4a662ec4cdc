"""Compare two runs statistically: find regressions, improvements and changes within noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from operator import attrgetter

from agentest.domain.results import Status
from agentest.history.compared_runs import (
    MeasuredRun,
    MeasuredScenario,
    ScenarioPair,
    check_common_scenarios,
    counts_failures,
    did_not_load,
    pair_scenarios,
)
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.differences import (
    Cluster,
    Difference,
    Stratum,
    holm_of_testable,
    mean_difference,
    share_difference,
)
from agentest.support.text import count


class Change(StrEnum):
    """Change of a scenario or figure between two runs, worst first."""

    BROKE = "broke"  # it always passed and now never does: a script, or enough conversations in both runs
    REGRESSED = "regressed"
    NOT_COMPARED = "not compared"  # the scenario errored or did not run in one of the runs
    FIXED = "fixed"  # it never passed and now always does: the reverse of broke
    IMPROVED = "improved"
    WITHIN_NOISE = "changed within noise"  # the values differ, but chance can explain the difference
    GONE = "gone"
    NEW = "new"
    UNCHANGED = "unchanged"


WORSE = (Change.BROKE, Change.REGRESSED)  # changes that fail a run under `--fail-on-regression`
BETTER = (Change.FIXED, Change.IMPROVED)
TESTED = (Change.REGRESSED, Change.IMPROVED)
"""Changes that a test found, so that chance does not explain them."""
PASS_RATE = "pass rate"
LATENCY, COST = "latency", "cost"
ENOUGH_TO_BREAK = 3  # number of conversations in each run from which a scenario without a script can break
LEVEL = 0.05  # highest probability that tests find a regression, or an improvement, where nothing has changed
_FAMILIES = 2  # scenarios and figures over all scenarios are two families of tests, which share the level
_ROUNDING = 1e-9
_DECIDED = (Status.PASSED, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure(Difference):
    """A rate or an average in both runs, and the decision about it, from which all reports are made.

    The interval contains 0, and `adjusted` is above `LEVEL`, unless the figure changed by more than noise.

    Attributes:
        n_base, n_new: number of conversations or turns behind the value.
        p: one-sided p-value; None if no test decided.
        adjusted: p-value adjusted for all comparisons (Holm), to be compared with `LEVEL`.
        change: the resulting change.
    """

    name: str
    adjusted: float | None = None
    change: Change = Change.UNCHANGED


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioChange:
    """Change of one scenario with one agent."""

    pair: ScenarioPair
    change: Change = Change.UNCHANGED
    why: str = ""  # explanation, if the rows do not contain it
    rows: tuple[ComparedFigure, ...] = ()

    @property
    def tested(self) -> list[ComparedFigure]:
        """The figures that changed by more than noise, according to their tests."""
        return [row for row in self.rows if row.change in TESTED]

    @property
    def decided(self) -> bool:
        """True if the scenario passed or failed in both runs."""
        return self.change not in (Change.NEW, Change.GONE, Change.NOT_COMPARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of two runs."""

    base: MeasuredRun
    new: MeasuredRun
    notes: tuple[str, ...]  # conditions that differ, other than the agent
    overall: tuple[ComparedFigure, ...]
    resources: tuple[ComparedFigure, ...] = ()
    """The agent's latency per turn in milliseconds, and the cost of its models per conversation in USD.

    They are never tested: one run on each side does not show how much runs of the same agent vary.
    """
    scenarios: tuple[ScenarioChange, ...] = ()

    def of(self, *changes: Change) -> tuple[ScenarioChange, ...]:
        return tuple(each for each in self.scenarios if each.change in changes)

    @property
    def worst_first(self) -> list[ScenarioChange]:
        """The scenarios with a change, worst first: by change, then by p-value."""
        by_p = sorted(self.scenarios, key=lambda each: min([1.0, *(row.p or 0.0 for row in each.rows)]))
        changes = [change for change in Change if change is not Change.UNCHANGED]
        return [each for change in changes for each in by_p if each.change is change]

    @property
    def changes(self) -> frozenset[Change]:
        """Changes of scenarios and of figures over all scenarios."""
        return frozenset((*(each.change for each in self.scenarios), *(row.change for row in self.overall)))

    @property
    def regressed(self) -> bool:
        """True if any scenario broke or regressed, or an overall figure regressed."""
        return not self.changes.isdisjoint(WORSE)


def compare_measured_runs(base: MeasuredRun, new: MeasuredRun) -> Comparison:
    """Compare a new run with a base run. Raises UsageError if they have no scenario in common."""
    check_common_scenarios(base, new)
    every = pair_scenarios(base, new)
    # A scenario that one run did not select is neither new nor gone.
    pairs = [pair for pair in every if (pair.new or not new.partial) and (pair.base or not base.partial)]
    drafts = [_draft(pair, base, new) for pair in pairs]
    rows = iter(decide([row for draft in drafts for row in draft.rows]))
    scenarios = [replace(draft, rows=tuple(next(rows) for _ in draft.rows)) for draft in drafts]
    sides = [draft.pair.both for draft in drafts if draft.decided]
    return Comparison(
        base=base,
        new=new,
        notes=tuple(differing_conditions(base, new, pairs, left_out=len(every) - len(pairs))),
        overall=tuple(decide(list(_rows(sides)))),
        resources=tuple(_resources(sides)),
        scenarios=tuple(replace(each, change=_worst(each)) for each in scenarios),
    )


def decide(rows: Sequence[ComparedFigure]) -> list[ComparedFigure]:
    """Return the rows of a family with their changes. Rows that broke or were fixed have theirs already.

    A figure changed by more than noise if its test, adjusted for the family, says so. Otherwise, its interval
    is extended to 0 where it ends before.
    """
    tested = [(row.p, row.least) for row in rows if row.p is not None]
    family = [(min(1.0, _FAMILIES * p), min(1.0, _FAMILIES * least)) for p, least in tested]
    adjusted = iter(holm_of_testable(family, LEVEL))
    return [row if row.p is None else _decided(row, next(adjusted)) for row in rows]


def _decided(row: ComparedFigure, adjusted: float) -> ComparedFigure:
    if adjusted <= LEVEL:
        is_worse = (row.value < 0) is not counts_failures(row.name)
        return replace(row, adjusted=adjusted, change=Change.REGRESSED if is_worse else Change.IMPROVED)
    change = Change.WITHIN_NOISE if abs(row.value) > _ROUNDING else Change.UNCHANGED
    low, high = row.low and min(row.low, 0.0), row.high and max(row.high, 0.0)
    return replace(row, low=low, high=high, adjusted=adjusted, change=change)


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
    both = [
        (p.base, p.new) for p in pairs if p.base and p.new and p.base.conversations and p.new.conversations
    ]
    other = [(b, n) for b, n in both if b.conversations != n.conversations]
    if other:
        first, second = other[0]
        yield (
            f"conversations: other numbers in {count(len(other), 'scenario')}, "
            f"{first.conversations} and now {second.conversations} in {second.name!r}"
        )
    ended = sum(any(side and side.repeated for side in (p.base, p.new)) for p in pairs if p.base and p.new)
    if ended:
        yield (
            f"repeat: {count(ended, 'scenario')} ended when decided, which makes good pass rates better and "
            "bad ones worse; chance counts twice there"
        )


def _draft(pair: ScenarioPair, base: MeasuredRun, new: MeasuredRun) -> ScenarioChange:
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
    return ScenarioChange(pair=pair, rows=tuple(_rows([pair.both])))


Sides = tuple[MeasuredScenario, MeasuredScenario]  # a scenario in the base run and in the new run


def _rows(sides: Sequence[Sides]) -> Iterator[ComparedFigure]:
    known = [(base, new) for base, new in sides if base.known and new.known]
    if known:
        yield _pass_rate_row(known)
    names = {name: None for both in sides for side in both for name in side.sums}
    for name in names:
        if found := _difference(sides, partial(_sums, name)):
            yield ComparedFigure(name=name, **asdict(found))


def _pass_rate_row(sides: Sequence[Sides]) -> ComparedFigure:
    shares = [((base.passed, base.known), (new.passed, new.known)) for base, new in sides]
    found = share_difference(*shares[0]) if len(sides) == 1 else _difference(sides, attrgetter("outcomes"))
    assert found
    row = ComparedFigure(name=PASS_RATE, **asdict(found))
    enough = (
        base.scripted or new.scripted or min(base.known, new.known) >= ENOUGH_TO_BREAK for base, new in sides
    )
    if abs(row.value) == 1 and all(enough):
        change = Change.BROKE if row.value < 0 else Change.FIXED
        agrees = row.low is not None and row.high is not None and row.low * row.high > 0
        low, high = (row.low, row.high) if agrees else (None, None)
        return replace(row, low=low, high=high, p=None, change=change)
    if row.p is not None and any(side.repeated for both in sides for side in both):
        # Stopping as soon as a verdict is decided favors extreme results, so chance counts twice.
        return replace(row, p=min(1.0, 2 * row.p), least=min(1.0, 2 * row.least))
    return row


def _sums(metric: str, scenario: MeasuredScenario) -> Sequence[Cluster]:
    return scenario.sums.get(metric, ())


def _difference(
    sides: Sequence[Sides], clusters: Callable[[MeasuredScenario], Sequence[Cluster]]
) -> Difference | None:
    return mean_difference([Stratum(before=clusters(base), after=clusters(new)) for base, new in sides])


def _resources(sides: Sequence[Sides]) -> Iterator[ComparedFigure]:
    for name, clusters in ((LATENCY, attrgetter("latencies")), (COST, attrgetter("costs"))):
        if found := _difference(sides, clusters):
            change = Change.WITHIN_NOISE if found.value else Change.UNCHANGED
            untested = replace(found, low=None, high=None, p=None)
            yield ComparedFigure(name=name, **asdict(untested), change=change)


def _worst(draft: ScenarioChange) -> Change:
    if not draft.decided:
        return draft.change
    base, new = draft.pair.both
    changes = {row.change for row in draft.rows} - {Change.UNCHANGED}
    otherwise = Change.UNCHANGED if base.status is new.status else Change.WITHIN_NOISE
    return next((each for each in Change if each in changes), otherwise)
