"""Sequential tests: values arrive one by one until it is decided if a share or a mean is high enough.

However often one looks, a decision that is `proven` is wrong at most as often as the test's error rate:

- A share has exact boundaries. The probability of ever crossing one, if the share equals the threshold, is
  summed over all paths (`boundaries`). Each look spends a part of the error in proportion to the elapsed
  share of values. Counts are whole numbers, so an unused remainder is left for the next look.
- For a mean of bounded values, the test bets against "too low". While that is true, the wealth exceeds
  1/error with a probability of at most the error (Ville's inequality; Waudby-Smith and Ramdas, 2024).
  Several bets of different sizes share it, so that the order of values does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import lru_cache
from itertools import accumulate, islice
from math import ceil, exp, lgamma, log, sqrt
from typing import Literal, Protocol

from agentest.support.lazy_dataclasses import dataclass

_TOLERANCE = 1e-9
_BETS = (0.25, 0.5, 1.0)  # bet sizes as fractions of the largest bet that cannot lose everything

Side = Literal["holds", "missed"]


class SequentialDecision(Enum):
    """The state of one question."""

    OPEN = "open"
    HOLDS = "holds"
    MISSED = "missed"
    WILL_HOLD = "will hold"  # will hold whatever the remaining values are, but they cannot prove it
    WILL_BE_MISSED = "will be missed"


_GOOD = (SequentialDecision.HOLDS, SequentialDecision.WILL_HOLD)
_BAD = (SequentialDecision.MISSED, SequentialDecision.WILL_BE_MISSED)


@dataclass(frozen=True, slots=True)
class Path:
    """The state of the test after the values so far."""

    values: int = 0
    hits: int = 0
    up: tuple[float, ...] = ()
    down: tuple[float, ...] = ()
    standing: SequentialDecision = SequentialDecision.OPEN


class SequentialTest(Protocol):
    """A question about values that arrive one by one. A decision never changes."""

    @property
    def range(self) -> tuple[float, float]:
        """The lowest and the highest value."""

    def begin(self) -> Path:
        """Return the state before the first value."""

    def add(self, path: Path, value: float) -> Path:
        """Return the state after one more value."""

    def soonest(self, path: Path, left: int, *, good: bool) -> int | None:
        """Return the minimum number of further values after which it can be known to hold, or to be missed.

        None if the remaining values cannot decide it.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    """Error rates of the two wrong decisions: missed and holds."""

    missed: float
    holds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareTest:
    """Tests if the share of ones among zeros and ones is at least `least`."""

    least: float
    first: int  # number of values before the first look
    last: int  # maximum number of values
    errors: ErrorRates

    @property
    def range(self) -> tuple[float, float]:
        return 0.0, 1.0

    def begin(self) -> Path:
        return Path(standing=SequentialDecision.HOLDS if self.least <= 0 else SequentialDecision.OPEN)

    def add(self, path: Path, value: float) -> Path:
        if path.standing is not SequentialDecision.OPEN:
            return path
        values, hits = path.values + 1, path.hits + int(value)
        return Path(values=values, hits=hits, standing=self._standing(values, hits))

    def soonest(self, path: Path, left: int, *, good: bool) -> int | None:
        wanted = _GOOD if good else _BAD
        for more in range(1, left + 1):
            values = path.values + more
            if any(self._standing(values, path.hits + hits) in wanted for hits in range(more + 1)):
                return more
        return None

    def _standing(self, values: int, hits: int) -> SequentialDecision:
        if values < self.first:
            return SequentialDecision.OPEN
        misses = values - hits
        if hits >= self._boundary("holds", values):
            return SequentialDecision.HOLDS
        if misses >= self._boundary("missed", values):
            return SequentialDecision.MISSED
        needed = ceil(self.least * self.last - _TOLERANCE)
        certain = hits >= needed or misses > self.last - needed
        if not certain or self._can_still_be_proven(hits, misses):
            return SequentialDecision.OPEN
        return SequentialDecision.WILL_HOLD if hits >= needed else SequentialDecision.WILL_BE_MISSED

    def _can_still_be_proven(self, hits: int, misses: int) -> bool:
        values = hits + misses
        return any(
            hits + more >= self._boundary("holds", values + more)
            or misses + more >= self._boundary("missed", values + more)
            for more in range(1, self.last - values + 1)
        )

    def _boundary(self, side: Side, values: int) -> int:
        error = self.errors.holds if side == "holds" else self.errors.missed
        return boundaries(self.least, self.first, self.last, error, side)[values - 1]


