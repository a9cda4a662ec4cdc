"""How sure a share or an average is: 95 % intervals of what was drawn, also where draws go together.

Written out here, as the libraries that have them are larger than all of Agentest. Nothing here knows what the
numbers are of: what is drawn together, like the turns of a conversation, is a cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, isfinite, sqrt

Z_95 = 1.959963984540054
"""The quantile of the normal distribution that leaves 2.5 % above it."""
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's quantiles that leave 2.5 % above them, for 1 to 30 degrees of freedom."""
_ROUNDING = 1e-12

Scale = tuple[float, float]
"""The least and the highest value that there can be."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a figure lies with 95 % confidence."""

    low: float
    high: float


def student(freedom: int) -> float:
    """Student's quantile that leaves 2.5 % above it, for so many degrees of freedom (at least 1)."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return Z_95 + (Z_95**3 + Z_95) / (4 * freedom)


def wilson(times: float, of: float, quantile: float = Z_95) -> Interval | None:
    """The 95 % interval of a share, by Wilson's score; None of nothing.

    Args:
        times, of: how many of how many. They need not be whole: draws that go together count as fewer.
    """
    if of <= 0:
        return None
    share, square = times / of, quantile * quantile
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = quantile / (1 + square / of) * sqrt(share * (1 - share) / of + square / (4 * of * of))
    # At the ends it is exact, whatever rounding makes of it.
    return Interval(0.0 if times == 0 else middle - half, 1.0 if times == of else middle + half)


def clustered_share(clusters: Sequence[tuple[int, int]]) -> Interval | None:
    """The 95 % interval of the share over all clusters; None of nothing.

    Wilson's, with as many draws as the same error would take if none went together. Where clusters differ by
    more than chance would have it, Student's quantile, as how much they differ is known from few of them.

    Args:
        clusters: of each, how many of how many.
    """
    times, of = sum(each for each, _ in clusters), sum(each for _, each in clusters)
    if not 0 < times < of:
        return wilson(times, of)
    share = times / of
    error = _ratio_error([(float(each), n) for each, n in clusters])
    alone = sqrt(share * (1 - share) / of)
    if error is None or error <= alone * (1 + _ROUNDING) or len(clusters) == of:
        return wilson(times, of)
    worth = share * (1 - share) / (error * error)
    return wilson(share * worth, worth, student(len(clusters) - 1))


def clustered_mean(clusters: Sequence[Sequence[float]], scale: Scale | None = None) -> Interval | None:
    """The 95 % interval of the mean over all values, where whole clusters were drawn.

    Student's, by the standard error between clusters, within the scale. However alike clusters are, some at
    the ends of the scale may be left to draw: it is at least as wide as if they were as frequent as Wilson's
    interval allows of what was never seen. Where all say yes or no, it is Wilson's. None where a value is not
    finite, or where nothing differs and there is no scale. Values beyond a scale show that it is another one.

    Args:
        clusters: the values of each; those without values do not count.
    """
    held = [values for values in clusters if values]
    every = [value for values in held for value in values]
    if not held or not all(map(isfinite, every)):
        return None
    if scale is None or not all(scale[0] <= value <= scale[1] for value in every):
        return _by_differences(held)
    if all(len(values) == 1 for values in held) and set(every) <= set(scale):
        return _of_ends(every.count(scale[1]), len(held), scale)
    return _on_scale(held, scale)


def _by_differences(clusters: Sequence[Sequence[float]]) -> Interval | None:
    """Student's interval; None where nothing differs."""
    mean, half = _mean_and_half(clusters)
    return Interval(mean - half, mean + half) if half > 0 and isfinite(half) else None


def _of_ends(times: int, of: int, scale: Scale) -> Interval | None:
    """Wilson's interval of yes and no, which are the ends of a scale."""
    share, (low, high) = wilson(times, of), scale
    return share and Interval(low + (high - low) * share.low, low + (high - low) * share.high)


def _on_scale(clusters: Sequence[Sequence[float]], scale: Scale) -> Interval:
    """Student's interval, or as far towards the ends of the scale as what was never seen may be frequent."""
    (mean, half), (low, high), unseen = _mean_and_half(clusters), scale, _never_seen(len(clusters))
    return Interval(
        max(low, min(mean - half, mean - unseen * (mean - low))),
        min(high, max(mean + half, mean + unseen * (high - mean))),
    )


def _mean_and_half(clusters: Sequence[Sequence[float]]) -> tuple[float, float]:
    """The mean over all values, and half of Student's interval: 0 where no cluster differs from another."""
    sums = [(sum(values), len(values)) for values in clusters]
    mean = sum(total for total, _ in sums) / sum(n for _, n in sums)
    error = _ratio_error(sums)
    if error is None or error <= _ROUNDING * max(1.0, abs(mean)):
        return mean, 0.0
    return mean, student(len(clusters) - 1) * error


def _never_seen(draws: int) -> float:
    """The largest share that Wilson's interval allows of what none of the draws was."""
    none = wilson(0, draws)
    return none.high if none else 1.0


def _ratio_error(sums: Sequence[tuple[float, int]]) -> float | None:
    """The standard error of a mean over all draws: larger clusters weigh more. None of a single cluster."""
    clusters, of = len(sums), sum(n for _, n in sums)
    if clusters < 2:
        return None
    mean = sum(total for total, _ in sums) / of
    # `hypot` takes the root of squares that are too large for a number.
    return sqrt(clusters / (clusters - 1)) * hypot(*(total - mean * n for total, n in sums)) / of


def pass_hat_k(n: int, passed: int) -> dict[int, float]:
    """k → how likely k draws all pass, for k from 1 to n (pass^k).

    The unbiased estimate, C(passed, k) / C(n, k): the share of all choices of k draws that have all passed.
    """
    found, value = {}, 1.0
    for k in range(1, n + 1):
        value *= max(0, passed - k + 1) / (n - k + 1)
        found[k] = value
    return found
