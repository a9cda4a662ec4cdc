"""How often a comparison reports a change, with or without one: `python -m benchmarks.comparison_errors`.

In a process of its own, as it imports Agentest. Agents of known pass rates and scores are simulated by seeded
random numbers: it is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from random import Random
from statistics import mean
from typing import Any

from agentest.domain.reasons import MeasuredConversation
from agentest.domain.repeat_setting import Repeat
from agentest.domain.results import Status
from agentest.history.compared_runs import MeasuredRun, MeasuredScenario
from agentest.history.comparison import WORSE, Change, Comparison, compare_measured_runs
from agentest.runner.repetition import tests_of
from agentest.support.statistics.differences import Stratum, mean_difference, newcombe
from agentest.support.statistics.sequential import SequentialDecision

_SEED = 15
_RATES = (0.5, 0.7, 0.9, 1.0)
_FAMILIES = (1, 5, 20)
_SIZES = (3, 5, 10, 20)
_DROPS = ((1.0, 0.0), (1.0, 0.5), (0.9, 0.5), (0.9, 0.7))
_TURNS = 4
_LEVEL_SPREAD, _TURN_SPREAD = 0.6, 0.8
_SCORE_DROP = 0.5
_REPEAT = Repeat(max=20)
_ROUNDING = 1e-9
_DRAWN_FROM = 6
_MANY = 20
"""Comparisons of so many scenarios take longer: fewer samples are drawn."""


def _conversation(random: Random, rate: float, level: float | None) -> MeasuredConversation:
    """One that passes at this rate; with a level, its turns have scores from 1 to 5 around it."""
    sums = {}
    if level is not None:
        own = random.gauss(level, _LEVEL_SPREAD)
        scores = (min(5, max(1, round(random.gauss(own, _TURN_SPREAD)))) for _ in range(_TURNS))
        sums["helpfulness"] = (float(sum(scores)), _TURNS)
    return MeasuredConversation(passed=random.random() < rate, sums=sums)


def _scenario(
    random: Random, name: str, rate: float, n: int, level: float | None, **more: bool
) -> MeasuredScenario:
    held = tuple(_conversation(random, rate, level) for _ in range(n))
    return _of(name, held, **more)


def _of(name: str, held: tuple[MeasuredConversation, ...], **more: bool) -> MeasuredScenario:
    passed = all(each.passed for each in held)
    return MeasuredScenario(
        name=name,
        agent="agent",
        file="a.sim.py",
        line=1,
        status=Status.PASSED if passed else Status.FAILED,
        conversations=len(held),
        outcomes=[(float(bool(each.passed)), 1) for each in held],
        sums={name: [each.sums[name] for each in held] for name in held[0].sums},
        scripted=more.get("scripted", False),
        repeated=more.get("repeated", False),
    )


def _run(scenarios: Sequence[MeasuredScenario]) -> MeasuredRun:
    return MeasuredRun(label="run", started_at="", version="", agents=("agent",), scenarios=tuple(scenarios))


def _share(samples: int, told: Callable[..., bool], family: int = 1) -> float:
    random = Random(_SEED)
    samples = samples // 5 if family >= _MANY else samples
    return sum(told(random) for _ in range(samples)) / samples


def _same(
    random: Random, rates: Sequence[float], n: int, level: float | None = None, **more: bool
) -> Comparison:
    """Two runs of an agent that has not changed."""
    base, new = (
        _run([_scenario(random, f"s{i}", rate, n, level, **more) for i, rate in enumerate(rates)])
        for _ in range(2)
    )
    return compare_measured_runs(base, new)


def _alarms(samples: int, sizes: Sequence[int], change: Change, **more: bool) -> list[dict[str, Any]]:
    """How often something changed for the worse by chance; every scenario passes at one rate."""

    def told(random: Random, rate: float, family: int, n: int) -> bool:
        return change in _same(random, [rate] * family, n, **more).changes

    return [
        {
            "scenarios": family,
            "each": n,
            "alarms": [
                _share(samples, partial(told, rate=rate, family=family, n=n), family) for rate in _RATES
            ],
        }
        for family, n in product(_FAMILIES, sizes)
    ]


def _mixed_alarms(samples: int) -> list[dict[str, Any]]:
    """The same with scores, where each scenario has a rate of its own."""

    def told(random: Random, family: int, n: int) -> bool:
        rates = [random.uniform(0.5, 1.0) for _ in range(family)]
        return Change.REGRESSED in _same(random, rates, n, random.uniform(3.0, 4.5)).changes

    return [
        {"scenarios": family, "each": n, "alarms": _share(samples, partial(told, family=family, n=n), family)}
        for family, n in product(_FAMILIES, _SIZES)
    ]


def _any_alarms(samples: int) -> dict[str, float]:
    """How often runs of one agent are worse: 1 to 40 scenarios with any pass rates, 1 to 10 conversations."""
    random = Random(_SEED)
    found = []
    for _ in range(samples):
        rates = [random.random() for _ in range(random.randint(1, 40))]
        found.append(_same(random, rates, random.randint(1, 10)))
    return {
        "worse": mean(each.regressed for each in found),
        "broke": mean(Change.BROKE in each.changes for each in found),
        "regressed": mean(Change.REGRESSED in each.changes for each in found),
    }


def _repeat_alarms(samples: int) -> list[dict[str, Any]]:
    """The same for one scenario whose conversations end when its verdict against a pass rate is decided."""

    def held(random: Random, rate: float, wanted: float) -> MeasuredScenario:
        test, conversations = (
            tests_of(_REPEAT, {"pass_rate": wanted})["pass_rate"],
            list[MeasuredConversation](),
        )
        path = test.begin()
        while len(conversations) < _REPEAT.max and path.standing is SequentialDecision.OPEN:
            conversations.append(_conversation(random, rate, None))
            path = test.add(path, float(bool(conversations[-1].passed)))
        return _of("s", tuple(conversations), repeated=True)

    def told(random: Random, rate: float, wanted: float) -> bool:
        sides = (_run([held(random, rate, wanted)]) for _ in range(2))
        return Change.REGRESSED in compare_measured_runs(*sides).changes

    return [
        {
            "wanted": wanted,
            "alarms": [_share(samples, partial(told, rate=rate, wanted=wanted)) for rate in _RATES],
        }
        for wanted in (0.7, 0.8, 0.9)
    ]


def _rates_held(samples: int) -> dict[int, float]:
    """How often Newcombe's interval holds the true difference of two pass rates, in the mean over them."""
    random, found = Random(_SEED), dict[int, float]()
    for n in _SIZES:
        held = 0
        for before, after in product(_RATES, _RATES):
            for _ in range(samples):
                low, high = newcombe((_passing(random, before, n), n), (_passing(random, after, n), n))
                held += low - _ROUNDING <= after - before <= high + _ROUNDING
        found[n] = held / (samples * len(_RATES) ** 2)
    return found


