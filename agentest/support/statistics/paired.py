"""Before and after: whether shares differ by more than chance would have it, and by how much.

Nothing here knows what was counted. The tests are exact: a difference that is none is found in at most as
many cases as they say, however few were counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import erfc, exp, lgamma, log, log1p, sqrt

from agentest.support.statistics.intervals import wilson

Share = tuple[int, int]
"""How many, of how many."""

_LIKELIHOODS = 200
"""Into how many steps the share that both may have in common is divided."""
_EXACT_UP_TO = 200
"""With more on one side, the normal distribution is as good."""
_ROUNDING = 1e-9


def mcnemar(worse: int, better: int) -> float:
    """How likely pairs go one way at least so often if either way is as likely: exact and two-sided.

    Args:
        worse, better: the pairs that changed, one way and the other; those that did not change say nothing.
    """
    changed = worse + better
    fewer, ways = 0, 1
    for k in range(min(worse, better) + 1):
        fewer += ways
        ways = ways * (changed - k) // (k + 1)
    return min(1.0, 2 * fewer / (1 << changed))


def shares_differ(first: Share, second: Share) -> float:
    """How likely two shares are at least so different if what they are drawn from is the same: two-sided.

    Barnard's exact test by the score statistic, which takes the worst case of what they have in common: where
    few were drawn, Fisher's test would not find what is plain (3 of 3 and 0 of 3).
    """
    (a, m), (b, n) = first, second
    if m == 0 or n == 0 or a * n == b * m:
        return 1.0
    if max(m, n) > _EXACT_UP_TO:
        return erfc(_score(a, m, b, n) / sqrt(2))
    # What is as likely is worked out once.
    return _barnard(*min((a, m, b, n), (m - a, m, n - b, n)))


def newcombe(first: Share, second: Share) -> tuple[float, float]:
    """The 95 % interval of the second share less the first, by Newcombe's method of Wilson's scores.

    Both are of something.
    """
    before, after = first[0] / first[1], second[0] / second[1]
    old, new = wilson(*first), wilson(*second)
    assert old
    assert new
    down = sqrt((after - new.low) ** 2 + (old.high - before) ** 2)
    up = sqrt((new.high - after) ** 2 + (before - old.low) ** 2)
    return max(-1.0, after - before - down), min(1.0, after - before + up)


def holm(likelihoods: Sequence[float]) -> list[float]:
    """The same, adjusted for how many there are: in at most 5 % of families one falsely stays below 0.05."""
    order = sorted(range(len(likelihoods)), key=likelihoods.__getitem__)
    raised = (likelihoods[i] * (len(order) - rank) for rank, i in enumerate(order))
    adjusted = [0.0] * len(order)
    for i, value in zip(order, accumulate(raised, max), strict=True):
        adjusted[i] = min(1.0, value)
    return adjusted


def holm_of_testable(tests: Sequence[tuple[float, float]], level: float = 0.05) -> list[float]:
    """Holm's adjustment, where some tests could not find anything, whatever was counted (Tarone's method).

    Those are no part of the family, so that they take nothing from the others; they are adjusted to 1.

    Args:
        tests: of each, how likely what was found is, and the least that this could have been.
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
    """How far apart two shares are, in standard errors of their common share."""
    common = (a + b) / (m + n)
    error = sqrt(common * (1 - common) * (1 / m + 1 / n))
    return abs(a / m - b / n) / error if error else 0.0


@lru_cache(maxsize=4096)
def _barnard(a: int, m: int, b: int, n: int) -> float:
    least = _score(a, m, b, n) - _ROUNDING
    # Of each first count, the second counts that are nearer than seen: they lie together.
    nearer = [[y for y in range(n + 1) if _score(x, m, y, n) < least] for x in range(m + 1)]
    spans = [(each[0], each[-1] + 1) if each else (0, 0) for each in nearer]
    return max(_likely(i / _LIKELIHOODS, m, n, spans) for i in range(1, _LIKELIHOODS))


def _likely(share: float, m: int, n: int, nearer: Sequence[tuple[int, int]]) -> float:
    """How likely counts are that are not nearer, where both are drawn with this share."""
    upto = [0.0, *accumulate(_binomial(n, share))]
    first = _binomial(m, share)
    return sum(p * (1 - (upto[high] - upto[low])) for p, (low, high) in zip(first, nearer, strict=True))


def _binomial(n: int, share: float) -> list[float]:
    """How likely each count of n draws is."""
    yes, no = log(share), log1p(-share)
    whole = lgamma(n + 1)
    return [exp(whole - lgamma(k + 1) - lgamma(n - k + 1) + k * yes + (n - k) * no) for k in range(n + 1)]
