"""Build the data that the page shows first: numbers, and one row for each scenario.

The input is the JSON of results.json and of the journal, so that reports, finished runs and active runs share
one path. The page searches ten thousand scenarios at once, so a row has only the fields that the list
filters, sorts and shows.
"""

from __future__ import annotations

import math
import re
import shlex
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise, product
from statistics import mean
from typing import Any

from agentest.domain.end_reason import IN_WORDS, REASONS_TO_STOP, Ending
from agentest.domain.metrics import Range, scale_of
from agentest.domain.results import CauseKind
from agentest.domain.root_causes import normalized_label, root_cause_id
from agentest.domain.transcript import ARGUMENTS_UNKNOWN
from agentest.domain.verdict import Severities
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.intervals import (
    ConfidenceInterval,
    clustered_mean,
    clustered_share,
    pass_hat_k,
    wilson,
)
from agentest.support.text import shortened

_SHOWN_CHARS = 240
_COUNTED_IN = ("intervals", "skippedMetrics", "labels", "latencies", "outcomes", "scripted")
"""Fields of rows that only the whole run needs; the list does not show them."""
_SIDES = re.compile(r"\n(?:expected \(|forbidden: |actual: )")
_HOLDING = ("matched", "free")


def brief(conversation: Json) -> Json:
    """Summarize a conversation in one row."""
    turns = conversation["turns"]
    every = [*turns, *filter(None, [conversation["unfinishedTurn"]])]
    faults = list(_faults(conversation))
    # The first turn to look at is one that a fault points to.
    indexes = [*(index for index, _ in faults), *_wrong_calls(conversation)]
    if unfinished := conversation["unfinishedTurn"]:
        indexes.append(unfinished["turnIndex"])
    return {
        "conversationId": conversation["conversationId"],
        "passed": conversation["passed"],
        "endedBy": conversation["endedBy"],
        "ended": IN_WORDS[Ending(conversation["endedBy"])],
        "errorSource": conversation["errorSource"],
        "turns": len(every),
        "toolCalls": sum(len(turn["toolCalls"]) for turn in every),
        "agentMs": round(sum(turn["latencyMs"] for turn in turns), 3),
        "latencies": [round(turn["latencyMs"], 1) for turn in turns],
        "outcomes": call_outcomes(every),
        "totalMs": (conversation.get("time") or {}).get("totalMs"),
        "first": _short(every[0]["userMessage"]) if every else "",
        "broke": min((index for index in indexes if index is not None), default=None),
        "why": _short(next((why for _, why in faults), "")),
        **({"invalid": _short(conversation["invalid"])} if conversation.get("invalid") else {}),
    }


def _mismatches(conversation: Json) -> Iterator[tuple[int | None, Json]]:
    per_turn = [(each["turnIndex"], each) for each in conversation["perTurnTrajectory"]]
    for index, trajectory in (*per_turn, (None, conversation["trajectory"])):
        for part in (trajectory.get("parts") or (trajectory,)) if trajectory else ():
            if part["matched"] is not True and not part.get("counted"):
                yield index, part


def _wrong_calls(conversation: Json) -> Iterator[int]:
    turns = [*conversation["turns"], *filter(None, [conversation["unfinishedTurn"]])]
    made = [turn["turnIndex"] for turn in turns for _ in turn["toolCalls"]]
    rows = (
        row for index, part in _mismatches(conversation) if index is None for row in part.get("alignment", ())
    )
    for row in rows:
        position = row.get("call")
        if position is not None and position < len(made) and row["status"] not in _HOLDING:
            yield made[position]


def without_sides(reason: str) -> str:
    """Return a trajectory's reason up to the sides."""
    return _SIDES.split(reason, maxsplit=1)[0]


def _faults(conversation: Json) -> Iterator[tuple[int | None, str]]:
    """Yield what went wrong, the gravest first: its turn, if one is to be looked at, and why."""
    if conversation["error"]:
        yield None, str(conversation["error"])
    for index, trajectory in _mismatches(conversation):
        name = f"{trajectory['name']}: " if trajectory.get("name") else ""
        differences = [
            f"{row.get('tool') or row['expected']}: {row['difference']}"
            for row in trajectory.get("alignment", ())
            if row["status"] == "different" and row.get("difference")
        ]
        yield index, name + "; ".join([without_sides(trajectory["reason"]), *differences])
    by_turn = conversation["evaluation"]["turnEvaluations"]
    checks = [(scores["turnIndex"], check) for scores in by_turn for check in scores["checks"]]
    checks += [(check.get("turnIndex"), check) for check in conversation.get("checks", ())]
    for index, check in checks:
        if not check["passed"]:
            yield index, f"{check['check']}: {check['reason']}"
    for criterion in conversation.get("criteria", ()):
        if criterion["result"] != "met":
            index = criterion["turnIndex"] if criterion["result"] == "violated" else None
            yield index, f"{criterion['text']}: {criterion['reason']}"
    goal = conversation["evaluation"].get("goalCompletion") or {}
    if goal.get("value") == 0:
        yield None, f"goal {goal.get('outcome', 'not reached')}: {goal['reason']}"
    for failure in conversation["labelledFailures"]:
        yield failure["turnIndex"], f"{failure['metric']}: {failure['label']}. {failure['reason']}"