def _passing(random: Random, rate: float, n: int) -> int:
    return sum(random.random() < rate for _ in range(n))


def _scores_held(samples: int) -> list[dict[str, Any]]:
    """The same of an average score whose levels fell by 0.2 in the mean, and how wide the intervals are.

    From six scenarios on the truth is that of all scenarios there could be, below that of these.
    """
    found = []
    for family, n in product(_FAMILIES, _SIZES):
        random, held, widths = Random(_SEED), 0, list[float]()
        for _ in range(samples):
            falls = [random.gauss(0.2, 0.2) for _ in range(family)]
            result = mean_difference([_stratum(random, fall, n) for fall in falls])
            assert result
            assert result.low is not None
            assert result.high is not None
            truth = -sum(falls) / family if family < _DRAWN_FROM else -0.2
            held += result.low <= truth <= result.high
            widths.append(result.high - result.low)
        found.append({"scenarios": family, "each": n, "held": held / samples, "width": mean(widths)})
    return found


def _stratum(random: Random, fall: float, n: int) -> Stratum:
    level = random.gauss(3.5, 0.3)
    return Stratum(before=_levels(random, level, n), after=_levels(random, level - fall, n))


def _levels(random: Random, level: float, n: int) -> list[tuple[float, int]]:
    own = (random.gauss(level, _LEVEL_SPREAD) for _ in range(n))
    return [(sum(random.gauss(each, _TURN_SPREAD) for _ in range(_TURNS)), _TURNS) for each in own]


def _found(samples: int) -> list[dict[str, Any]]:
    """How often the one scenario of several that dropped is said to have broken or regressed."""

    def told(random: Random, drop: tuple[float, float], family: int, n: int) -> bool:
        others = [0.9] * (family - 1)
        base, new = (
            _run([_scenario(random, f"s{i}", rate, n, None) for i, rate in enumerate((first, *others))])
            for first in drop
        )
        return compare_measured_runs(base, new).scenarios[0].change in WORSE

    return [
        {
            "drop": drop,
            "scenarios": family,
            "found": [_share(samples, partial(told, drop=drop, family=family, n=n), family) for n in _SIZES],
        }
        for drop in _DROPS
        for family in _FAMILIES
    ]


def _found_overall(samples: int) -> list[dict[str, Any]]:
    """How often a drop of all scenarios is found, by their pass rate or by a score."""

    def told(random: Random, drop: tuple[float, float], family: int, n: int) -> bool:
        base, new = (
            _run([_scenario(random, f"s{i}", rate, n, level) for i in range(family)])
            for rate, level in zip(drop, (4.2, 4.2 - _SCORE_DROP), strict=True)
        )
        return compare_measured_runs(base, new).regressed

    return [
        {
            "drop": drop,
            "scenarios": family,
            "found": [_share(samples, partial(told, drop=drop, family=family, n=n), family) for n in _SIZES],
        }
        for drop in ((0.9, 0.9), (0.9, 0.7))
        for family in _FAMILIES
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    samples = parser.parse_args().samples
    told = {
        "rates": _RATES,
        "sizes": _SIZES,
        "any": _any_alarms(4 * samples),
        "alarms": _alarms(samples, _SIZES, Change.REGRESSED),
        "mixed": _mixed_alarms(samples),
        "broke": _alarms(samples, (3, 4, 5, 10), Change.BROKE),
        "repeat": _repeat_alarms(samples),
        "rates_held": _rates_held(samples),
        "scores_held": _scores_held(samples),
        "found": _found(samples),
        "found_overall": _found_overall(samples),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
