"""Intervals of shares and means, pass^k and detectable differences, each computed in a second way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from math import nan, sqrt
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.report.content import CONVERSATIONS_NEEDED
from agentest.support.statistics.intervals import (
    ConfidenceInterval,
    clustered_mean,
    clustered_share,
    pass_hat_k,
    student,
    wilson,
)
from agentest.support.statistics.sequential import detectable_rate

SCALE = (1.0, 5.0)
clusters = st.lists(st.lists(st.integers(1, 5).map(float), max_size=5), min_size=1, max_size=8)


@given(st.lists(st.booleans(), min_size=1, max_size=9))
def test_pass_hat_k_is_the_share_of_choices_that_all_pass(outcomes: list[bool]) -> None:
    """pass^k is the result of checking every choice of k conversations."""
    found = pass_hat_k(len(outcomes), sum(outcomes))
    assert found[:2] == pass_hat_k(len(outcomes), sum(outcomes), 2)
    assert len(found) == len(outcomes)
    for k, value in enumerate(found, start=1):
        choices = list(combinations(outcomes, k))
        assert value == pytest.approx(sum(map(all, choices)) / len(choices))


def test_pass_hat_k_is_unbiased() -> None:
    """Over all outcomes of four conversations, by their chance, pass^k averages to the rate's power."""
    rate = 0.7
    for k in range(1, 5):
        weighed = (
            rate ** sum(held) * (1 - rate) ** (4 - sum(held)) * pass_hat_k(4, sum(held))[k - 1]
            for held in product([True, False], repeat=4)
        )
        assert sum(weighed) == pytest.approx(rate**k)


@given(st.integers(1, 300), st.data())
def test_wilson_has_the_rates_that_the_score_test_accepts(n: int, data: st.DataObject) -> None:
    """The interval ends at the rates from which the observed share is 1.96 standard errors away."""
    times = data.draw(st.integers(0, n))
    found = wilson(times, n)
    assert found is not None
    for end in (found.low, found.high):
        if 0 < end < 1:
            assert abs(times / n - end) == pytest.approx(1.96 * sqrt(end * (1 - end) / n), rel=1e-3)
    assert 0 <= found.low <= times / n <= found.high <= 1


def test_more_draws_narrow_the_interval() -> None:
    """Every interval contains its share, lies between 0 and 1, and is narrower with ten times the draws."""
    for n in range(1, 40):
        for times in range(n + 1):
            few, many = wilson(times, n), wilson(10 * times, 10 * n)
            assert few
            assert many
            assert 0 <= few.low <= many.low <= times / n <= many.high <= few.high <= 1


def test_equal_clusters_give_wilsons_interval() -> None:
    """If scenarios differ no more than by chance, their conversations count as independent."""
    assert clustered_share([(1, 2), (1, 2), (1, 2)]) == wilson(3, 6)
    assert clustered_share([(1, 1), (0, 1), (1, 1)]) == wilson(2, 3)
    assert clustered_share([(9, 9), (9, 9)]) == wilson(18, 18)
    assert clustered_share([(7, 10)]) == wilson(7, 10)
    assert clustered_share([]) is None


def test_different_clusters_widen_the_interval() -> None:
    """If one scenario always passes and another never does, more conversations of both add nothing."""
    few, many = (clustered_share([(n, n), (0, n), (n, n), (0, n)] * 3) for n in (5, 500))
    alone = wilson(6 * 500, 12 * 500)
    assert few
    assert many
    assert alone
    assert width(many) == pytest.approx(width(few))
    assert width(many) > 10 * width(alone)


def test_few_clusters_take_students_quantile() -> None:
    """Four scenarios of five, two all passed and two all failed, are worth three draws.

    With Student's quantile 3.182 for three degrees of freedom, Wilson's interval is 0.5 ± 0.439; with 1.96 it
    would be 0.5 ± 0.375.
    """
    found = clustered_share([(5, 5), (0, 5), (5, 5), (0, 5)])
    assert found
    assert (found.low, found.high) == pytest.approx((0.0608, 0.9392), abs=0.0005)


def test_means_use_students_distribution() -> None:
    """Three means 3, 4, 5 have the standard error 1 / sqrt(3), and Student's quantile for them is 4.303."""
    half = 4.303 / sqrt(3)
    for values in ([[3.0], [4.0], [5.0]], [[3.0, 3.0], [4.0, 4.0], [], [5.0, 5.0]]):
        found = clustered_mean(values)
        assert found == ConfidenceInterval(pytest.approx(4 - half), pytest.approx(4 + half))
    assert clustered_mean([[3.0], [4.0], [5.0]], SCALE) == ConfidenceInterval(pytest.approx(4 - half), 5.0)


@given(clusters, st.integers(2, 4))
def test_repeated_turns_do_not_narrow_the_interval(held: list[list[float]], times: int) -> None:
    """A conversation that repeats all scores several times adds no information."""
    once, often = clustered_mean(held), clustered_mean([values * times for values in held])
    assert (once is None) is (often is None)
    if once and often:
        assert (often.low, often.high) == (pytest.approx(once.low), pytest.approx(once.high))


