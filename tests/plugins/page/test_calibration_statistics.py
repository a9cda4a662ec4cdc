"""Agreement in numbers: against values from the literature, and what must hold of any of them."""

from __future__ import annotations

from statistics import fmean, pvariance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest.plugins.page.labels.agreement import (
    counted,
    kappa_interval,
    kappa_of_counts,
    weighted_kappa,
)
from agentest.support.statistics.intervals import wilson


@pytest.mark.parametrize(
    ("times", "of", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson(times: int, of: int, low: float, high: float) -> None:
    """The intervals of Newcombe's paper of 1998 (method 3)."""
    found = wilson(times, of)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_zero_labels_have_no_interval() -> None:
    assert wilson(0, 0) is None


@pytest.mark.parametrize(
    ("counts", "kappa"),
    [
        ((20, 5, 10, 15), 0.4),
        ((45, 15, 25, 15), 0.1304),
        ((25, 35, 5, 35), 0.2593),
        ((118, 5, 2, 0), -0.0234),
    ],
)
def test_kappa(counts: tuple[int, int, int, int], kappa: float) -> None:
    """Worked examples that text books and encyclopedias give, one of them with agreement by chance alone."""
    assert kappa_of_counts(counts) == pytest.approx(kappa, abs=5e-5)


def test_kappa_is_undefined_for_a_single_value() -> None:
    """Two raters who always give the same value show nothing about their agreement."""
    assert kappa_of_counts((0, 0, 0, 9)) is None
    assert kappa_of_counts((0, 0, 0, 0)) is None
    assert weighted_kappa([(4, 4), (4, 4)]) is None
    assert weighted_kappa([]) is None


def test_weighted_kappa() -> None:
    """With quadratic weights it is a matter of means and variances alone (Fleiss and Cohen, 1973)."""
    first, second = [1, 2, 3, 4, 5, 5, 1, 2], [1, 2, 4, 4, 5, 3, 2, 2]
    apart = fmean((a - b) ** 2 for a, b in zip(first, second, strict=True))
    by_chance = pvariance(first) + pvariance(second) + (fmean(first) - fmean(second)) ** 2
    value = weighted_kappa(list(zip(first, second, strict=True)))
    assert value == pytest.approx(1 - apart / by_chance)
    assert value == pytest.approx(0.8110, abs=5e-5)


yes_or_no = st.tuples(st.booleans(), st.booleans())


@given(st.lists(yes_or_no, min_size=1))
def test_kappa_is_bounded_and_symmetric(pairs: list[tuple[bool, bool]]) -> None:
    """It lies between -1 and 1, is 1 for equal raters, and does not mind who is who."""
    value = kappa_of_counts(counted(pairs))
    assert value == kappa_of_counts(counted((b, a) for a, b in pairs))
    if value is not None:
        assert -1 <= value <= 1
        assert (value == 1) is all(a == b for a, b in pairs)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1))
def test_weighted_kappa_is_bounded(pairs: list[tuple[int, int]]) -> None:
    """It lies between -1 and 1, and is 1 for equal raters only."""
    value = weighted_kappa(pairs)
    if value is not None:
        assert -1 - 1e-9 <= value <= 1
        assert (value == 1) is all(a == b for a, b in pairs)


