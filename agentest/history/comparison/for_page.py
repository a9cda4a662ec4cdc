"""A comparison as the page shows it: figures as the console writes them, the worst scenarios first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum

from agentest.history.comparison.as_json import as_document
from agentest.history.comparison.measured import MeasuredRun
from agentest.history.comparison.values import Change, Comparison, Row, ScenarioChange
from agentest.history.comparison.words import (
    cells,
    footnotes,
    headline,
    in_order,
    regressions_overall,
    story,
    verdict_line,
)
from agentest.support.json_text import Json
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
