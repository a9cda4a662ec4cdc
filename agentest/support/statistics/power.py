"""Statistical power: which drop of a pass rate is detectable with a number of draws.

Exact, from the binomial distribution. A drop is detectable if a threshold on passed draws reports it in at
most 5 of 100 samples at the higher rate and in at least 80 of 100 at the lower rate.
"""

from __future__ import annotations

from math import exp, lgamma, log

_FALSE_ALARM_RATE = 0.05
_DETECTION_RATE = 0.8
_STEPS = 30


def detectable_rate(draws: int, rate: float) -> float | None:
    """Return the highest rate that this many draws distinguish from a higher one (between 0 and 1).

    None if there is none, because even zero passed draws may be chance.
    """
    most = _rejection_threshold(draws, rate)
    if most is None:
        return None
    low, high = 0.0, rate
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if _cumulative_probability(most, draws, middle) >= _DETECTION_RATE
            else (low, middle)
        )
    return low


def _rejection_threshold(draws: int, rate: float) -> int | None:
    """Return the largest number of passed draws that is too small for the rate."""
    total, most = 0.0, None
    for passed in range(draws + 1):
        total += _chance(passed, draws, rate)
        if total > _FALSE_ALARM_RATE:
            return most
        most = passed
    return most


def _cumulative_probability(most: int, draws: int, rate: float) -> float:
    """Return the probability that at most this many draws pass."""
    return sum(_chance(passed, draws, rate) for passed in range(most + 1))


def _chance(passed: int, draws: int, rate: float) -> float:
    if not 0 < rate < 1:
        return float(passed == (draws if rate else 0))
    ways = lgamma(draws + 1) - lgamma(passed + 1) - lgamma(draws - passed + 1)
    return exp(ways + passed * log(rate) + (draws - passed) * log(1 - rate))
