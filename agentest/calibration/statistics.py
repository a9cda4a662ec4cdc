"""How far two raters agree: shares, kappa, and how sure of them so many labels make us.

Written out here, as the libraries that have them are larger than all of Agentest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from agentest.support.statistics.intervals import Interval, wilson

Table = tuple[int, int, int, int]
"""How often both say yes, only the first, only the second, neither."""

_RESAMPLES = 2000
_SEED = 20_260_101


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


def kappa_of_counts(counts: Sequence[float]) -> float | None:
    """Cohen's kappa of two raters who say yes or no; None where it is not defined.

    Args:
        counts: a Table, or shares in its order.
    """
    both, first, second, neither = counts
    n = both + first + second + neither
    # As whole numbers: a rounding error must not pass for a little chance.
    by_chance = (both + first) * (both + second) + (neither + first) * (neither + second)
    if n * n == by_chance:
        return None
    return ((both + neither) * n - by_chance) / (n * n - by_chance)


def counted(pairs: Iterable[tuple[bool, bool]]) -> Table:
    """Count the pairs by kind."""
    times = Counter(pairs)
    return times[True, True], times[True, False], times[False, True], times[False, False]


def kappa_interval(
    clusters: Sequence[Sequence[tuple[bool, bool]]], *, resamples: int = _RESAMPLES, seed: int = _SEED
) -> Interval | None:
    """Return the 95 % interval of Cohen's kappa, or None where kappa is not defined.

    A bootstrap draws whole clusters, because the turns of one conversation go together. Where little varies,
    that is too narrow, so the interval also includes kappa if one kind of pair were as much more frequent as
    Wilson's interval allows for a kind that was never seen. It contains kappa and never has zero width.

    The result is the same for the same data.
    """
    tables = [counted(cluster) for cluster in clusters if cluster]
    if not tables:
        return None
    whole = _sum(tables)
    kappa = kappa_of_counts(whole)
    if kappa is None:
        return None
    found = [kappa, *_with_unseen(whole, len(tables)), *_bootstrap(tables, resamples, Random(seed))]
    return Interval(max(-1.0, min(found)), min(1.0, max(found)))


def _with_unseen(table: Table, clusters: int) -> Iterator[float]:
    """Kappa if one kind of pair were more frequent, each kind in turn."""
    unseen = wilson(0, clusters)
    assert unseen
    n = sum(table)
    for kind in range(len(table)):
        shares = [(1 - unseen.high) * times / n for times in table]
        shares[kind] += unseen.high
        value = kappa_of_counts(shares)
        if value is not None:
            yield value


def _bootstrap(tables: Sequence[Table], resamples: int, random: Random) -> tuple[float, ...]:
    """Both ends of the middle 95 % of kappa over random draws; nothing where none of them defines it."""
    drawn = (_sum(random.choices(tables, k=len(tables))) for _ in range(resamples))
    found = sorted(value for table in drawn if (value := kappa_of_counts(table)) is not None)
    if not found:
        return ()
    return _quantile(found, 0.025), _quantile(found, 0.975)


def _sum(tables: Sequence[Table]) -> Table:
    both, first, second, neither = map(sum, zip(*tables, strict=True))
    return both, first, second, neither


def _quantile(ordered: Sequence[float], share: float) -> float:
    """By linear interpolation between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
