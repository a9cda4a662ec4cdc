"""95% confidence intervals of shares and means, also for clustered draws.

Implemented here because libraries with them are larger than all of Agentest. A cluster is a group of values
drawn together, such as the turns of a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import hypot, isfinite, sqrt
from operator import mul

from agentest.support.lazy_dataclasses import dataclass

Z_95 = 1.959963984540054  # the quantile of the normal distribution with 2.5% above it
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t quantiles with 2.5% above them, for 1 to 30 degrees of freedom."""
_ROUNDING = 1e-12

Scale = tuple[float, float]  # the lowest and the highest possible value


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """A 95% confidence interval."""

    low: float
    high: float


def student(freedom: int) -> float:
    """Return Student's t quantile with 2.5% above it, for at least 1 degree of freedom."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return Z_95 + (Z_95**3 + Z_95) / (4 * freedom)


def wilson(times: float, n: float, quantile: float = Z_95) -> ConfidenceInterval | None:
    """Return the 95% Wilson score interval of a share; None without draws.

    Args:
        times, n: successes and draws. They need not be whole, because clustered draws count as fewer.
    """
    if n <= 0:
        return None
    share, square = times / n, quantile * quantile
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = quantile / (1 + square / n) * sqrt(share * (1 - share) / n + square / (4 * n * n))
    # Exact at the ends, without rounding errors.
    return ConfidenceInterval(0.0 if times == 0 else middle - half, 1.0 if times == n else middle + half)


def clustered_share(clusters: Sequence[tuple[int, int]]) -> ConfidenceInterval | None:
    """Return the 95% interval of the share over all clusters; None without draws.

    It is Wilson's interval for the number of independent draws with the same standard error. If clusters
    differ more than by chance, Student's quantile is used, because their variance is estimated from few of
    them.

    Args:
        clusters: successes and draws of each.
    """
    times, draws = sum(each for each, _ in clusters), sum(each for _, each in clusters)
    if not 0 < times < draws:
        return wilson(times, draws)
    share = times / draws
    error = _ratio_error([(float(each), n) for each, n in clusters])
    alone = sqrt(share * (1 - share) / draws)
    if error is None or error <= alone * (1 + _ROUNDING) or len(clusters) == draws:
        return wilson(times, draws)
    worth = share * (1 - share) / (error * error)
    return wilson(share * worth, worth, student(len(clusters) - 1))


def clustered_mean(
    clusters: Sequence[Sequence[float]], scale: Scale | None = None
) -> ConfidenceInterval | None:
    """Return the 95% interval of the mean over all values for a sample of whole clusters.

    It is Student's interval from the standard error between clusters, within the scale. Even if clusters
    agree, values at the ends of the scale may remain unseen: the interval is at least as wide as if they were
    as frequent as Wilson's interval allows for unseen events. If all values are at the ends, it is Wilson's.
    None if a value is not finite, or if all agree and there is no scale. A scale that values exceed is
    ignored.

    Args:
        clusters: the values of each. Empty clusters are ignored.
    """
    not_empty = [values for values in clusters if values]
    every = [value for values in not_empty for value in values]
    if not not_empty or not all(map(isfinite, every)):
        return None
    mean, half = _mean_and_half(not_empty)
    if scale is None or not all(scale[0] <= value <= scale[1] for value in every):
        return ConfidenceInterval(mean - half, mean + half) if half > 0 and isfinite(half) else None
    low, high = scale
    if all(len(values) == 1 for values in not_empty) and set(every) <= set(scale):
        share = wilson(every.count(high), len(not_empty))
        return share and ConfidenceInterval(low + (high - low) * share.low, low + (high - low) * share.high)
    none = wilson(0, len(not_empty))
    unseen = none.high if none else 1.0  # the largest share of an event that was never seen
    return ConfidenceInterval(
        max(low, min(mean - half, mean - unseen * (mean - low))),
        min(high, max(mean + half, mean + unseen * (high - mean))),
    )


def _mean_and_half(clusters: Sequence[Sequence[float]]) -> tuple[float, float]:
    sums = [(sum(values), len(values)) for values in clusters]
    mean = sum(total for total, _ in sums) / sum(n for _, n in sums)
    error = _ratio_error(sums)
    if error is None or error <= _ROUNDING * max(1.0, abs(mean)):
        return mean, 0.0
    return mean, student(len(clusters) - 1) * error


def _ratio_error(sums: Sequence[tuple[float, int]]) -> float | None:
    clusters, total_n = len(sums), sum(n for _, n in sums)
    if clusters < 2:
        return None
    mean = sum(total for total, _ in sums) / total_n
    # `hypot` avoids overflow in squares.
    return sqrt(clusters / (clusters - 1)) * hypot(*(total - mean * n for total, n in sums)) / total_n


def pass_hat_k(n: int, passed: int, most: int | None = None) -> list[float]:
    """Return the probabilities that 1, 2, … draws all pass, up to n or to `most` draws (pass^k).

    The unbiased estimate is C(passed, k) / C(n, k): the share of all choices of k draws that have all passed.
    """
    factors = (max(0, passed - k) / (n - k) for k in range(min(n, most or n)))
    return list(accumulate(factors, mul))