@given(clusters)
def test_an_interval_lies_on_its_scale_and_never_collapses(held: list[list[float]]) -> None:
    """For any scores, the interval contains the mean, stays on the scale and is not a point."""
    values = [value for cluster in held for value in cluster]
    found = clustered_mean(held, SCALE)
    assert (found is None) is (not values)
    if found:
        assert 1 <= found.low < found.high <= 5
        assert found.low - 1e-9 <= sum(values) / len(values) <= found.high + 1e-9


def test_equal_scores_still_have_an_interval() -> None:
    """Without spread, the interval is Wilson's on a scale, and unknown without one."""
    assert clustered_mean([[5.0], [5.0], [5.0]], SCALE) == ConfidenceInterval(
        pytest.approx(2.754, abs=1e-3), 5.0
    )
    assert clustered_mean([[5.0] * 8], SCALE) == ConfidenceInterval(pytest.approx(1.826, abs=1e-3), 5.0)
    assert clustered_mean([[1.0], [0.0], [1.0]], (0.0, 1.0)) == wilson(2, 3)
    assert clustered_mean([[5.0], [5.0]]) is None
    assert clustered_mean([[5.0, 1.0]]) is None
    assert clustered_mean([[nan], [1.0]], SCALE) is None


def test_values_outside_the_scale_have_no_interval() -> None:
    """A scale that the values violate bounds nothing."""
    assert clustered_mean([[7.0], [7.0]], SCALE) is None
    found = clustered_mean([[7.0], [9.0]], SCALE)
    assert found
    assert found.high > 9


def test_huge_numbers_have_an_interval() -> None:
    """Squares that overflow cause no error."""
    found = clustered_mean([[1e200], [2e200], [3e200]])
    assert found
    assert found.high == pytest.approx(2e200 + 4.303e200 / sqrt(3))
    assert clustered_mean([[1e308], [1e308], [-1e308]]) is None


def test_students_quantile_goes_on_beyond_its_table() -> None:
    """Beyond the table the quantile falls on towards the normal distribution's."""
    assert [student(n) for n in (1, 30)] == [12.706, 2.042]
    assert student(31) == pytest.approx(2.0395, abs=0.004)
    assert student(120) == pytest.approx(1.9799, abs=0.001)


def width(interval: ConfidenceInterval) -> float:
    return interval.high - interval.low


def draw_share(random: Random) -> ConfidenceInterval | None:
    return wilson(sum(random.random() < 0.8 for _ in range(10)), 10)


def draw_clustered(random: Random) -> ConfidenceInterval | None:
    rates = [random.betavariate(8, 2) for _ in range(12)]
    return clustered_share([(sum(random.random() < rate for _ in range(5)), 5) for rate in rates])


def draw_mean(random: Random) -> ConfidenceInterval | None:
    """Conversations of one to four turns, which go together."""
    held = []
    for _ in range(10):
        level = random.choice([2, 3, 4])
        held.append([float(level + random.choice([-1, 0, 1])) for _ in range(random.randint(1, 4))])
    return clustered_mean(held, SCALE)


@pytest.mark.parametrize(
    ("draw", "truth"),
    [(draw_share, 0.8), (draw_clustered, 0.8), (draw_mean, 3.0)],
    ids=["share", "clustered share", "clustered mean"],
)
def test_intervals_have_their_stated_coverage(
    draw: Callable[[Random], ConfidenceInterval | None], truth: float
) -> None:
    """At least 930 of 1,000 samples have the known truth in their interval."""
    random = Random(15)
    found = [draw(random) for _ in range(1_000)]
    assert sum(each is not None and each.low <= truth <= each.high for each in found) >= 930


@pytest.mark.parametrize(("draws", "rate"), [(3, 0.9), (13, 0.9), (10, 0.8), (1, 0.97)])
def test_detectable_differences(draws: int, rate: float) -> None:
    """A detectable rate is wrongly rejected in at most 5 of 100 samples, and rightly in 80."""
    told = detectable_rate(draws, rate)
    assert told is not None

    def at_most(most: int, each: float) -> float:
        outcomes = (sum(held) for held in product([0, 1], repeat=draws))
        return sum(each**n * (1 - each) ** (draws - n) for n in outcomes if n <= most)

    most = max(n for n in range(draws + 1) if at_most(n, rate) <= 0.05)
    assert at_most(most, told) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("lower", "needed"), CONVERSATIONS_NEEDED.items())
def test_the_number_of_conversations_needed(lower: float, needed: int) -> None:
    """The reported number is the first that distinguishes the two rates."""
    *fewer, enough = (detectable_rate(draws, 0.9) or 0.0 for draws in range(1, needed + 1))
    assert max(fewer) < lower <= enough
    assert detectable_rate(1, 0.9) is None
