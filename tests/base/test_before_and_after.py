"""Shares and averages before and after: exact tests, intervals and noise."""

from __future__ import annotations

from itertools import product
from math import comb, isclose
from random import Random

import pytest

from agentest.support.statistics.differences import (
    Difference,
    Stratum,
    holm,
    mean_difference,
    newcombe,
    quantile,
    share_difference,
    shares_differ,
    two_sided,
)


def by_brute_force(a: int, m: int, b: int, n: int) -> float:
    """Barnard's one-sided test that the first share is larger, written as it is defined."""

    def score(x: int, y: int) -> float:
        common = (x + y) / (m + n)
        error = (common * (1 - common) * (1 / m + 1 / n)) ** 0.5
        return (x / m - y / n) / error if error else 0.0

    least = score(a, b) - 1e-9
    tables = [(x, y) for x, y in product(range(m + 1), range(n + 1)) if score(x, y) >= least]

    def likely(p: float) -> float:
        return sum(comb(m, x) * comb(n, y) * p ** (x + y) * (1 - p) ** (m + n - x - y) for x, y in tables)

    return max(likely(i / 200) for i in range(1, 200))


@pytest.mark.parametrize(("first", "second"), [((3, 3), (0, 3)), ((5, 6), (1, 4)), ((9, 10), (4, 8))])
def test_shares_are_compared_exactly(first: tuple[int, int], second: tuple[int, int]) -> None:
    """Barnard's test is what its definition says, in the observed direction."""
    assert isclose(shares_differ(first, second), by_brute_force(*first, *second), rel_tol=1e-9)
    assert isclose(shares_differ(first, second), shares_differ(second, first))


def test_published_values() -> None:
    """Published results: Barnard's 1.894 and 0.068, Newcombe's example, Student's table."""
    assert isclose(shares_differ((7, 15), (12, 15)), 0.0341, abs_tol=2e-4)
    assert newcombe((48, 80), (56, 70)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert [round(quantile(freedom), 3) for freedom in (1, 5, 30)] == [12.706, 2.571, 2.042]
    assert isclose(two_sided(2.228, 10), 0.05, abs_tol=1e-4)
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_no_pairs_and_many_pairs() -> None:
    """No pairs give no result; hundreds are compared by the normal distribution."""
    assert shares_differ((0, 0), (3, 3)) == shares_differ((4, 4), (3, 3)) == 1.0
    assert shares_differ((900, 1000), (850, 1000)) < 0.001 < shares_differ((900, 1000), (880, 1000)) < 0.08


def scores(random: Random, strata: int, clusters: int, better: float = 0.0) -> list[Stratum]:
    """Scores of 1 to 5; strata differ, clusters in them too."""

    def side(level: float) -> list[tuple[float, int]]:
        made = []
        for _ in range(clusters):
            own, n = level + random.gauss(0, 0.4), random.choice((2, 3, 5))
            made.append((float(sum(min(5, max(1, round(random.gauss(own, 0.7)))) for _ in range(n))), n))
        return made

    levels = [random.gauss(3.2, 0.6) for _ in range(strata)]
    return [Stratum(before=side(level), after=side(level + better)) for level in levels]


@pytest.mark.parametrize(("strata", "clusters"), [(1, 3), (1, 10), (3, 4), (8, 3), (20, 1)])
def test_false_positives_are_rare(strata: int, clusters: int) -> None:
    """If nothing changed, about one test in twenty finds a difference, and as many intervals exclude 0."""
    random, rounds = Random(strata * 100 + clusters), 60 if strata < 6 else 24
    found = [mean_difference(scores(random, strata, clusters)) for _ in range(rounds)]
    held = [each for each in found if each]
    assert len(held) == rounds
    assert sum(each.p is not None and each.p <= 0.025 for each in held) <= 0.15 * rounds
    assert sum(not covers(each, 0.0) for each in held) <= 0.15 * rounds


def covers(found: Difference, value: float) -> bool:
    return found.low is None or found.high is None or found.low <= value <= found.high


def test_a_difference_is_found() -> None:
    """A point of five more or less is seen with twenty scenarios of three conversations, and with one of
    twelve."""
    for strata, clusters, better in ((20, 3, 1.0), (20, 3, -1.0), (1, 12, 1.0), (1, 12, -1.0)):
        found = mean_difference(scores(Random(7), strata, clusters, better))
        assert found is not None
        assert found.p is not None
        assert found.p < 0.005
        assert not covers(found, 0.0)


def test_constant_scores_have_no_interval() -> None:
    """Three and three equal scores give no interval; the test reports what so few can show."""
    found = mean_difference([Stratum(before=[(4.0, 1)] * 3, after=[(3.0, 1)] * 3)])
    assert found == Difference(base=4.0, new=3.0, n_base=3, n_new=3, p=0.05, least=0.05)
    assert mean_difference([Stratum(before=[(4.0, 1)], after=[])]) is None


def test_results_are_reproducible() -> None:
    """Random draws use a fixed seed: comparing the same two runs twice gives the same figures."""
    assert mean_difference(scores(Random(3), 30, 2)) == mean_difference(scores(Random(3), 30, 2))


def test_a_test_does_not_overrule_its_interval() -> None:
    """A p-value of at most 2.5 % never stands beside an interval that contains 0."""
    found = [mean_difference(scores(Random(seed), 7, 1, better=0.5)) for seed in range(60, 80)]
    found += [share_difference((a, 7), (b, 9)) for a, b in product(range(8), range(10))]
    raised = [each for each in found if each and each.p is not None and covers(each, 0.0)]
    assert all(each.p > 0.025 for each in raised if each.p is not None)
    assert any(each.p == 0.026 for each in raised)


def test_the_direction_does_not_matter() -> None:
    """A fall has the p-value of the same rise, also with other numbers of conversations on both sides."""
    before, after = (
        [(float(each), 1) for each in (2, 3, 3)],
        [(float(each), 1) for each in (3, 4, 4, 5, 5, 4, 3)],
    )
    rise = mean_difference([Stratum(before=before, after=after)])
    fall = mean_difference([Stratum(before=[(-v, n) for v, n in before], after=[(-v, n) for v, n in after])])
    assert rise is not None
    assert fall is not None
    assert rise.p == fall.p == 6 / 120