@lru_cache(maxsize=256)
def boundaries(least: float, first: int, last: int, error: float, side: Side) -> tuple[int, ...]:
    """Return the number of ones (side `holds`) or zeros (`missed`) that decide, after 1 to `last` values.

    A number above the number of values means that no decision is possible yet. Paths that cross the other
    side's boundary are counted as if they continued, so the error is overestimated.
    """
    chance = least if side == "holds" else 1 - least
    paths, spent, limits = {0: 1.0}, 0.0, []
    for values in range(1, last + 1):
        more: dict[int, float] = {}
        for count, share in paths.items():
            more[count] = more.get(count, 0.0) + share * (1 - chance)
            more[count + 1] = more.get(count + 1, 0.0) + share * chance
        paths = more
        boundary = values + 1
        if values >= first:
            boundary, used = _boundary(paths, values, chance, error * sqrt(values / last) - spent)
            spent += used
            paths = {count: share for count, share in paths.items() if count < boundary}
        limits.append(boundary)
    return tuple(limits)


def _boundary(paths: Mapping[int, float], values: int, chance: float, room: float) -> tuple[int, float]:
    boundary, used = values + 1, 0.0
    for count in range(values, -1, -1):
        share = paths.get(count, 0.0)
        # A count no larger than expected proves nothing, however rarely a path reaches it.
        if used + share > room or count <= chance * values + _TOLERANCE:
            break
        boundary, used = count, used + share
    return boundary, used


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTest:
    """Tests if values between `low` and `high` have a mean of at least `least`."""

    least: float
    low: float
    high: float
    first: int
    errors: ErrorRates

    @property
    def range(self) -> tuple[float, float]:
        return self.low, self.high

    def begin(self) -> Path:
        ones = (1 / len(_BETS),) * len(_BETS)
        return Path(
            up=ones,
            down=ones,
            standing=SequentialDecision.HOLDS if self._goal <= 0 else SequentialDecision.OPEN,
        )

    def add(self, path: Path, value: float) -> Path:
        if path.standing is not SequentialDecision.OPEN:
            return path
        above = min(1.0, max(0.0, self._part(value))) - self._goal
        path = replace(
            path,
            values=path.values + 1,
            up=tuple(w * (1 + bet * above / self._goal) for w, bet in zip(path.up, _BETS, strict=True)),
            down=tuple(w * (1 + self._bet_down(bet, above)) for w, bet in zip(path.down, _BETS, strict=True)),
        )
        return replace(path, standing=self._standing(path)) if path.values >= self.first else path

    def soonest(self, path: Path, left: int, *, good: bool) -> int | None:
        for more in range(1, left + 1):
            path = self.add(path, self.high if good else self.low)
            if path.standing in (_GOOD if good else _BAD):
                return more
        return None

    @property
    def _goal(self) -> float:
        return self._part(self.least)

    def _part(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)

    def _bet_down(self, bet: float, above: float) -> float:
        if self._goal < 1 - _TOLERANCE:
            return -bet * above / (1 - self._goal)
        # All must have the highest value, so a single lower one proves that the mean is lower.
        return float("inf") if above < -_TOLERANCE else 0.0

    def _standing(self, path: Path) -> SequentialDecision:
        if sum(path.up) >= 1 / self.errors.holds:
            return SequentialDecision.HOLDS
        is_missed = sum(path.down) >= 1 / self.errors.missed
        return SequentialDecision.MISSED if is_missed else SequentialDecision.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioTest:
    """Wald's test of whether a share of ones is at least `high`, or at most `low`.

    It needs the fewest values on average. If the share lies between the two, it decides either way.
    """

    high: float
    low: float
    last: int  # maximum number of values; after that it stays open
    errors: ErrorRates  # `holds`: of accepting `low`; `missed`: of rejecting `high`

    def standing(self, values: int, hits: int) -> SequentialDecision:
        """Return the state after this many values, of which `hits` are ones."""
        ratio = hits * log(self.high / self.low) + (values - hits) * log((1 - self.high) / (1 - self.low))
        if ratio >= log((1 - self.errors.missed) / self.errors.holds):
            return SequentialDecision.HOLDS
        if ratio <= log(self.errors.missed / (1 - self.errors.holds)):
            return SequentialDecision.MISSED
        return SequentialDecision.OPEN

    def is_open(self, values: int, hits: int) -> bool:
        """Return True if another value is needed, and allowed."""
        return values < self.last and self.standing(values, hits) is SequentialDecision.OPEN