@dataclass(slots=True)
class ConversationNumbers:
    """A scenario's conversations in numbers, without an object for each."""

    conversations: int = 0
    passed: int = 0
    turns: int = 0
    agent_ms: float = 0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    scripted: bool = True  # no simulated user ended one
    labelled: list[frozenset[str]] = field(default_factory=list)
    """The ids of the failures of each conversation that passed if none of them is severe."""

    def add(self, conversation: Json) -> None:
        """Count a conversation in the format of results.json."""
        turns, failures = conversation["turns"], [each["id"] for each in conversation["labelledFailures"]]
        every = [*turns, *filter(None, [conversation["unfinishedTurn"]])]
        latencies, outcomes = [turn["latencyMs"] for turn in turns], call_outcomes(every)
        self.scripted = self.scripted and conversation["endedBy"] not in REASONS_TO_STOP
        self.labelled += [frozenset(failures)] if failures and conversation["passed"] else []
        self.passed += conversation["passed"]
        self.agent_ms += round(sum(latencies), 3)
        self.latencies.extend(round(each, 1) for each in latencies)
        for tool, outcome, times in outcomes:
            self.outcomes[tool, outcome] += times
        self.turns += len(every)
        self.conversations += 1


def scenario_row(scenario: Json, numbers: ConversationNumbers, severities: Severities | None = None) -> Json:
    """Summarize a scenario in one row.

    Args:
        scenario: as in results.json; its conversations are ignored.
        severities: which conversations with labelled failures failed; None if `passed` says so already.
    """
    severe = severities.severe if severities else frozenset()
    ungraded = severities is not None and not severities.graded
    failed = sum(ungraded or not severe.isdisjoint(each) for each in numbers.labelled)
    costs = [role["cost"] for role in scenario["usage"].values()]
    kinds = {reason["kind"] for reason in scenario.get("reasons", ())}
    no_verdict = scenario["status"] in ("errored", "skipped")
    smallest = margin(scenario["averages"], scenario["thresholds"])
    errored = scenario["status"] == "errored"
    # The same headline as on the console: the first cause of the scenario's status, else the first failure.
    headlines = [
        *(c["title"] for c in scenario.get("causes", ()) if (c["kind"] == CauseKind.ERRORED) is errored),
        *(error["label"] for error in scenario["errors"] if error.get("fails")),
        *map(without_sides, scenario["failures"][:1]),
    ]
    return {
        **{key: scenario[key] for key in ("name", "agent", "file", "line", "tags", "status", "averages")},
        "passed": numbers.passed - failed,
        "conversations": numbers.conversations,
        "planned": scenario.get("plannedConversations", numbers.conversations),
        **{key: scenario[key] for key in ("passRate", "flaky", "evalSetId", "evalId") if key in scenario},
        "turns": numbers.turns,
        "agentMs": round(numbers.agent_ms, 3),
        "latencies": numbers.latencies,
        "outcomes": [[*key, times] for key, times in numbers.outcomes.items()],
        "scripted": numbers.scripted,
        "durationMs": scenario["durationMs"],
        "cost": None if None in costs else round(sum(costs), 6),
        "failure": _short(headlines[0]) if headlines else "",
        "failures": len(scenario["failures"]),
        "metrics": list(dict.fromkeys(r["metric"] for r in scenario.get("reasons", ()) if "metric" in r)),
        "warnings": len(scenario.get("warnings", ()))
        + sum("note" not in each for each in scenario.get("verdictWarnings", ())),
        **{key: scenario[key] for key in ("thresholds", *_COUNTED_IN) if scenario.get(key)},
        "causes": [root_cause_id(each["kind"], each["pattern"]) for each in scenario.get("causes", ())],
        "labels": [normalized_label(each["label"]) for each in scenario["errors"]],
        **({} if smallest is None else {"margin": round(smallest, 4)}),
        # Only the early end of the run keeps the scenario from a verdict.
        **({"unfinished": True} if no_verdict and kinds == {"interrupted"} else {}),
        # It stands for a file that did not load.
        **({"broken": True} if "file" in kinds else {}),
    }