@given(st.integers(1, 500).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_an_interval_holds_its_share(counted: tuple[int, int]) -> None:
    """The share lies in its interval, which lies between 0 and 1."""
    times, of = counted
    found = wilson(times, of)
    assert found is not None
    assert 0 <= found.low <= times / of + 1e-12
    assert times / of - 1e-12 <= found.high <= 1


def test_the_bootstrap_draws_conversations() -> None:
    """It is the same every time; the more conversations, the narrower; the same turns in fewer are less."""
    turn = [(True, True)] * 3 + [(False, False)] * 4 + [(True, False)]
    many, few = [[pair] for pair in turn * 10], [turn[n::8] * 10 for n in range(8)]
    first, again, clustered = kappa_interval(many), kappa_interval(many), kappa_interval(few)
    assert first is not None
    assert clustered is not None
    assert first == again
    assert clustered.high - clustered.low > first.high - first.low
    assert kappa_interval([[(False, False)]] * 5) is None


def test_the_bootstrap_is_as_wide_as_the_standard_error_says() -> None:
    """For many independent labels, it is 1.96 of Fleiss' standard errors of kappa on either side."""
    table = (400, 100, 200, 300)
    kinds = [(True, True), (True, False), (False, True), (False, False)]
    found = kappa_interval([[kind] for kind, times in zip(kinds, table, strict=True) for _ in range(times)])
    assert found is not None
    error = fleiss_error(table)
    assert (found.low, found.high) == pytest.approx(
        (0.4 - 1.96 * error, 0.4 + 1.96 * error), abs=0.08 * error
    )


def fleiss_error(table: tuple[int, int, int, int]) -> float:
    """The standard error of kappa for large numbers (Fleiss, Cohen and Everitt, 1969)."""
    n = sum(table)
    both, first, second, neither = (times / n for times in table)
    left, right = (both + first, second + neither), (both + second, first + neither)
    seen, by_chance = both + neither, left[0] * right[0] + left[1] * right[1]
    kappa = (seen - by_chance) / (1 - by_chance)
    same = sum(
        share * (1 - (left[k] + right[k]) * (1 - kappa)) ** 2 for k, share in enumerate((both, neither))
    )
    # Weighted by the other rater's share of the row and the first one's of the column.
    apart = (1 - kappa) ** 2 * (first * (right[0] + left[1]) ** 2 + second * (right[1] + left[0]) ** 2)
    rest = (kappa - by_chance * (1 - kappa)) ** 2
    return float(((same + apart - rest) / n) ** 0.5 / (1 - by_chance))


def test_intervals_depend_on_the_number_of_conversations() -> None:
    """Twenty turns of two conversations have a wider interval than those of twenty."""
    turns = [(True, True)] * 10 + [(False, False)] * 10
    many, few = kappa_interval([[turn] for turn in turns]), kappa_interval([turns[:10], turns[10:]])
    assert many is not None
    assert few is not None
    assert few.low < many.low - 0.1


clusters = st.lists(st.lists(yes_or_no, max_size=6), max_size=30)


@settings(max_examples=300, deadline=None)
@given(clusters)
def test_an_interval_of_kappa_has_a_width(clusters: list[list[tuple[bool, bool]]]) -> None:
    """Wherever kappa is defined its interval contains it, lies between -1 and 1, and is not a point."""
    kappa = kappa_of_counts(counted(pair for cluster in clusters for pair in cluster))
    found = kappa_interval(clusters, resamples=100)
    if kappa is None:
        assert found is None
        return
    assert found is not None
    assert -1 <= found.low <= kappa <= found.high <= 1
    assert found.high - found.low > 1e-4


@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ((10, 0, 0, 10), (0.6, 0.75), (1, 1)),
        ((500, 0, 0, 500), (0.98, 0.999), (1, 1)),
        ((0, 5, 0, 15), (-0.4, -0.1), (0.3, 0.6)),
        ((1, 0, 0, 19), (-0.1, 0.35), (1, 1)),
    ],
    ids=["always right", "right a thousand times", "never sees a fault", "one fault"],
)
@pytest.mark.slow
def test_what_never_varied_may_still_vary(
    counts: tuple[int, int, int, int], low: tuple[float, float], high: tuple[float, float]
) -> None:
    """A judge that was right 20 times may be wrong the next time; with more labels it is surer."""
    kinds = [(True, True), (True, False), (False, True), (False, False)]
    pairs = [[kind] for kind, times in zip(kinds, counts, strict=True) for _ in range(times)]
    found = kappa_interval(pairs)
    assert found is not None
    assert low[0] <= found.low <= low[1]
    assert high[0] <= found.high <= high[1]
    assert kappa_interval([[pair for cluster in pairs for pair in cluster]]) is not None


@given(st.integers(1, 10**6).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_an_interval_of_a_share_has_a_width(counted: tuple[int, int]) -> None:
    """However many labels there are, even if all agree."""
    found = wilson(*counted)
    assert found is not None
    assert found.low < found.high