@dataclass(frozen=True, slots=True)
class Undecidable:
    """A question about unbounded values, which is never decided: the next may change everything."""

    range: tuple[float, float] = (0.0, 0.0)

    def begin(self) -> Path:
        return Path()

    def add(self, path: Path, value: float) -> Path:
        del value  # it carries no information
        return path

    def soonest(self, path: Path, left: int, *, good: bool) -> int | None:
        del path, left, good
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinedLook:
    """The combined result of several questions."""

    standing: SequentialDecision
    fewest: int | None
    """Minimum number of further values for a decision; None if the remaining ones cannot decide it."""


def look(
    tests: Mapping[str, SequentialTest], values: Mapping[str, Sequence[float]], left: int
) -> CombinedLook:
    """Combine several questions: whether all hold, or one is missed.

    Without questions, nothing holds.

    Args:
        values: the values of each question, in order; may be empty.
        left: number of values of each that can still arrive.
    """
    paths = {name: replay_values(test, values.get(name, ())) for name, test in tests.items()}
    standing = _together([path.standing for path in paths.values()])
    if standing is not SequentialDecision.OPEN:
        return CombinedLook(standing=standing, fewest=0)
    open_ones = [
        (tests[name], path) for name, path in paths.items() if path.standing is SequentialDecision.OPEN
    ]
    missed = [question.soonest(path, left, good=False) for question, path in open_ones]
    hold = [question.soonest(path, left, good=True) for question, path in open_ones]
    ways = [each for each in missed if each is not None]
    ways += [max(each for each in hold if each is not None)] if hold and None not in hold else []
    return CombinedLook(standing=standing, fewest=min(ways, default=None))


def replay_values(question: SequentialTest, values: Sequence[float]) -> Path:
    """Return the state of the test after these values."""
    path = question.begin()
    for value in values:
        path = question.add(path, value)
    return path


def _together(standings: Sequence[SequentialDecision]) -> SequentialDecision:
    D = SequentialDecision
    order = (D.MISSED, D.WILL_BE_MISSED, D.OPEN, D.WILL_HOLD, D.HOLDS)
    return next((each for each in order if each in standings), D.OPEN)


# Statistical power: which drop of a pass rate is detectable with a number of draws. Exact, from the binomial
# distribution. A drop is detectable if a threshold on passed draws reports it in at most 5 of 100 samples at
# the higher rate and in at least 80 of 100 at the lower rate.
_FALSE_ALARM_RATE = 0.05
_DETECTION_RATE = 0.8
_STEPS = 30


def detectable_rate(draws: int, rate: float) -> float | None:
    """Return the highest rate that this many draws distinguish from a higher one (between 0 and 1).

    None if there is none, because even zero passed draws may be chance.
    """
    ways = [lgamma(draws + 1) - lgamma(n + 1) - lgamma(draws - n + 1) for n in range(draws + 1)]

    def chances(rate: float) -> Iterator[float]:
        hit, miss = log(rate), log(1 - rate)
        return (exp(each + n * hit + (draws - n) * miss) for n, each in enumerate(ways))

    most = sum(total <= _FALSE_ALARM_RATE for total in accumulate(chances(rate)))
    low, high = 0.0, rate
    for _ in range(_STEPS if most else 0):
        middle = (low + high) / 2
        chance = sum(islice(chances(middle), most))
        low, high = (middle, high) if chance >= _DETECTION_RATE else (low, middle)
    return low if most else None
