"""Estimate resources from earlier runs, based on run.json, results.json or a journal.

The files are not validated against the schema, because only an estimate is needed. An unexpected format
yields no estimate.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from agentest.domain.forecast import PastRun, ScenarioResources
from agentest.store.runs.folder import JOURNAL, RECORD, RunRecord

Place = tuple[str, str]
"""Names of a scenario and its agent."""
_NOT_OURS = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def find_earlier_run(
    records: Iterable[RunRecord], places: Collection[Place], *, offline: bool
) -> PastRun | None:
    """Return the resources of the first run that has all of these places, or otherwise the most of them.

    Args:
        places: names of a scenario and its agent.
        offline: True for runs without model calls.
    """
    best: tuple[int, RunRecord] | None = None
    for record in records:
        if not record.took or offline is any(record.models.values()):
            continue
        known = len({(each.scenario, each.agent) for each in record.took} & set(places))
        if best is None or known > best[0]:
            best = known, record
        if known == len(places):
            break
    return _of_record(best[1]) if best else None


def _of_record(record: RunRecord) -> PastRun:
    took = {
        (each.scenario, each.agent): ScenarioResources(
            conversations=each.conversations,
            talking_s=each.talking_ms / 1000,
            judging_s=each.judging_ms / 1000,
            cost=each.cost,
            calls=each.calls,
        )
        for each in record.took
    }
    return PastRun(started_at=record.started_at, models=record.models, took=took)


def read_earlier_run(path: Path) -> PastRun | None:
    """Return the resources of the run in this file; None if it is unreadable or has no conversations."""
    try:
        earlier = _earlier(_documents(path))
    except (OSError, *_NOT_OURS):
        return None
    return earlier if earlier.took else None


def _documents(path: Path) -> Iterator[Any]:
    """Yield the lines of a journal, or the document of a results.json. An incomplete line is skipped."""
    journal = path.with_name(JOURNAL)
    if path.with_name(RECORD).is_file() and journal.is_file():
        # The same run, but line by line: thousands of conversations need not be in memory together.
        path = journal
    if path.suffix != ".jsonl":
        yield json.loads(path.read_bytes())
        return
    with path.open("rb") as lines:
        yield from (json.loads(line) for line in lines if line.endswith(b"\n"))


def _earlier(documents: Iterator[Any]) -> PastRun:
    head: Any = None
    times_of = dict[Place, list[Any]]()
    used = dict[Place, tuple[int, float | None]]()
    for document in documents:
        if head is None:
            head = {key: document[key] for key in ("startedAt", "models")}
        for scenario_key, conversation in _conversations(document):
            times_of.setdefault(scenario_key, []).append(conversation["time"])
        for scenario in _scenarios(document):
            used[scenario["name"], scenario["agent"]] = _used(list(scenario["usage"].values()))
    # Unfinished scenarios have no known cost, so they are skipped as if they had not run.
    took = {
        scenario_key: _took(times, *used[scenario_key])
        for scenario_key, times in times_of.items()
        if scenario_key in used
    }
    return PastRun(started_at=head["startedAt"], models=head["models"], took=took)


def _conversations(document: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    if document.get("type") == "conversation":
        yield (document["scenario"], document["agent"]), document["conversation"]
    for scenario in _scenarios(document):
        for conversation in scenario.get("conversations", ()):
            yield (scenario["name"], scenario["agent"]), conversation


def _scenarios(document: Any) -> Iterator[Any]:
    if document.get("type") == "scenario":
        yield document["scenario"]
    for scenario in document.get("scenarios", ()):
        yield from scenario.get("agents", (scenario,))


def _used(usage: Iterable[Any]) -> tuple[int, float | None]:
    """Return the number of calls and their cost."""
    costs = [used["cost"] for used in usage]
    return sum(used["calls"] for used in usage), None if None in costs else sum(costs)


def _took(times: list[Any], calls: int, cost: float | None) -> ScenarioResources:
    judging = sum(time["judgesMs"] for time in times) / 1000
    return ScenarioResources(
        conversations=len(times),
        talking_s=sum(time["totalMs"] for time in times) / 1000 - judging,
        judging_s=judging,
        cost=cost,
        calls=calls,
    )
