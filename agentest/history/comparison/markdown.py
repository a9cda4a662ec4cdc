"""A comparison as Markdown; regressions first, as in a job's summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentest.history.comparison.values import Change, Comparison, ScenarioChange
from agentest.history.comparison.words import (
    HEAD,
    cells,
    changed_rows,
    footnotes,
    headline,
    in_order,
    regressions_overall,
    run_line,
    story,
    verdict_line,
)
from agentest.report.github_markdown import inline, table_row

_ICONS = {
    Change.REGRESSED: "❌",
    Change.NOT_COMPARED: "⚠️",
    Change.GONE: "➖",
    Change.NEW: "➕",
    Change.IMPROVED: "✅",
    Change.WITHIN_NOISE: "〰️",
}
_MOST = 50
"""Scenarios in the table: a job's summary has room for 1 MiB."""


def as_markdown(comparison: Comparison, heading: str = "##") -> str:
    """Headline, scenarios that changed, figures over all, and what to know of them."""
    return "".join(_parts(comparison, heading))


def _parts(comparison: Comparison, heading: str) -> Iterator[str]:
    bad = comparison.regressed
    icon = "❌" if bad else "⚠️" if comparison.of(Change.NOT_COMPARED) else "✅"
    yield f"{heading} {icon} Agentest, compared: {inline(headline(comparison))}\n\n"
    if overall := regressions_overall(comparison):
        yield f"**{inline(overall)}**\n\n"
    yield f"Base: {inline(run_line(comparison.base))}\\\nNew: {inline(run_line(comparison.new))}\n"
    yield from _list(comparison.notes)
    yield from _scenarios(in_order(comparison), several=len(comparison.new.agents) > 1)
    if comparison.overall:
        yield f"\n{table_row(name or 'over all' if not i else name for i, name in enumerate(HEAD))}"
        yield table_row(["---", *["---:"] * (len(HEAD) - 2), "---"])
        yield from (table_row(map(inline, cells(row))) for row in comparison.overall)
    yield f"\n{inline(verdict_line(comparison))}\n"
    yield from _list(tuple(footnotes(comparison)))


def _list(texts: Sequence[str]) -> Iterator[str]:
    if texts:
        yield "\n" + "".join(f"- {inline(text)}\n" for text in texts)


def _scenarios(changes: Sequence[ScenarioChange], several: bool) -> Iterator[str]:
    if not changes:
        return
    yield "\n" + table_row(["", "scenario", *(["agent"] if several else []), "what became of it"])
    yield table_row(["---"] * (4 if several else 3))
    for each in changes[:_MOST]:
        shown = each.pair.shown
        details = "".join(f"<br>{inline(_figure(row))}" for row in map(cells, changed_rows(each)))
        agent = [inline(shown.agent)] if several else []
        yield table_row(
            [
                f"{_ICONS[each.change]} {each.change}",
                inline(shown.name),
                *agent,
                inline(story(each)) + details,
            ]
        )
    if len(changes) > _MOST:
        yield f"\n_{len(changes) - _MOST} of {len(changes)} scenarios left out._\n"


def _figure(row: Sequence[str]) -> str:
    name, base, new, _, interval, p, _ = row
    return f"{name} {base} → {new} (95 % {interval or 'unknown'}), p {p}"
