"""A comparison as JSON: comparison.json, and what `agentest compare --format json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from agentest.history.comparison.measured import MeasuredRun, MeasuredScenario
from agentest.history.comparison.values import Change, Comparison, Row, ScenarioChange
from agentest.support.json_text import json_document

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
        "overall": [_row(row) for row in comparison.overall],
        "scenarios": [_scenario(each) for each in comparison.scenarios],
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


def _scenario(each: ScenarioChange) -> dict[str, Any]:
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
        "figures": [_row(row) for row in each.rows],
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


def _row(row: Row) -> dict[str, Any]:
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
