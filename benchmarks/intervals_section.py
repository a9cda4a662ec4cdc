"""How often 95 % intervals hold the truth, for agents of known pass rates and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import mean
from typing import Any

from benchmarks.process import printed_json
from benchmarks.results import Found, Target, table
from benchmarks.workload import Options

_SAMPLES = 4_000


_RATES = (
    "Share of the samples whose 95 % interval holds the truth. The pass rate of one scenario, by its true "
    "rate (exact):"
)
_RUNS = (
    "The pass rate of a run whose scenarios pass in 80 % of their conversations in the mean, each at a "
    f"rate of its own ({_SAMPLES:,} samples):"
)
_AVERAGES = (
    "An average of a metric from 1 to 5, over conversations of four turns that go together; share, and mean "
    f"width ({_SAMPLES:,} samples):"
)


def section(_: Options) -> Found:
    """Measure, and tell it."""
    told = printed_json("benchmarks.interval_coverage", f"--samples={_SAMPLES}")
    wilson, runs, scores = told["wilson"], told["runs"], told["scores"]
    sizes = [f"{n} conversations" for n in wilson]
    parts = [
        _RATES,
        table(("conversations", *(f"{rate:.0%}" for rate in told["rates"]), "mean"), _rate_rows(wilson)),
        _RUNS,
        table(("rates", "scenarios", "conversations each", "hold the truth", "mean width"), _run_rows(runs)),
        _AVERAGES,
        table(("scores", *sizes), _score_rows(scores)),
    ]
    targets = (
        _target("pass rates, 3 to 50 conversations", [held for row in wilson.values() for held in row]),
        _target("pass rates of runs, 5 to 30 scenarios", [run["held"] for run in runs]),
        _target("averages, 3 to 50 conversations", [score["held"] for score in scores]),
    )
    return Found("\n\n".join(parts), targets)


def _target(what: str, held: Sequence[float]) -> Target:
    return Target(f"{what}: intervals that hold the truth, in the mean", 100 * mean(held), 94, "%", True)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _rate_rows(wilson: Mapping[str, Sequence[float]]) -> list[list[str]]:
    return [[n, *map(_share, held), _share(mean(held))] for n, held in wilson.items()]


def _run_rows(runs: Sequence[dict[str, Any]]) -> list[list[str]]:
    keys = "scenarios", "count", "each"
    return [[*(str(run[key]) for key in keys), _share(run["held"]), _share(run["width"])] for run in runs]


def _score_rows(scores: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [name, *(f"{_share(score['held'])}, {score['width']:.2f}" for score in of_name)]
        for name, of_name in groupby(scores, key=lambda score: score["scores"])
    ]
