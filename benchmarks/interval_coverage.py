"""How often 95 % intervals hold the truth: `python -m benchmarks.interval_coverage`, printed as JSON.

In a process of its own, as it imports Agentest. Rates of single draws are worked out exactly, the rest is
drawn from seeded random numbers: it is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from math import comb
from random import Random
from typing import Any

from agentest.support.statistics.intervals import ConfidenceInterval, clustered_mean, clustered_share, wilson

_SIZES = (3, 5, 10, 20, 50)
_RATES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
_SEED = 15
_ROUNDING = 1e-9

_SCENARIOS = {
    "all alike": lambda _: 0.8,
    "from about 55% to 97%": lambda random: random.betavariate(8, 2),
    "mostly always, some hardly ever": lambda random: random.betavariate(2, 0.5),
}
"""How the pass rates of scenarios are drawn; 80 % in the mean."""
_SCORES = {
    "2 to 5, mostly 4": ((2, 3, 4, 5), (5, 25, 60, 10)),
    "1 to 5, mostly 5": ((1, 2, 3, 4, 5), (10, 10, 10, 30, 40)),
    "4 or 5": ((4, 5), (50, 50)),
    "5, one in ten a 1": ((1, 5), (10, 90)),
}
"""Values and weights that a conversation's level is drawn from; its turns lie around it."""


def _holds(found: ConfidenceInterval | None, truth: float) -> bool:
    return found is not None and found.low - _ROUNDING <= truth <= found.high + _ROUNDING


def _of_rate(n: int, rate: float) -> float:
    """The chance that Wilson's interval of n conversations holds the rate; exact."""
    chances = (
        comb(n, k) * rate**k * (1 - rate) ** (n - k) * _holds(wilson(k, n), rate) for k in range(n + 1)
    )
    return sum(chances)


def _drawn(draw: Callable[[], ConfidenceInterval | None], truth: float, samples: int) -> dict[str, float]:
    found = [draw() for _ in range(samples)]
    widths = [each.high - each.low for each in found if each]
    return {
        "held": sum(_holds(each, truth) for each in found) / samples,
        "width": sum(widths) / len(widths),
    }


def _run(
    random: Random, rate: Callable[[Random], float], scenarios: int, each: int
) -> ConfidenceInterval | None:
    rates = [rate(random) for _ in range(scenarios)]
    return clustered_share([(sum(random.random() < one for _ in range(each)), each) for one in rates])


def _scores(
    random: Random, values: tuple[int, ...], weights: tuple[int, ...], n: int
) -> ConfidenceInterval | None:
    """Of n conversations of four turns: each turn is at the conversation's level, or drawn anew."""
    held = []
    for level in random.choices(values, weights, k=n):
        turns = (random.choices(values, weights)[0] if random.random() < 0.3 else level for _ in range(4))
        held.append([float(turn) for turn in turns])
    return clustered_mean(held, (1.0, 5.0))


def _runs(random: Random, samples: int) -> list[dict[str, Any]]:
    return [
        {"scenarios": name, "count": count, "each": each}
        | _drawn(partial(_run, random, rate, count, each), 0.8, samples)
        for name, rate in _SCENARIOS.items()
        for count in (5, 10, 30)
        for each in (3, 10)
    ]


def _averages(random: Random, samples: int) -> list[dict[str, Any]]:
    found = []
    for name, (values, weights) in _SCORES.items():
        mean = sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
        for n in _SIZES:
            drawn = _drawn(partial(_scores, random, values, weights, n), mean, samples)
            found.append({"scores": name, "n": n} | drawn)
    return found


def _measure(samples: int) -> dict[str, Any]:
    random = Random(_SEED)
    return {
        "rates": _RATES,
        "wilson": {n: [_of_rate(n, rate) for rate in _RATES] for n in _SIZES},
        "runs": _runs(random, samples),
        "scores": _averages(random, samples),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=4_000)
    print(json.dumps(_measure(parser.parse_args().samples)))
