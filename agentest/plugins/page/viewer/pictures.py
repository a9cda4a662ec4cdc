"""The data of the page's pictures: pass rates, scenarios by run, latencies, scores, cost and coverage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from agentest.domain.end_reason import REASONS_TO_STOP
from agentest.domain.transcript import ARGUMENTS_UNKNOWN
from agentest.support.json_text import Json
from agentest.support.statistics.intervals import wilson

_MOST_ROWS = 30
_BINS = 12
_SCORE_BINS = 8


def pictures(rows: Sequence[Json], trend: Sequence[Json]) -> Json:
    """Return the figures of all pictures that have enough of them.

    Args:
        rows: the results of `overview.scenario_row`.
        trend: one entry for each run, the latest last.
    """
    return {
        "runs": [_rate(each) for each in trend if _known(each)] if len(trend) > 1 else [],
        "heat": _heat(trend),
        "latencies": _latencies(rows),
        "scores": _scores(rows),
        "costs": _costs(rows),
        "tools": _tools(rows),
        "levels": _levels(rows),
    }


def _known(run: Json) -> int:
    return int(run.get("passed", 0) + run.get("failed", 0))


def _rate(run: Json) -> Json:
    passed, known = run.get("passed", 0), _known(run)
    interval = wilson(passed, known)
    assert interval is not None
    return {
        "id": run["id"],
        "startedAt": run["startedAt"],
        "value": passed / known,
        "low": interval.low,
        "high": interval.high,
        "passed": passed,
        "known": known,
    }


def _heat(trend: Sequence[Json]) -> Json:
    """Return the scenarios that did not pass in every run, with their status in each; most failures first."""
    states: dict[tuple[str, str], list[str]] = {}
    for at, run in enumerate(trend):
        for name, agent, status in run.get("statuses", ()):
            states.setdefault((name, agent), [""] * len(trend))[at] = status
    unsteady = {key: each for key, each in states.items() if {"failed", "errored"} & {*each}}
    ordered = sorted(unsteady.items(), key=lambda item: -sum(s in ("failed", "errored") for s in item[1]))
    return {
        "runs": [run["startedAt"] for run in trend],
        "rows": [
            {"name": name, "agent": agent, "states": each} for (name, agent), each in ordered[:_MOST_ROWS]
        ],
        "leftOut": max(0, len(ordered) - _MOST_ROWS),
    }


def _latencies(rows: Iterable[Json]) -> list[Json]:
    by_agent: dict[str, list[float]] = {}
    for row in rows:
        by_agent.setdefault(row["agent"], []).extend(row.get("latencies", ()))
    return [
        {
            "agent": agent,
            "p50": _percentile(values, 0.5),
            "p95": _percentile(values, 0.95),
            "bins": _bins(values),
        }
        for agent, values in by_agent.items()
        if len(values) > 1 and max(values) > 0
    ]


def _percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _bins(values: Sequence[float]) -> list[Json]:
    """Return bins whose width grows, because a few turns are much slower than the rest."""
    low, high = max(1.0, min(values)), max(values)
    factor = max(high / low, 1.0001) ** (1 / _BINS)
    edges = [low * factor**n for n in range(_BINS)] + [high]
    counts = [0] * _BINS
    for value in values:
        at = int(math.log(max(value, low) / low) / math.log(factor)) if value > low else 0
        counts[min(at, _BINS - 1)] += 1
    return [{"from": round(edges[n], 3), "to": round(edges[n + 1], 3), "n": counts[n]} for n in range(_BINS)]


def _scores(rows: Iterable[Json]) -> list[Json]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row["averages"].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(name, []).append(value)
    return [{"metric": name, "bins": _equal_bins(each)} for name, each in values.items() if len({*each}) > 1]


def _equal_bins(values: Sequence[float]) -> list[Json]:
    low, high = min(values), max(values)
    wide = (high - low) / _SCORE_BINS
    counts = [0] * _SCORE_BINS
    for value in values:
        counts[min(int((value - low) / wide), _SCORE_BINS - 1)] += 1
    return [
        {"from": round(low + n * wide, 3), "to": round(low + (n + 1) * wide, 3), "n": each}
        for n, each in enumerate(counts)
    ]


def _costs(rows: Iterable[Mapping[str, Any]]) -> list[Json]:
    costs = [(row["cost"], row["name"], row["agent"]) for row in rows if row.get("cost")]
    return [
        {"name": name, "agent": agent, "cost": cost}
        for cost, name, agent in sorted(costs, reverse=True)[:_MOST_ROWS]
    ]


_OK, _ERROR, _FAULT, _UNSEEN = _OUTCOMES = ("ok", "error", "fault", "unseen")
_MODEL = "the agent's model"
_LEVELS = ("unit", "integration", "scenario")
_WORST_FIRST = ("failed", "errored", "skipped", "passed")


def call_outcomes(turns: Iterable[Json]) -> list[list[Any]]:
    """Count tool calls and requests to the agent's model by outcome: `[tool, outcome, count]`."""
    counts: Counter[tuple[str, str]] = Counter()
    for turn in turns:
        counts.update((call["name"], _outcome(call)) for call in turn["toolCalls"])
        faults, requests = len(turn.get("faults", ())), turn.get("modelRequests", ())
        errors = sum("error" in request for request in requests)
        counts += Counter({(_MODEL, _OK): len(requests) - errors, (_MODEL, _FAULT): faults})
        counts += Counter({(_MODEL, _ERROR): max(0, errors - faults)})
    return [[*key, times] for key, times in counts.items()]


def _outcome(call: Json) -> str:
    result = call.get("result")
    if call.get("raised"):
        return _FAULT
    invalid = call.get("invalidArguments") not in (None, ARGUMENTS_UNKNOWN)
    if call.get("error") is not None or invalid or (isinstance(result, dict) and result.get("error")):
        return _ERROR
    return _OK if call.get("mocked") or call.get("byRealTool") or result is not None else _UNSEEN


def _tools(rows: Iterable[Json]) -> list[Json]:
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        for tool, outcome, times in row.get("outcomes", ()):
            counts.setdefault(tool, Counter())[outcome] += times
    ordered = sorted(counts.items(), key=lambda item: -item[1].total())
    shown = ordered[:_MOST_ROWS]
    return [{"tool": tool, **{name: found[name] for name in _OUTCOMES}} for tool, found in shown]


def _levels(rows: Iterable[Json]) -> list[Json]:
    """Return the worst status of each task and path by level, as `agentest coverage` places scenarios."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in (each for each in rows if each.get("status") in _WORST_FIRST):
        levels = [each for each in _LEVELS if each in row["tags"]] or [_level(row)]
        for cell in product(_named(row, "task:"), _named(row, "path:")):
            states = found.setdefault(cell, {})
            for level in levels:
                states[level] = min(states.get(level, "passed"), row["status"], key=_WORST_FIRST.index)
    return [
        {"name": f"{task}, {path}", "states": [states.get(level, "") for level in _LEVELS]}
        for (task, path), states in list(found.items())[:_MOST_ROWS]
    ]


def _level(row: Json) -> str:
    if not row.get("scripted"):
        return "scenario"
    return "integration" if "evalId" in row else "unit"


def _named(row: Json, prefix: str) -> Iterator[str]:
    tags = (tag.removeprefix(prefix).strip() for tag in row["tags"] if tag.startswith(prefix))
    return iter(dict.fromkeys(tags))


def is_scripted(endings: Iterable[str]) -> bool:
    """True if no simulated user decided when a conversation ended."""
    return not any(each in REASONS_TO_STOP for each in endings)
