"""A comparison as the page shows it: figures as the console writes them, the worst scenarios first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from typing import Any

from agentest.history.compared_runs import MeasuredRun, MeasuredScenario
from agentest.history.comparison_report import (
    cells,
    footnotes,
    headline,
    in_order,
    regressions_overall,
    story,
    verdict_line,
)
from agentest.history.comparison_result import Change, Comparison, Row, ScenarioChange
from agentest.support.json_text import Json, json_document
from agentest.support.text import duration

_NOBODY_KNOWS = {Change.NOT_COMPARED, Change.GONE, Change.NEW}


class Between(StrEnum):
    """What is compared."""

    RUNS = "runs"
    AGENTS = "agents"


def for_page(comparison: Comparison, between: Between) -> Json:
    """What `comparison.schema.json` says of a comparison, with its figures in words.

    Instead of `figures` and `overall` there are rows `{change, cells}` of those that differ; a scenario has
    its `story` and the agents of both `sides`, null where a run lacks it.
    """
    document = as_document(comparison)
    ordered = [*in_order(comparison), *comparison.of(Change.UNCHANGED)]
    return {
        **{key: document[key] for key in ("regressed", "base", "new", "notes", "counts")},
        "between": str(between),
        "verdict": _verdict(comparison),
        "headline": headline(comparison),
        "besides": list(_besides(comparison)),
        "overall": list(map(_row, comparison.overall)),
        "totals": list(_totals(comparison.base, comparison.new)),
        "scenarios": [_scenario(each) for each in ordered],
    }


def _verdict(comparison: Comparison) -> Json:
    """How it came out, in a status and in words."""
    if comparison.regressed:
        return {"status": "failed", "text": "regressed"}
    if all(each.change in _NOBODY_KNOWS for each in comparison.scenarios):
        return {"status": "errored", "text": "nothing could be compared"}
    overall = (comparison.verdicts.change, *(row.change for row in comparison.overall))
    if comparison.of(Change.IMPROVED) or Change.IMPROVED in overall:
        return {"status": "passed", "text": "improved"}
    return {"status": "skipped", "text": "no difference that this many conversations can tell"}


def _besides(comparison: Comparison) -> Iterator[str]:
    """What a reader must know besides."""
    if overall := regressions_overall(comparison):
        yield overall
    yield verdict_line(comparison)
    yield from footnotes(comparison)


def _row(row: Row) -> Json:
    return {"change": str(row.change), "cells": list(cells(row)[:-1])}


def _scenario(each: ScenarioChange) -> Json:
    sides = (each.pair.base, each.pair.new)
    return {
        "name": each.pair.shown.name,
        "agent": each.pair.shown.agent,
        "change": str(each.change),
        "story": story(each),
        "sides": [side and side.agent for side in sides],
        "figures": [_row(row) for row in each.rows if row.difference],
    }


def _totals(base: MeasuredRun, new: MeasuredRun) -> Iterator[list[str]]:
    """Rows of name, base, new and difference: what all conversations of both took, compared or not."""
    before, now = base.spent, new.spent
    yield ["conversations passed", _passed(base), _passed(new), ""]
    yield ["cost of user and judge", *_both(before.cost, now.cost, lambda usd: f"${usd:.4f}")]
    yield ["tokens of user and judge", *_both(before.tokens, now.tokens, lambda number: f"{number:,.0f}")]
    per_turn = [each.agent_ms / each.turns if each.turns else None for each in (before, now)]
    yield ["agent's time for a turn", *_both(per_turn[0], per_turn[1], duration)]
    yield ["time of all conversations", *_both(before.total_ms, now.total_ms, duration)]


def _passed(run: MeasuredRun) -> str:
    passed = sum(each.passed for each in run.scenarios)
    held = sum(len(each.conversations) for each in run.scenarios)
    return f"{passed:,} of {held:,}"


def _both(base: float | None, new: float | None, text: Callable[[float], str]) -> list[str]:
    known = ["unknown" if each is None else text(each) for each in (base, new)]
    if base is None or new is None:
        return [*known, ""]
    sign = "+" if new > base else "−" if new < base else ""
    return [*known, f"{sign}{text(abs(new - base))}"]


SCHEMA_VERSION = 1
_KEYS = {Change.NOT_COMPARED: "notCompared", Change.WITHIN_NOISE: "changedWithinNoise"}


def as_json(comparison: Comparison) -> str:
    """The whole comparison, camelCase; unchanged scenarios too."""
    return json_document(as_document(comparison))


def as_document(comparison: Comparison) -> dict[str, Any]:
    """The same as values of JSON types."""
    verdicts = comparison.verdicts
    return {
        "schemaVersion": SCHEMA_VERSION,
        "regressed": comparison.regressed,
        "base": _run(comparison.base),
        "new": _run(comparison.new),
        "notes": list(comparison.notes),
        "counts": {_KEYS.get(change, str(change)): len(comparison.of(change)) for change in Change},
        "verdicts": {**asdict(verdicts), "change": str(verdicts.change)},
        "overall": [_as_json_row(row) for row in comparison.overall],
        "scenarios": [_as_json_scenario(each) for each in comparison.scenarios],
    }


def _run(run: MeasuredRun) -> dict[str, Any]:
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


def _as_json_scenario(each: ScenarioChange) -> dict[str, Any]:
    shown = each.pair.shown
    return {
        "name": shown.name,
        "agent": shown.agent,
        "file": shown.file,
        "line": shown.line,
        "change": str(each.change),
        "why": each.why,
        "certain": each.certain,
        "base": _side(each.pair.base),
        "new": _side(each.pair.new),
        "figures": [_as_json_row(row) for row in each.rows],
    }


def _side(side: MeasuredScenario | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {
        "status": str(side.status),
        "conversations": len(side.conversations),
        "passed": side.passed,
        "failed": side.known - side.passed,
    }


def _as_json_row(row: Row) -> dict[str, Any]:
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
