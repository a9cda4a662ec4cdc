"""The difference of two shares, or of two means of clustered values, with its interval and a one-sided test.

Values are drawn in *clusters* (the turns of a conversation), and clusters belong to *strata* (the
conversations of a scenario), which exist on both sides. With six or more strata, the strata count as the
sample: a cluster bootstrap gives the interval, and swapping the sides of whole strata the test. With fewer,
clusters are the sample within each stratum: Student's interval, and a permutation test if clusters are few.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, combinations, product
from math import comb, erfc, exp, floor, inf, isinf, lgamma, log, log1p, prod, sqrt
from operator import itemgetter
from random import Random

from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.intervals import Z_95, wilson

Cluster = tuple[float, int]  # sum and number of its values

_MIN_STRATA = 6  # with fewer strata, no swap is rare enough to be significant: 2 of 32 are one in sixteen
_MAX_BLOCKS = 128
"""More strata are combined into this many groups, which bounds the time and leaves the result unchanged."""
_RESAMPLES = 2000
_SEED = 20_260_101
_MOST_PERMUTED = 12
_MAX_P_TO_PERMUTE = 0.04
"""Above this p-value, Student's approximation suffices and no permutation test is run."""
_MOST_SWAPPED = 11
_ROUNDING = 1e-9
_ENOUGH, _ENOUGH_STRATA = 10**6, 40  # more permutations than this make no difference
_BESIDE_ZERO = 0.026


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """The clusters of one stratum on both sides, each with at least one value."""

    before: Sequence[Cluster]
    after: Sequence[Cluster]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A share or a mean in a base and a new sample.

    Attributes:
        n_base, n_new: number of values.
        low, high: the 95% interval of `new - base`; None if the values do not determine it.
        p: one-sided p-value of the observed direction, not adjusted for multiple tests. Above 0.025 if the
            interval contains 0; None if nothing was tested.
        least: the smallest `p` possible with so few values, whatever they are.
    """

    base: float
    new: float
    n_base: int
    n_new: int
    low: float | None = None
    high: float | None = None
    p: float | None = None
    least: float = 1.0

    @property
    def value(self) -> float:
        return self.new - self.base


def _in_agreement(found: Difference) -> Difference:
    if abs(found.value) <= _ROUNDING:
        return replace(found, p=1.0)
    ends = [end * found.value > 0 for end in (found.low, found.high) if end is not None]
    return found if all(ends) else replace(found, p=max(found.p or 0.0, _BESIDE_ZERO))


def mean_difference(strata: Sequence[Stratum]) -> Difference | None:
    """Return the difference over all strata with values on both sides; None if there are none.

    The result is deterministic.
    """
    comparable = [stratum for stratum in strata if stratum.before and stratum.after]
    if not comparable:
        return None
    sums = [(*_total(stratum.before), *_total(stratum.after)) for stratum in comparable]
    before, n_before, after, n_after = (sum(column) for column in zip(*sums, strict=True))
    averages = before / n_before, after / n_after
    is_sample = len(comparable) >= _MIN_STRATA
    low, high, p = _by_strata(sums) if is_sample else _by_clusters(comparable, sums, averages)
    return _in_agreement(
        Difference(
            base=averages[0],
            new=averages[1],
            n_base=int(n_before),
            n_new=int(n_after),
            low=low,
            high=high,
            p=p,
            least=_min_p_value(comparable),
        )
    )


_Sure = tuple[float | None, float | None, float]
_Sums = tuple[float, int, float, int]


def _total(clusters: Sequence[Cluster]) -> Cluster:
    return sum(total for total, _ in clusters), sum(n for _, n in clusters)


def _by_strata(sums: Sequence[_Sums]) -> _Sure:
    columns = _blocks(sums)
    total = _added(columns)
    observed = total[2] / total[3] - total[0] / total[1]
    p = _swap_p_value(columns, observed)
    random = Random(_SEED)
    blocks = range(len(columns[0]))
    drawn = []
    for _ in range(_RESAMPLES):
        chosen = itemgetter(*random.choices(blocks, k=len(blocks)))
        before, n_before, after, n_after = (sum(chosen(column)) for column in columns)
        drawn.append(after / n_after - before / n_before)
    drawn.sort()
    low, high = drawn[round(0.025 * _RESAMPLES)], drawn[round(0.975 * _RESAMPLES) - 1]
    if high - low <= _ROUNDING:
        return None, None, p
    n = len(blocks)  # a bootstrap of few draws is too narrow, so it is widened like Student's interval
    wider = quantile(n - 1) / Z_95 * sqrt(n / (n - 1))
    return observed + (low - observed) * wider, observed + (high - observed) * wider, p


_Columns = tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]


def _blocks(sums: Sequence[_Sums]) -> _Columns:
    blocks = [sums[i::_MAX_BLOCKS] for i in range(min(len(sums), _MAX_BLOCKS))]
    rows = [[sum(column) for column in zip(*block, strict=True)] for block in blocks]
    first, second, third, fourth = zip(*rows, strict=True)
    return first, second, third, fourth


def _added(columns: _Columns) -> _Sums:
    return sum(columns[0]), int(sum(columns[1])), sum(columns[2]), int(sum(columns[3]))


def _swap_p_value(columns: _Columns, observed: float) -> float:
    before, n_before, after, n_after = _added(columns)
    common = (before + after) / (n_before + n_after)
    parts = [
        (d - common * nd) / n_after - (b - common * nb) / n_before
        for b, nb, d, nd in zip(*columns, strict=True)
    ]
    telling = [part for part in parts if abs(part) > _ROUNDING]
    least = abs(observed) - _ROUNDING
    if len(telling) <= _MOST_SWAPPED:
        signs = product((1, -1), repeat=len(telling))
        is_larger = [sum(map(float.__mul__, telling, map(float, each))) >= least for each in signs]
        return sum(is_larger) / len(is_larger)
    random = Random(_SEED)
    total = sum(telling)
    larger = 0
    for _ in range(_RESAMPLES - 1):
        bits = random.getrandbits(len(telling))
        swapped = sum(part for i, part in enumerate(telling) if bits >> i & 1)
        larger += total - 2 * swapped >= least
    return (larger + 1) / _RESAMPLES


def _by_clusters(strata: Sequence[Stratum], sums: Sequence[_Sums], averages: tuple[float, float]) -> _Sure:
    observed = averages[1] - averages[0]
    least = _min_p_value(strata)
    sides = ([s.before for s in strata], averages[0]), ([s.after for s in strata], averages[1])
    errors = [each for clusters, average in sides for each in _stratum_errors(clusters, average)]
    known = [error for error in errors if error is not None]
    square = sum(each for each, _ in known)
    # Neither a single cluster nor identical ones show how much clusters differ.
    if len(known) < len(errors) or square <= _ROUNDING**2:
        p = least if len(strata) == 1 else max(least, _swap_p_value(_blocks(sums), observed))
        return None, None, p
    freedom = floor(square**2 / sum(each**2 / degrees for each, degrees in known) * 10) / 10
    half = quantile(freedom) * sqrt(square)
    p = max(least, two_sided(observed / sqrt(square), freedom) / 2)
    is_few = sum(len(s.before) + len(s.after) for s in strata) <= _MOST_PERMUTED
    if p < _MAX_P_TO_PERMUTE and len(strata) == 1 and is_few:
        p = _permutation_p_value(strata[0], observed)
    return observed - half, observed + half, p


def _stratum_errors(
    strata: Sequence[Sequence[Cluster]], average: float
) -> Iterator[tuple[float, int] | None]:
    values = sum(n for clusters in strata for _, n in clusters)
    for clusters in strata:
        if len(clusters) < 2:
            yield None
            continue
        off = [total - average * n for total, n in clusters]
        middle = sum(off) / len(off)
        squares = sum((each - middle) ** 2 for each in off)
        yield len(off) / (len(off) - 1) * squares / values**2, len(off) - 1


def _min_p_value(strata: Sequence[Stratum]) -> float:
    ways = prod(
        min(comb(len(s.before) + len(s.after), len(s.before)), _ENOUGH) for s in strata[:_ENOUGH_STRATA]
    )
    return 1 / ways


def _permutation_p_value(stratum: Stratum, observed: float) -> float:
    clusters = (*stratum.before, *stratum.after)
    total, n = _total(clusters)
    is_larger = []
    for chosen in combinations(clusters, len(stratum.before)):
        before, n_before = _total(chosen)
        difference = (total - before) / (n - n_before) - before / n_before
        is_larger.append((difference if observed > 0 else -difference) >= abs(observed) - _ROUNDING)
    return sum(is_larger) / len(is_larger)


_STEPS = 300
_TINY = 1e-300
_CLOSE = 1e-14


def two_sided(t: float, freedom: float) -> float:
    """Return the two-sided p-value of `t` for this number of degrees of freedom (above 0)."""
    if isinf(t):
        return 0.0
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


@lru_cache(maxsize=1024)
def quantile(freedom: float, outside: float = 0.05) -> float:
    """Return Student's two-sided quantile with a share of `outside` beyond it."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > outside and high < 1e12:
        low, high = high, high * 4
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, freedom) > outside else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x))
    if x < (a + 1) / (a + b + 2):
        return front * _continued_fraction(a, b, x) / a
    return 1 - front * _continued_fraction(b, a, 1 - x) / b


