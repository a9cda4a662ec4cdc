"""How sure a whole run's numbers are, worked out of the rows of its scenarios.

Rows are all that a report, a finished run and one that is under way have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from agentest.domain.metrics import Range, scale_of
from agentest.support.json_text import Json
from agentest.support.statistics.intervals import Interval, clustered_mean, clustered_share, pass_hat_k

_SHOWN_K = (2, 3, 5, 10, 20, 50, 100)
_YES_OR_NO: Range = (0.0, 1.0)


def figures(rows: Sequence[Json]) -> Json:
    """`rates` and `averages`, with intervals; `skipped`: metrics that were not scored, and why.

    Where several agents were run, each has figures of its own.

    Args:
        rows: of `overview.scenario_row`.
    """
    agents = list(dict.fromkeys(row["agent"] for row in rows if row["agent"]))
    parts: dict[str, Sequence[Json]] = {
        agent: [row for row in rows if row["agent"] == agent] for agent in agents
    }
    if len(agents) < 2:
        parts = {agents[0] if agents else "": rows}
    return {
        "rates": [rate for agent, mine in parts.items() for rate in _rates(agent, mine)],
        "averages": [average for agent, mine in parts.items() for average in _averages(agent, mine)],
        "skipped": _skipped(rows),
    }


def margin(averages: Mapping[str, Any], thresholds: Mapping[str, Any]) -> float | None:
    """By how much the closest average is above its threshold: a share of the metric's scale.

    Below 0: it is missed. None: there is no threshold for a number.
    """
    return min(
        (
            (averages[name] - least) / _width(name, least)
            for name, least in thresholds.items()
            if _number(averages.get(name)) and _number(least)
        ),
        default=None,
    )


def _width(metric: str, threshold: float) -> float:
    low, high = scale_of(metric) or (0.0, max(abs(threshold), 1.0))
    return high - low


def _rates(agent: str, rows: Iterable[Json]) -> Iterator[Json]:
    """How many conversations passed, and pass^k; nothing where none passed or failed."""
    held = [(round(rate["value"] * rate["n"]), rate["n"]) for row in rows if (rate := row.get("passRate"))]
    n, passed = sum(of for _, of in held), sum(times for times, _ in held)
    if not n:
        return
    yield {
        "agent": agent,
        "passRate": {"value": passed / n, "n": n, **_ends(clustered_share(held))},
        "scenarios": len(held),
        "passHatK": _all_pass(held),
    }


def _all_pass(held: Iterable[tuple[int, int]]) -> dict[str, float]:
    """k → the mean of pass^k over the scenarios of several conversations, as far as each has it."""
    several = [pass_hat_k(n, passed) for passed, n in held if n > 1]
    most = min(map(len, several), default=0)
    return {str(k): round(mean(each[k] for each in several), 6) for k in _SHOWN_K if k <= most}


def _averages(agent: str, rows: Iterable[Json]) -> Iterator[Json]:
    found: dict[str, list[Json]] = {}
    for row in rows:
        for name, value in row["averages"].items():
            if _number(value):
                found.setdefault(name, []).append(row)
    for name, mine in found.items():
        yield _average(agent, name, mine)


def _average(agent: str, name: str, rows: Sequence[Json]) -> Json:
    """A metric: the average of one scenario as it is, that of several as the mean of theirs."""
    values = [row["averages"][name] for row in rows]
    limits = [row["thresholds"][name] for row in rows if _number(row.get("thresholds", {}).get(name))]
    lowest = min(rows, key=lambda row: row["averages"][name])
    return {
        "metric": name,
        "agent": agent,
        **_pooled(name, rows, values),
        "scale": list(scale_of(name) or _YES_OR_NO) if _on_scale(name, values) else None,
        "scenarios": len(rows),
        "lowest": {"name": lowest["name"], "agent": lowest["agent"], "value": lowest["averages"][name]},
        "thresholds": sorted({min(limits), max(limits)}) if limits else [],
        "missed": sum(name in row["metrics"] for row in rows),
    }


def _pooled(name: str, rows: Sequence[Json], values: Sequence[float]) -> Json:
    if len(rows) == 1:
        figure = rows[0].get("intervals", {}).get(name) or {"n": None, "low": None, "high": None}
        return {**figure, "value": values[0]}
    scale = (scale_of(name) or _YES_OR_NO) if _on_scale(name, values) else None
    found = clustered_mean([[value] for value in values], scale)
    return {"value": mean(values), "n": len(values), **_ends(found)}


def _on_scale(name: str, values: Iterable[float]) -> bool:
    low, high = scale_of(name) or _YES_OR_NO
    return all(low <= value <= high for value in values)


def _skipped(rows: Iterable[Json]) -> list[Json]:
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        for metric, why in row.get("skippedMetrics", {}).items():
            metrics = found.setdefault(why, {})
            metrics[metric] = metrics.get(metric, 0) + 1
    return [
        {"why": why, "metrics": list(metrics), "scenarios": max(metrics.values())}
        for why, metrics in found.items()
    ]


def _ends(interval: Interval | None) -> Json:
    return {"low": interval.low, "high": interval.high} if interval else {"low": None, "high": None}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
