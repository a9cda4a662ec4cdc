"""Sequential tests: their stated error, checked over every path of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from math import prod

import pytest

from agentest.support.statistics.sequential import (
    ErrorRates,
    MeanTest,
    SequentialDecision,
    SequentialTest,
    ShareTest,
    Undecidable,
    boundaries,
    look,
    replay_values,
)

ERROR = 0.05
BOTH = ErrorRates(missed=ERROR, holds=ERROR)


def share(least: float, last: int = 10, first: int = 2, errors: ErrorRates = BOTH) -> ShareTest:
    return ShareTest(least=least, first=first, last=last, errors=errors)


def scores(least: float, first: int = 2) -> MeanTest:
    return MeanTest(least=least, low=1, high=5, first=first, errors=BOTH)


def outcomes(test: SequentialTest, chances: dict[float, float], last: int) -> Counter[SequentialDecision]:
    """The probability of each result, over all paths of values with these probabilities."""
    found: Counter[SequentialDecision] = Counter()
    for path in product(chances, repeat=last):
        found[replay_values(test, path).standing] += prod(chances[value] for value in path)  # type: ignore[assignment]
    return found


def bernoulli(chance: float) -> dict[float, float]:
    return {1.0: chance, 0.0: 1 - chance}


@pytest.mark.parametrize("last", [3, 7, 10])
@pytest.mark.parametrize("least", [0.05, 0.5, 0.8])
def test_a_decided_share_is_wrong_as_seldom_as_stated(least: float, last: int) -> None:
    """Over all 2^n paths, a share that holds is rarely decided as missed, and the reverse."""
    test = share(least, last)
    for truth in (least, min(1.0, least + 0.05), 1.0):
        assert outcomes(test, bernoulli(truth), last)[SequentialDecision.MISSED] <= ERROR + 1e-12
    for truth in (least, max(0.0, least - 0.05), 0.0):
        assert outcomes(test, bernoulli(truth), last)[SequentialDecision.HOLDS] <= ERROR + 1e-12


def test_clear_cases_are_decided_early() -> None:
    """A share far from the limit is decided early, so the allowed error is used."""
    assert outcomes(share(0.5), bernoulli(0.05), 10)[SequentialDecision.MISSED] > 0.7
    assert outcomes(share(0.5), bernoulli(0.95), 10)[SequentialDecision.HOLDS] > 0.7
    assert replay_values(share(0.8, 20, 3), [0, 0, 0]).standing is SequentialDecision.MISSED
    good = [replay_values(share(0.8, 20, 3), [1] * n).standing is SequentialDecision.HOLDS for n in (14, 15)]
    assert good == [False, True]


@pytest.mark.parametrize(
    "chances",
    [
        {1.0: 0.5, 5.0: 0.5},
        {1.0: 0.05, 3.0: 0.9, 5.0: 0.05},
        {1.0: 0.25, 3.0: 0.25, 4.0: 0.5},
        {2.0: 0.5, 3.0: 0.25, 5.0: 0.25},
    ],
    ids=["extremes", "narrow", "low tail", "high tail"],
)
def test_a_decided_mean_is_wrong_as_seldom_as_stated(chances: dict[float, float]) -> None:
    """Over all paths, for distributions exactly at the required mean, both errors stay within the limit."""
    least = sum(value * chance for value, chance in chances.items())
    found = outcomes(scores(least), chances, 7)
    assert found[SequentialDecision.MISSED] <= ERROR
    assert found[SequentialDecision.HOLDS] <= ERROR


def test_the_order_of_values_does_not_matter_for_a_mean() -> None:
    """While a mean is open, the order of the values so far does not matter."""
    first, second = replay_values(scores(3.5), [5, 2, 4]), replay_values(scores(3.5), [4, 5, 2])
    assert first.up == pytest.approx(second.up)
    assert first.down == pytest.approx(second.down)


@pytest.mark.parametrize(
    ("test", "values", "standing"),
    [
        (share(1.0), [1, 1, 0], SequentialDecision.MISSED),
        (share(1.0), [1] * 10, SequentialDecision.WILL_HOLD),
        (share(0.0), [], SequentialDecision.HOLDS),
        (share(0.5), [1, 0, 1, 0, 1, 0, 1, 1], SequentialDecision.WILL_HOLD),
        (share(0.9), [1, 0, 1, 1, 1, 1, 1, 1, 0], SequentialDecision.WILL_BE_MISSED),
        (share(0.8), [0], SequentialDecision.OPEN),
        (scores(5.0), [5, 5, 4.5], SequentialDecision.MISSED),
        (scores(5.0), [5] * 50, SequentialDecision.OPEN),
        (scores(1.0), [], SequentialDecision.HOLDS),
        (scores(0.0), [1, 1], SequentialDecision.HOLDS),
        (scores(3.5), [4.8] * 7, SequentialDecision.OPEN),
        (scores(3.5), [4.8] * 12, SequentialDecision.HOLDS),
        (scores(4.0), [1.0] * 3, SequentialDecision.MISSED),
        (Undecidable(), [9.0] * 9, SequentialDecision.OPEN),
    ],
)
def test_decisions_of_known_values(
    test: SequentialTest, values: list[float], standing: SequentialDecision
) -> None:
    """All must be ones; nothing is required; the rest cannot change it; there are no values yet."""
    assert replay_values(test, values).standing is standing


def all_values(test: SequentialTest, count: int) -> Iterator[tuple[float, ...]]:
    return product(test.range, repeat=count)


@pytest.mark.parametrize("test", [share(0.8), share(0.5), scores(3.5), scores(4.5)])
def test_nothing_can_be_decided_before_the_fewest_further_values(test: SequentialTest) -> None:
    """For any values, the next look is exactly when a decision first becomes possible."""
    for values in ([], [test.range[1]] * 2, [*test.range]):
        fewest = look({"q": test}, {"q": values}, 6).fewest
        decided = [
            n
            for n in range(7)
            for more in all_values(test, n)
            if replay_values(test, [*values, *more]).standing is not SequentialDecision.OPEN
        ]
        assert fewest == min(decided, default=None)


def test_several_questions_are_decided_together() -> None:
    """One missed question decides; all must hold; one that cannot change any more proves nothing."""
    rate, mark = share(0.5, 10), scores(3.0)
    good, bad, mixed = [1.0] * 10, [0.0] * 6, [1.0, 0.0] * 5

    def standing(rates: list[float], marks: list[float]) -> SequentialDecision:
        return look({"rate": rate, "mark": mark}, {"rate": rates, "mark": marks}, 5).standing

    assert standing(good, [5.0] * 10) is SequentialDecision.HOLDS
    assert standing(good, [3.0] * 10) is SequentialDecision.OPEN
    assert standing(bad, [5.0] * 10) is SequentialDecision.MISSED
    assert standing(mixed, [5.0] * 10) is SequentialDecision.WILL_HOLD
    assert standing(mixed, [1.0] * 10) is SequentialDecision.MISSED
    assert look({}, {}, 5).standing is SequentialDecision.OPEN
    assert look({"q": Undecidable()}, {}, 5).fewest is None


def test_boundaries_of_many_values_are_cached() -> None:
    """The largest allowed number of values is computed once."""
    assert len(boundaries(0.9, 3, 1000, ERROR, "missed")) == 1000
    assert boundaries(0.9, 3, 1000, ERROR, "missed") is boundaries(0.9, 3, 1000, ERROR, "missed")
