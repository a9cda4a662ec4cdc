"""How far two raters agree: shares, kappa, and how sure of them so many labels make us.

Written out here, as the libraries that have them are larger than all of Agentest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from agentest.support.statistics.intervals import Interval

_RESAMPLES = 2000
_SEED = 20_260_101
_LEAST_DEFINED = 0.5


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Cohen's kappa of numbers with quadratic weights: to be off by two counts four times as much as by one.

    None where it is not defined: both raters only ever give one and the same number.
    """
    n = len(pairs)
    if n == 0:
        return None
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    seen = sum((a - b) ** 2 for a, b in pairs) / n
    by_chance = sum((a - b) ** 2 * left[a] * right[b] for a in left for b in right) / (n * n)
    return None if by_chance == 0 else 1 - seen / by_chance


def kappa_of_counts(counts: Sequence[int]) -> float | None:
    """Cohen's kappa of two raters who say yes or no; None where it is not defined.

    Args:
        counts: how often both say yes, only the first, only the second, neither.
    """
    both, first, second, neither = counts
    n = both + first + second + neither
    # As whole numbers: a rounding error must not pass for a little chance.
    by_chance = (both + first) * (both + second) + (neither + first) * (neither + second)
    if n * n == by_chance:
        return None
    return ((both + neither) * n - by_chance) / (n * n - by_chance)


def counted(pairs: Iterable[tuple[bool, bool]]) -> tuple[int, int, int, int]:
    """How often both say yes, only the first, only the second, neither."""
    times = Counter(pairs)
    return times[True, True], times[True, False], times[False, True], times[False, False]


def kappa_interval(
    clusters: Sequence[Sequence[tuple[bool, bool]]], *, resamples: int = _RESAMPLES, seed: int = _SEED
) -> Interval | None:
    """The 95 % interval of Cohen's kappa, by a bootstrap that draws whole clusters: what is said of the turns
    of one conversation goes together.

    Always the same for the same data. None where there is a single cluster, or where kappa is not defined
    for half of what is drawn.
    """
    if len(clusters) < 2:
        return None
    random, tables = Random(seed), [counted(cluster) for cluster in clusters]
    drawn = (random.choices(tables, k=len(tables)) for _ in range(resamples))
    values = (kappa_of_counts([sum(column) for column in zip(*tables, strict=True)]) for tables in drawn)
    found = sorted(value for value in values if value is not None)
    if len(found) < _LEAST_DEFINED * resamples:
        return None
    return Interval(_quantile(found, 0.025), _quantile(found, 0.975))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """By linear interpolation between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