def overview(
    *,
    run: Json,
    head: Json | None,
    scenarios: Sequence[Json],
    root_causes: Sequence[Json],
    trend: Sequence[Json] = (),
    left_out: int = 0,
    **more: Any,
) -> Json:
    """Build the complete overview.

    Args:
        run: the properties of the run: `id`, `state`, and the contents of run.json.
        head: results.json without its scenarios; None if the run has not ended.
        scenarios: the results of `scenario_row`.
        root_causes: `rootCauses` of results.json, or those found so far.
        trend: data from run.json of earlier runs; the latest is last.
        left_out: the number of conversations whose transcripts had no room.
        more: data that only one variant has.
    """
    known = {cause["id"] for cause in root_causes}
    joined = {label: cause["id"] for cause in root_causes for label in cause.get("labels", ())}

    def shown(row: Json) -> Json:
        judged = (joined.get(each) or root_cause_id(CauseKind.JUDGED, each) for each in row["labels"])
        causes = [id for id in dict.fromkeys((*row["causes"], *judged)) if id in known]
        return {**{key: row[key] for key in row if key not in _COUNTED_IN}, "causes": causes}

    return {
        "run": run,
        "head": head,
        "figures": figures(scenarios),
        "scenarios": [shown(row) for row in scenarios],
        "causes": root_causes,
        "trend": [{key: each[key] for key in each if key != "statuses"} for each in trend],
        "pictures": pictures(scenarios, trend),
        "leftOut": left_out,
        **more,
    }


def _short(text: str) -> str:
    return shortened(text, _SHOWN_CHARS)


_SHOWN_K = (2, 3, 5, 10, 20, 50, 100)
_YES_OR_NO: Range = (0.0, 1.0)


def figures(rows: Sequence[Json]) -> Json:
    """Return `rates` and `averages` with intervals, and `skipped`: metrics that were not scored, and why.

    Each agent of a comparison has its own figures.
    """
    agents = list(dict.fromkeys(row["agent"] for row in rows if row["agent"]))
    parts: dict[str, Sequence[Json]] = {
        agent: [row for row in rows if row["agent"] == agent] for agent in agents
    }
    if len(agents) < 2:
        parts = {agents[0] if agents else "": rows}
    by_reason: dict[str, dict[str, int]] = {}
    for row in rows:
        for metric, why in row.get("skippedMetrics", {}).items():
            metrics = by_reason.setdefault(why, {})
            metrics[metric] = metrics.get(metric, 0) + 1
    return {
        "rates": [rate for agent, mine in parts.items() for rate in _rates(agent, mine)],
        "averages": [average for agent, mine in parts.items() for average in _averages(agent, mine)],
        "skipped": [
            {"why": why, "metrics": list(metrics), "scenarios": max(metrics.values())}
            for why, metrics in by_reason.items()
        ],
    }


def margin(averages: Mapping[str, Any], thresholds: Mapping[str, Any]) -> float | None:
    """Return the smallest distance of an average from its threshold, as a share of the metric's scale.

    A negative value means that the threshold was missed. None if no numeric metric has a threshold.
    """
    margins = []
    for name, least in thresholds.items():
        if _number(averages.get(name)) and _number(least):
            low, high = scale_of(name) or (0.0, max(abs(least), 1.0))
            margins.append((averages[name] - least) / (high - low))
    return min(margins, default=None)


def _rates(agent: str, rows: Iterable[Json]) -> Iterator[Json]:
    counts = [(round(rate["value"] * rate["n"]), rate["n"]) for row in rows if (rate := row.get("passRate"))]
    n, passed = sum(total for _, total in counts), sum(times for times, _ in counts)
    if not n:
        return
    several = [pass_hat_k(of, times, max(_SHOWN_K)) for times, of in counts if of > 1]
    most = min(map(len, several), default=0)
    yield {
        "agent": agent,
        "passRate": {"value": passed / n, "n": n, **_interval_bounds(clustered_share(counts))},
        "scenarios": len(counts),
        "passHatK": {str(k): round(mean(e[k - 1] for e in several), 6) for k in _SHOWN_K if k <= most},
    }


