"""Exact tests of two shares, and the interval of their difference.

If there is no difference, the tests report one at most as often as their level, however small the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import erfc, exp, lgamma, log, log1p, sqrt

from agentest.support.statistics.intervals import wilson

Share = tuple[int, int]
"""Successes and draws."""

_SEARCH_STEPS = 200
"""Number of steps in the search over the common share."""
_EXACT_UP_TO = 200
"""Above this size of one sample, the normal distribution is accurate enough."""
_ROUNDING = 1e-9


def mcnemar(worse: int, better: int) -> float:
    """Return the exact two-sided p-value of McNemar's test.

    Args:
        worse, better: pairs that changed in each direction. Unchanged pairs carry no information.
    """
    changed = worse + better
    fewer, ways = 0, 1
    for k in range(min(worse, better) + 1):
        fewer += ways
        ways = ways * (changed - k) // (k + 1)
    return min(1.0, 2 * fewer / (1 << changed))


def shares_differ(first: Share, second: Share) -> float:
    """Return the two-sided p-value that two shares differ.

    Barnard's exact test with the score statistic, which uses the worst case of the common share. With small
    samples, Fisher's test would miss obvious differences (3 of 3 and 0 of 3).
    """
    (a, m), (b, n) = first, second
    if m == 0 or n == 0 or a * n == b * m:
        return 1.0
    if max(m, n) > _EXACT_UP_TO:
        return erfc(_score(a, m, b, n) / sqrt(2))
    # Each distinct case is computed once.
    return _barnard(*min((a, m, b, n), (m - a, m, n - b, n)))


def newcombe(first: Share, second: Share) -> tuple[float, float]:
    """Return the 95% interval of the second share minus the first, by Newcombe's method with Wilson scores.

    Both shares need at least one draw.
    """
    before, after = first[0] / first[1], second[0] / second[1]
    old, new = wilson(*first), wilson(*second)
    assert old
    assert new
    down = sqrt((after - new.low) ** 2 + (old.high - before) ** 2)
    up = sqrt((new.high - after) ** 2 + (before - old.low) ** 2)
    return max(-1.0, after - before - down), min(1.0, after - before + up)


def holm(likelihoods: Sequence[float]) -> list[float]:
    """Adjust p-values by Holm's method: in at most 5% of families, one falsely stays below 0.05."""
    order = sorted(range(len(likelihoods)), key=likelihoods.__getitem__)
    raised = (likelihoods[i] * (len(order) - rank) for rank, i in enumerate(order))
    adjusted = [0.0] * len(order)
    for i, value in zip(order, accumulate(raised, max), strict=True):
        adjusted[i] = min(1.0, value)
    return adjusted


def holm_of_testable(tests: Sequence[tuple[float, float]], level: float = 0.05) -> list[float]:
    """Adjust p-values by Holm's method, excluding tests that could not be significant (Tarone's method).

    Excluded tests do not weaken the others and are adjusted to 1.

    Args:
        tests: the p-value of each test and the smallest possible one.
    """
    family = 1
    while sum(least * family <= level for _, least in tests) > family:
        family += 1
    testable = [i for i, (_, least) in enumerate(tests) if least * family <= level]
    adjusted = [1.0] * len(tests)
    for i, value in zip(testable, holm([tests[i][0] for i in testable]), strict=True):
        adjusted[i] = value
    return adjusted


def _score(a: int, m: int, b: int, n: int) -> float:
    """Return the difference of two shares in standard errors of their common share."""
    common = (a + b) / (m + n)
    error = sqrt(common * (1 - common) * (1 / m + 1 / n))
    return abs(a / m - b / n) / error if error else 0.0


@lru_cache(maxsize=4096)
def _barnard(a: int, m: int, b: int, n: int) -> float:
    least = _score(a, m, b, n) - _ROUNDING
    # For each first count, the second counts that are less extreme than observed; they are contiguous.
    nearer = [[y for y in range(n + 1) if _score(x, m, y, n) < least] for x in range(m + 1)]
    spans = [(each[0], each[-1] + 1) if each else (0, 0) for each in nearer]
    return max(_probability_of_extreme(i / _SEARCH_STEPS, m, n, spans) for i in range(1, _SEARCH_STEPS))


def _probability_of_extreme(share: float, m: int, n: int, nearer: Sequence[tuple[int, int]]) -> float:
    """Return the probability of counts that are not less extreme, if both are drawn with this share."""
    upto = [0.0, *accumulate(_binomial_probabilities(n, share))]
    first = _binomial_probabilities(m, share)
    return sum(p * (1 - (upto[high] - upto[low])) for p, (low, high) in zip(first, nearer, strict=True))


def _binomial_probabilities(n: int, share: float) -> list[float]:
    """Return the probability of each count in n draws."""
    yes, no = log(share), log1p(-share)
    whole = lgamma(n + 1)
    return [exp(whole - lgamma(k + 1) - lgamma(n - k + 1) + k * yes + (n - k) * no) for k in range(n + 1)]
