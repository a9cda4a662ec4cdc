"""Comparisons as JSON: the document of `comparison.schema.json` and the data of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from agentest.history.compared_runs import MeasuredRun, MeasuredScenario
from agentest.history.comparison import Change, ComparedFigure, Comparison, ScenarioChange
from agentest.history.comparison_report import (
    cells,
    changes_worst_first,
    describe_change,
    footnotes,
    headline,
    regressions_overall,
    verdict_line,
)
from agentest.support.json_text import Json, json_document
from agentest.support.text import duration

_UNKNOWN_CHANGES = {Change.NOT_COMPARED, Change.GONE, Change.NEW}
SCHEMA_VERSION = 1
_KEYS = {Change.NOT_COMPARED: "notCompared", Change.WITHIN_NOISE: "changedWithinNoise"}


class ComparedSubjects(StrEnum):
    """Subjects of a comparison: two runs or two agents."""

    RUNS = "runs"
    AGENTS = "agents"


def comparison_for_page(comparison: Comparison, between: ComparedSubjects) -> Json:
    """Return a comparison for the page: the fields of `comparison.schema.json`, with formatted figures.

    `figures` and `overall` are replaced by rows `{change, cells}` of those that differ. Each scenario
    has its `story` and the agents of both `sides`, null if a run lacks it. The worst scenarios come
    first.
    """
    document = as_document(comparison)
    ordered = [*changes_worst_first(comparison), *comparison.of(Change.UNCHANGED)]
    return {
        **{key: document[key] for key in ("regressed", "base", "new", "notes", "counts")},
        "between": str(between),
        "verdict": _verdict(comparison),
        "headline": headline(comparison),
        "besides": list(_notes(comparison)),
        "overall": list(map(_row, comparison.overall)),
        "totals": list(_totals(comparison.base, comparison.new)),
        "scenarios": [_scenario(each) for each in ordered],
    }


def as_json(comparison: Comparison) -> str:
    """Return the whole comparison as JSON text, including unchanged scenarios."""
    return json_document(as_document(comparison))


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Return the whole comparison as JSON values with camelCase keys."""
    verdicts = comparison.verdicts
    return {
        "schemaVersion": SCHEMA_VERSION,
        "regressed": comparison.regressed,
        "base": _run_document(comparison.base),
        "new": _run_document(comparison.new),
        "notes": list(comparison.notes),
        "counts": {_KEYS.get(change, str(change)): len(comparison.of(change)) for change in Change},
        "verdicts": {**asdict(verdicts), "change": str(verdicts.change)},
        "overall": [_row_document(row) for row in comparison.overall],
        "scenarios": [_scenario_document(each) for each in comparison.scenarios],
    }


def _verdict(comparison: Comparison) -> Json:
    """Return the outcome as a status and a text."""
    if comparison.regressed:
        return {"status": "failed", "text": "regressed"}
    if all(each.change in _UNKNOWN_CHANGES for each in comparison.scenarios):
        return {"status": "errored", "text": "nothing could be compared"}
    overall = (comparison.verdicts.change, *(row.change for row in comparison.overall))
    if comparison.of(Change.IMPROVED) or Change.IMPROVED in overall:
        return {"status": "passed", "text": "improved"}
    return {"status": "skipped", "text": "no difference that this many conversations can tell"}


def _notes(comparison: Comparison) -> Iterator[str]:
    """Yield the sentences below the headline."""
    if overall := regressions_overall(comparison):
        yield overall
    yield verdict_line(comparison)
    yield from footnotes(comparison)


def _row(row: ComparedFigure) -> Json:
    return {"change": str(row.change), "cells": list(cells(row)[:-1])}


def _scenario(each: ScenarioChange) -> Json:
    sides = (each.pair.base, each.pair.new)
    return {
        "name": each.pair.latest.name,
        "agent": each.pair.latest.agent,
        "change": str(each.change),
        "story": describe_change(each),
        "sides": [side and side.agent for side in sides],
        "figures": [_row(row) for row in each.rows if row.difference],
    }


def _totals(base: MeasuredRun, new: MeasuredRun) -> Iterator[list[str]]:
    """Yield rows of name, base, new and difference with the totals of all conversations, compared or not."""
    before, now = base.spent, new.spent
    yield ["conversations passed", _passed(base), _passed(new), ""]
    yield ["cost of user and judge", *_both(before.cost, now.cost, lambda usd: f"${usd:.4f}")]
    yield ["tokens of user and judge", *_both(before.tokens, now.tokens, lambda number: f"{number:,.0f}")]
    per_turn = [each.agent_ms / each.turns if each.turns else None for each in (before, now)]
    yield ["agent's time for a turn", *_both(per_turn[0], per_turn[1], duration)]
    yield ["time of all conversations", *_both(before.total_ms, now.total_ms, duration)]


def _passed(run: MeasuredRun) -> str:
    passed = sum(each.passed for each in run.scenarios)
    conversation_count = sum(len(each.conversations) for each in run.scenarios)
    return f"{passed:,} of {conversation_count:,}"


def _both(base: float | None, new: float | None, text: Callable[[float], str]) -> list[str]:
    known = ["unknown" if each is None else text(each) for each in (base, new)]
    if base is None or new is None:
        return [*known, ""]
    sign = "+" if new > base else "−" if new < base else ""
    return [*known, f"{sign}{text(abs(new - base))}"]


def _run_document(run: MeasuredRun) -> dict[str, Any]:
    return {
        "run": run.label,
        "startedAt": run.started_at,
        "version": run.version,
        "agents": list(run.agents),
        "models": dict(run.models),
        "stopped": run.stopped,
        "scenarios": len(run.scenarios),
        "conversations": sum(len(each.conversations) for each in run.scenarios),
    }


def _scenario_document(each: ScenarioChange) -> dict[str, Any]:
    scenario = each.pair.latest
    return {
        "name": scenario.name,
        "agent": scenario.agent,
        "file": scenario.file,
        "line": scenario.line,
        "change": str(each.change),
        "why": each.why,
        "certain": each.certain,
        "base": _side_document(each.pair.base),
        "new": _side_document(each.pair.new),
        "figures": [_row_document(row) for row in each.rows],
    }


def _side_document(side: MeasuredScenario | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "status": str(side.status),
        "conversations": len(side.conversations),
        "passed": side.passed,
        "failed": side.known - side.passed,
    }


def _row_document(row: ComparedFigure) -> dict[str, Any]:
    return {
        "name": row.name,
        "base": row.base,
        "new": row.new,
        "nBase": row.n_base,
        "nNew": row.n_new,
        "difference": row.difference,
        "low": row.low,
        "high": row.high,
        "p": row.p,
        "adjustedP": row.adjusted,
        "change": str(row.change),
    }
