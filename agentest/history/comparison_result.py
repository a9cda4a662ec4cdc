"""The result of a comparison, as frozen values that all reports use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agentest.domain.results import Status
from agentest.history.compared_runs import MeasuredRun, ScenarioPair


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
VERDICTS = "verdicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A rate or an average in both runs.

    Attributes:
        n_base, n_new: number of conversations or turns behind the value.
        low, high: 95 % confidence interval of `new - base`; None if unknown.
        p: two-sided p-value of the difference.
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
    scenarios: tuple[ScenarioChange, ...]
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
