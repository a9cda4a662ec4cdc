"""A comparison as text for people; regressions and the counts last, where a terminal ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from agentest.history.comparison.values import Change, Comparison, Row, ScenarioChange
from agentest.history.comparison.words import (
    HEAD,
    cells,
    changed_rows,
    footnotes,
    headline,
    in_order,
    interval,
    likelihood,
    regressions_overall,
    run_line,
    story,
    verdict_line,
)
from agentest.report.console.text import BLANK, Line, Part, Printer, line
from agentest.support.text import count

_MOST, _MOST_REGRESSED = 10, 100
"""Scenarios of each kind; the rest is counted."""
_STYLES = {
    Change.REGRESSED: "red",
    Change.NOT_COMPARED: "yellow",
    Change.IMPROVED: "green",
    Change.WITHIN_NOISE: "dim",
}


def print_text(comparison: Comparison, console: Console) -> None:
    """Tables and lists for people."""
    printer = Printer(console)
    printer.write(list(_head(comparison)))
    printer.write_table(_table(comparison.overall, printer))
    printer.write([line(0, verdict_line(comparison)), BLANK])
    several = len(comparison.new.agents) > 1
    for change in reversed(Change):
        printer.write(list(_group(change, comparison, several)))
    printer.write(list(_foot(comparison)))


def _head(comparison: Comparison) -> Iterator[Line]:
    yield line(0, ("Compared", "bold"))
    yield line(0, run_line(comparison.base), lead=(("base  ", "dim"),))
    yield line(0, run_line(comparison.new), lead=(("new   ", "dim"),))
    for note in comparison.notes:
        yield line(0, (note, "yellow"), lead=(("note  ", "dim"),))
    yield BLANK


def _table(rows: Sequence[Row], printer: Printer) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, name in enumerate(HEAD):
        justify = "right" if 0 < i < len(HEAD) - 1 else "left"
        table.add_column(name or ("over all" if i == 0 else ""), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        *figures, change = cells(row)
        parts: list[Part] = [*figures, (change, _STYLES.get(row.change, ""))]
        table.add_row(*(printer.text([part]) for part in parts))
    return table


def _group(change: Change, comparison: Comparison, several: bool) -> Iterator[Line]:
    if change is Change.UNCHANGED or not comparison.of(change):
        return
    found = [each for each in in_order(comparison) if each.change is change]
    shown = found[: _MOST_REGRESSED if change is Change.REGRESSED else _MOST]
    yield line(0, (str(change).capitalize(), f"bold {_STYLES.get(change, '')}".strip()))
    for each in shown:
        yield from _scenario(each, several)
    if len(found) > len(shown):
        yield line(2, (f"and {count(len(found) - len(shown), 'more', 'more')}", "dim"))
    yield BLANK


def _scenario(each: ScenarioChange, several: bool) -> Iterator[Line]:
    shown = each.pair.shown
    agent = f"  [{shown.agent}]" if several else ""
    yield Line(
        ("  ",), ((shown.name + agent,), ((f"{shown.file}:{shown.line}", "dim"),), (story(each),)), gap="  "
    )
    for row in changed_rows(each):
        what, before, after, *_ = cells(row)
        sure = interval(row)
        between = f" (95 % {sure})" if sure not in ("", "unknown") else ""
        yield line(6, f"{what} {before} → {after}{between}, p {likelihood(row.adjusted)}")


def _foot(comparison: Comparison) -> Iterator[Line]:
    for text in footnotes(comparison):
        yield line(0, (text, "dim"))
    if overall := regressions_overall(comparison):
        yield line(0, (overall, "red"))
    style = "red" if comparison.regressed else "yellow" if comparison.of(Change.NOT_COMPARED) else "green"
    yield line(0, (headline(comparison), f"bold {style}"))