def _continued_fraction(a: float, b: float, x: float) -> float:
    upper, lower = 1.0, _inverse(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = _inverse(1 + term * lower)
            upper = 1 + term / upper or _TINY
            step = upper * lower
            value *= step
        if abs(step - 1) < _CLOSE:
            break
    return value


def _inverse(value: float) -> float:
    return 1 / (value or _TINY) if value != inf else 0.0


Share = tuple[int, int]  # successes and draws

_SEARCH_STEPS = 200
_EXACT_UP_TO = 200  # above this size of one sample, the normal distribution is accurate enough


def share_difference(base: Share, new: Share) -> Difference:
    """Return the difference of two shares, each of at least one draw."""
    low, high = newcombe(base, new)
    return _in_agreement(
        Difference(
            base=base[0] / base[1],
            new=new[0] / new[1],
            n_base=base[1],
            n_new=new[1],
            low=low,
            high=high,
            p=shares_differ(base, new),
            least=shares_differ((base[1], base[1]), (0, new[1])),
        )
    )


def shares_differ(first: Share, second: Share) -> float:
    """Return the one-sided p-value that two shares differ in the observed direction.

    Barnard's exact test with the score statistic, which uses the worst case of the common share. With small
    samples, Fisher's test would miss obvious differences (3 of 3 and 0 of 3).
    """
    (a, m), (b, n) = first, second
    if m == 0 or n == 0 or a * n == b * m:
        return 1.0
    if a * n < b * m:
        (a, m), (b, n) = second, first
    if max(m, n) > _EXACT_UP_TO:
        return erfc(_score(a, m, b, n) / sqrt(2)) / 2
    return _barnard(*min((a, m, b, n), (n - b, n, m - a, m)))  # each distinct case is computed once


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
    common = (a + b) / (m + n)
    error = sqrt(common * (1 - common) * (1 / m + 1 / n))
    return (a / m - b / n) / error if error else 0.0


@lru_cache(maxsize=4096)
def _barnard(a: int, m: int, b: int, n: int) -> float:
    least = _score(a, m, b, n) - _ROUNDING
    # For each first count, the second counts that are less extreme than observed; they are contiguous.
    nearer = [[y for y in range(n + 1) if _score(x, m, y, n) < least] for x in range(m + 1)]
    spans = [(each[0], each[-1] + 1) if each else (0, 0) for each in nearer]
    return max(_probability_of_extreme(i / _SEARCH_STEPS, m, n, spans) for i in range(1, _SEARCH_STEPS))


def _probability_of_extreme(share: float, m: int, n: int, nearer: Sequence[tuple[int, int]]) -> float:
    upto = [0.0, *accumulate(_binomial_probabilities(n, share))]
    first = _binomial_probabilities(m, share)
    return sum(p * (1 - (upto[high] - upto[low])) for p, (low, high) in zip(first, nearer, strict=True))


def _binomial_probabilities(n: int, share: float) -> list[float]:
    yes, no = log(share), log1p(-share)
    log_factorial = lgamma(n + 1)
    return [
        exp(log_factorial - lgamma(k + 1) - lgamma(n - k + 1) + k * yes + (n - k) * no) for k in range(n + 1)
    ]