def _averages(agent: str, rows: Iterable[Json]) -> Iterator[Json]:
    by_metric: dict[str, list[Json]] = {}
    for row in rows:
        for name, value in row["averages"].items():
            if _number(value):
                by_metric.setdefault(name, []).append(row)
    for name, mine in by_metric.items():
        values = [row["averages"][name] for row in mine]
        limits = [row["thresholds"][name] for row in mine if _number(row.get("thresholds", {}).get(name))]
        lowest = min(mine, key=lambda row: row["averages"][name])
        low, high = scale_of(name) or _YES_OR_NO
        scale = (low, high) if all(low <= value <= high for value in values) else None
        if len(mine) == 1:
            figure = mine[0].get("intervals", {}).get(name) or {"n": None, "low": None, "high": None}
            pooled = {**figure, "value": values[0]}
        else:
            bounds = _interval_bounds(clustered_mean([[value] for value in values], scale))
            pooled = {"value": mean(values), "n": len(values), **bounds}
        yield {
            "metric": name,
            "agent": agent,
            **pooled,
            "scale": list(scale) if scale else None,
            "scenarios": len(mine),
            "lowest": {"name": lowest["name"], "agent": lowest["agent"], "value": lowest["averages"][name]},
            "thresholds": sorted({min(limits), max(limits)}) if limits else [],
            "missed": sum(name in row["metrics"] for row in mine),
        }


def _interval_bounds(interval: ConfidenceInterval | None) -> Json:
    return {"low": interval.low, "high": interval.high} if interval else {"low": None, "high": None}


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def show_command(run: str, scenario: str = "") -> str:
    """Return the command that prints transcripts of a stored run: of all its scenarios, or of one."""
    only = ("--scenario", f"={scenario}") if scenario else ()
    return shlex.join(["agentest", "show", run or "latest", *only, "--verbose"])


_MOST_ROWS = 30
_BINS = 12
_SCORE_BINS = 8


def pictures(rows: Sequence[Json], trend: Sequence[Json]) -> Json:
    """Return the figures of all pictures that have enough of them.

    Args:
        rows: the results of `overview.scenario_row`.
        trend: one entry for each run, the latest last.
    """
    whole = [each for each in trend if _known(each) and not each.get("partial")]  # shares of the same whole
    return {
        "runs": list(map(_rate, whole)) if len(whole) > 1 else [],
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
            "bins": _bins(values, _growing_edges(values)),
        }
        for agent, values in by_agent.items()
        if len(values) > 1 and max(values) > 0
    ]


def _percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _growing_edges(values: Sequence[float]) -> list[float]:
    """Return the edges of bins whose width grows, because a few turns are much slower than the rest."""
    low, high = max(1.0, min(values)), max(values)
    factor = max(high / low, 1.0001) ** (1 / _BINS)
    return [low * factor**n for n in range(_BINS)] + [high]


def _bins(values: Iterable[float], edges: Sequence[float]) -> list[Json]:
    """Count the values between each two edges. The first and the last bin also have those outside."""
    counts = Counter(bisect_right(edges, value, 1, len(edges) - 1) for value in values)
    return [
        {"from": round(low, 3), "to": round(high, 3), "n": counts[n]}
        for n, (low, high) in enumerate(pairwise(edges), start=1)
    ]


def _scores(rows: Iterable[Json]) -> list[Json]:
    values: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row["averages"].items():
            if _number(value):
                values.setdefault(name, []).append(value)
    return [
        {"metric": name, "bins": _bins(each, _equal_edges(each))}
        for name, each in values.items()
        if len({*each}) > 1
    ]


def _equal_edges(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    return [low + n * (high - low) / _SCORE_BINS for n in range(_SCORE_BINS + 1)]


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
        if not (faults or requests):
            continue
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
    shown = sorted(counts.items(), key=lambda item: -item[1].total())[:_MOST_ROWS]
    return [{"tool": tool, **{name: found[name] for name in _OUTCOMES}} for tool, found in shown]


def _levels(rows: Iterable[Json]) -> list[Json]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in (each for each in rows if each.get("status") in _WORST_FIRST):
        level = "scenario" if not row.get("scripted") else "integration" if "evalId" in row else "unit"
        levels = [each for each in _LEVELS if each in row["tags"]] or [level]
        for cell in product(_named(row, "task:"), _named(row, "path:")):
            states = found.setdefault(cell, {})
            for level in levels:
                states[level] = min(states.get(level, "passed"), row["status"], key=_WORST_FIRST.index)
    return [
        {"name": f"{task}, {path}", "states": [states.get(level, "") for level in _LEVELS]}
        for (task, path), states in list(found.items())[:_MOST_ROWS]
    ]


def _named(row: Json, prefix: str) -> Iterator[str]:
    tags = (tag.removeprefix(prefix).strip() for tag in row["tags"] if tag.startswith(prefix))
    return iter(dict.fromkeys(tags))
