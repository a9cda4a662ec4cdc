"""`agentest compare`: how often it finds what is not there, how often intervals hold, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from benchmarks.process import printed_json
from benchmarks.results import Found, Target, table
from benchmarks.workload import Options

_SAMPLES = 250
_MOST_ALARMS_PERCENT, _LEAST_HELD_PERCENT = 5, 94
_Rows = Sequence[Mapping[str, Any]]

_ANY = (
    "Pairs of runs of one agent with 1 to 40 scenarios of any pass rates and 1 to 10 conversations each. "
    "Nothing had changed, but {worse:.1%} were worse: in {broke:.1%} a scenario *broke*, and in "
    "{regressed:.1%} a scenario or a figure over all *regressed*."
)
_ALARMS = (
    "Share of the comparisons in which something *regressed* although nothing had changed, a scenario or a "
    "figure over all, by the true pass rate of every scenario:"
)
_MIXED = "Each scenario with a rate of its own from 50 % to 100 %, and with scores:"
_BROKE = (
    "Share of the comparisons in which a scenario *broke* although nothing had changed. No test decides it, "
    "so that what breaks is always found. If an agent is random, it is false as often as the table says:"
)
_REPEATED = (
    "One scenario of which both runs hold conversations until its verdict is decided (`repeat: 3..20`):"
)
_HELD = (
    "Share of the 95 % intervals that hold the true difference. Of pass rates (Newcombe), the mean over "
    "pairs of rates, and of averages from four turns a conversation, with the mean width:"
)
_FOUND = (
    "Share of the comparisons in which the one scenario that dropped is said to have broken or regressed:"
)
_OVERALL = (
    "The same where all scenarios dropped: their average score by half a point, and their pass rate as the "
    "row says; a figure over all, or a scenario:"
)


def section(_: Options) -> Found:
    """Measure, and tell it."""
    told = printed_json("benchmarks.comparison_errors", f"--samples={_SAMPLES}")
    sizes = [f"{n} conversations" for n in told["sizes"]]
    rates = [f"{rate:.0%}" for rate in told["rates"]]
    parts = [
        f"{_SAMPLES} comparisons a cell, {_SAMPLES // 5} of 20 scenarios: shares are off by a point or two.",
        _ANY.format(**told["any"]),
        _ALARMS,
        table(("scenarios", "conversations each", *rates), _alarm_rows(told["alarms"])),
        _MIXED,
        table(("scenarios", *sizes), _by_family(told["mixed"], "alarms")),
        _BROKE,
        table(("scenarios", "conversations each", *rates), _alarm_rows(told["broke"])),
        _REPEATED,
        table(("`pass_rate`", *rates), [[f"{r['wanted']:g}", *_shares(r["alarms"])] for r in told["repeat"]]),
        _HELD,
        table(("of", *sizes), [["pass rates", *_shares(told["rates_held"].values())], *_held_rows(told)]),
        _FOUND,
        table(("pass rate", "scenarios", *sizes), _found_rows(told["found"])),
        _OVERALL,
        table(("pass rate", "scenarios", *sizes), _found_rows(told["found_overall"])),
    ]
    return Found("\n\n".join(parts), _targets(told))


def _targets(told: Mapping[str, Any]) -> tuple[Target, ...]:
    return (
        Target("runs of one agent: worse", 100 * told["any"]["worse"], _MOST_ALARMS_PERCENT, "%"),
        _alarms("tests", [*told["alarms"], *told["mixed"]]),
        _alarms("tests with `repeat`", told["repeat"]),
        _held("pass rates", list(told["rates_held"].values())),
        _held("averages", [row["held"] for row in told["scores_held"]]),
    )


def _alarms(what: str, rows: _Rows) -> Target:
    """The mean over the rates of the worst row: a single cell is too few samples."""
    worst = max(mean(row["alarms"]) if isinstance(row["alarms"], list) else row["alarms"] for row in rows)
    return Target(f"{what}: false regressions, in the worst row", 100 * worst, _MOST_ALARMS_PERCENT, "%")


def _held(what: str, held: Sequence[float]) -> Target:
    claim = f"differences of {what}: intervals that hold the truth, in the mean"
    return Target(claim, 100 * mean(held), _LEAST_HELD_PERCENT, "%", True)


def _shares(values: Any) -> list[str]:
    return [f"{value:.1%}" for value in values]


def _alarm_rows(rows: _Rows) -> list[list[str]]:
    return [[str(row["scenarios"]), str(row["each"]), *_shares(row["alarms"])] for row in rows]


def _by_family(rows: _Rows, key: str) -> list[list[str]]:
    families = dict.fromkeys(row["scenarios"] for row in rows)
    return [[str(f), *_shares(row[key] for row in rows if row["scenarios"] == f)] for f in families]


def _held_rows(told: Mapping[str, Any]) -> list[list[str]]:
    rows = told["scores_held"]
    families = dict.fromkeys(row["scenarios"] for row in rows)
    return [
        [
            f"an average, {f} scenario{'' if f == 1 else 's'}",
            *(f"{row['held']:.1%}, {row['width']:.2f}" for row in rows if row["scenarios"] == f),
        ]
        for f in families
    ]


def _found_rows(rows: _Rows) -> list[list[str]]:
    return [
        [f"{row['drop'][0]:.0%} → {row['drop'][1]:.0%}", str(row["scenarios"]), *_shares(row["found"])]
        for row in rows
    ]
