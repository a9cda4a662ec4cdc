"""The result of a comparison, in frozen values: whoever shows it needs nothing but their fields."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agentest.domain.results import Status
from agentest.history.compared_runs import MeasuredRun, Pair


class Change(StrEnum):
    """What became of something between two runs. The worst first."""

    REGRESSED = "regressed"
    NOT_COMPARED = "not compared"
    """It errored or did not run in one of them: nobody knows."""
    GONE = "gone"
    NEW = "new"
    IMPROVED = "improved"
    WITHIN_NOISE = "changed within noise"
    """It differs, and chance explains that."""
    UNCHANGED = "unchanged"


PASS_RATE = "pass rate"
VERDICTS = "verdicts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rate or an average in both runs.

    Attributes:
        n_base, n_new: of how many conversations or turns it is.
        low, high: the 95 % interval of `new - base`; None where that is not known.
        p: how likely such a difference is by chance: two-sided.
        adjusted: the same, adjusted for all that is compared (Holm).
        change: what became of it.
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
    """How many scenarios changed their verdict, and how likely that is by chance (exact McNemar)."""

    regressed: int
    improved: int
    p: float
    adjusted: float = 1.0

    @property
    def change(self) -> Change:
        """What that says of the whole run."""
        if self.regressed == self.improved == 0:
            return Change.UNCHANGED
        if self.adjusted > 0.05:
            return Change.WITHIN_NOISE
        return Change.REGRESSED if self.regressed > self.improved else Change.IMPROVED


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioChange:
    """What became of one scenario with one agent."""

    pair: Pair
    change: Change
    why: str = ""
    """In words, where the rows do not say it."""
    certain: bool = False
    """Whether its script passed in one run and failed in the other, each time that it was played.

    The agent is taken to answer alike each time, as nothing shows that it does not.
    """
    rows: tuple[Row, ...] = ()

    @property
    def verdict_changed(self) -> bool:
        """Whether it passed in one run and failed in the other."""
        base, new = self.pair.base, self.pair.new
        return bool(base and new) and {base.status, new.status} == {Status.PASSED, Status.FAILED}  # type: ignore[union-attr]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side."""

    base: MeasuredRun
    new: MeasuredRun
    notes: tuple[str, ...]
    """What was not the same besides the agent."""
    verdicts: Verdicts
    overall: tuple[Row, ...]
    scenarios: tuple[ScenarioChange, ...]
    """In the order of the new run."""
    enough: int | None = None
    """From how many conversations in each run a drop from all to none tells; None: each has so many."""

    def of(self, change: Change) -> tuple[ScenarioChange, ...]:
        return tuple(each for each in self.scenarios if each.change is change)

    @property
    def overall_regressions(self) -> tuple[str, ...]:
        """What regressed over all scenarios together."""
        verdicts = (VERDICTS,) if self.verdicts.change is Change.REGRESSED else ()
        return (*verdicts, *(row.name for row in self.overall if row.change is Change.REGRESSED))

    @property
    def regressed(self) -> bool:
        """Whether anything did."""
        return bool(self.of(Change.REGRESSED) or self.overall_regressions)
