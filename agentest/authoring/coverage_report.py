"""Report coverage as text, JSON, or Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from agentest.authoring.coverage import (
    Coverage,
    CoverageLevel,
    CoveredShare,
    PlacedScenario,
    ToolUsage,
    worst,
)
from agentest.domain.results import Status
from agentest.report.console.printer import Printer
from agentest.report.console.text import BLANK, STYLES, ConsoleLine, Part, line
from agentest.report.markdown import ICONS, literal, table_head, table_row
from agentest.support.json_text import json_document
from agentest.support.text import count

_SHOWN = 5
_CELL, _GAP = 5, 3
"""Width of a cell such as `✓ 1/1`, and of the space between cells."""
_LEVELS = "Unit, integration and scenario tests"
_LEVEL_HEAD = ("task", "path", *(level.title() for level in CoverageLevel))
_HOW_TO_TAG = 'tags=["task:refund", "path:tool-error"]'


def print_text(coverage: Coverage, console: Console) -> None:
    """Print tables and lists."""
    printer = Printer(console)
    printer.write([line(0, ("Tasks × paths", "bold"), ("  from the tags task:… and path:…", "dim")), BLANK])
    for paths in _path_groups(coverage, console) if coverage.cells else ():
        rows = (
            [task, *(_cell(coverage, coverage.cells[task, p], printer) for p in paths)]
            for task in coverage.tasks
        )
        printer.write_table(_console_table(["task", *paths], rows, printer))
        printer.write([BLANK])
    printer.write([*_matrix_lines(coverage, printer), BLANK])
    if coverage.levels:
        printer.write([line(0, (_LEVELS, "bold"), ("  by tag, else by kind", "dim")), BLANK])
        rows = (
            [*cell, *(_cell(coverage, row[level], printer, "dim") for level in row)]
            for cell, row in coverage.levels.items()
        )
        printer.write_table(_console_table(_LEVEL_HEAD, rows, printer))
        printer.write([BLANK, line(0, _levels_line(coverage)), BLANK])
    printer.write([line(0, *_tools_title(coverage)), BLANK])
    if coverage.results and coverage.tools:
        printer.write_table(
            _console_table(
                ["tool", "called", "failed"], map(_tool_row, coverage.tools), printer, numbers=True
            )
        )
    printer.write(_tool_lines(coverage))


def _path_groups(coverage: Coverage, console: Console) -> Iterator[tuple[str, ...]]:
    """Yield groups of paths that fit on the terminal next to the tasks."""
    wraps = console.is_terminal and not console.soft_wrap
    room = console.width - max(map(cell_len, coverage.tasks)) if wraps else None
    together: tuple[str, ...] = ()
    for path in coverage.paths:
        if together and room is not None and _columns((*together, path)) > room:
            yield together
            together = ()
        together = (*together, path)
    yield together


def _columns(paths: Iterable[str]) -> int:
    return sum(max(cell_len(path), _CELL) + _GAP for path in paths)


def _console_table(
    head: Sequence[str], rows: Iterable[Iterable[Part]], printer: Printer, *, numbers: bool = False
) -> Table:
    """Return a table; with `numbers`, all columns but the first are aligned right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, name in enumerate(head):
        justify: Literal["left", "right"] = "right" if numbers and number else "left"
        table.add_column(printer.text([name]), overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*(printer.text([part]) for part in row))
    return table


def _levels_line(coverage: Coverage) -> str:
    rows = coverage.levels.values()
    have = {level: sum(bool(row[level]) for row in rows) for level in CoverageLevel}
    verb = "has" if have[CoverageLevel.UNIT] == 1 else "have"
    return (
        f"{count(len(rows), 'path')}: {have[CoverageLevel.UNIT]} {verb} a unit test, "
        f"{have[CoverageLevel.INTEGRATION]} an integration test, "
        f"{have[CoverageLevel.SCENARIO]} a scenario test"
    )


def _cell(
    coverage: Coverage, scenarios: Sequence[PlacedScenario], printer: Printer, gap_style: str = "red"
) -> Part:
    if not scenarios:
        return "–", gap_style
    if not coverage.results:
        return str(len(scenarios))
    status = worst(s.status for s in scenarios)
    mark = printer.glyphs.marks[status] if status else "?"
    return f"{mark} {_passed(scenarios)}", STYLES[status] if status else "yellow"


def _passed(scenarios: Sequence[PlacedScenario]) -> str:
    return f"{sum(s.status is Status.PASSED for s in scenarios)}/{len(scenarios)}"


def _matrix_lines(coverage: Coverage, printer: Printer) -> Iterator[ConsoleLine]:
    share = coverage.cells_share
    if not share:
        yield line(0, ("Nothing to show: ", "yellow"), f"no scenario has both tags, like {_HOW_TO_TAG}.")
    elif coverage.results:
        yield line(0, (_legend(printer), "dim"))
        yield BLANK
    if share:
        yield line(0, *_share(share, "cell", "has a scenario", "have a scenario"))
    if coverage.gaps:
        yield line(0, ("Without a scenario", "bold"))
        for task, paths in coverage.gaps.items():
            yield ConsoleLine(("  ", task, ": "), ((", ".join(paths),),))
    if coverage.outside and share:
        yield line(0, (f"{_outside_text(coverage)}: they need a task: and a path: tag", "bold"))
        for scenario in coverage.outside[:_SHOWN]:
            yield ConsoleLine(("  ",), (((scenario.where, "cyan"),), (scenario.name,)), cut=True)
        if len(coverage.outside) > _SHOWN:
            yield line(2, (f"and {len(coverage.outside) - _SHOWN} more", "dim"))
    if coverage.skipped:
        yield line(0, (_skipped(coverage), "dim"))


def _legend(printer: Printer) -> str:
    marks = printer.glyphs.marks
    meanings = [f"{marks[status]} {status}" for status in (Status.PASSED, Status.FAILED, Status.ERRORED)]
    return f"passed/scenarios: {', '.join(meanings)}, ? not in the results, – none"


def _share(share: CoveredShare, noun: str, verb: str, verbs: str) -> tuple[Part, ...]:
    style = "green" if share.covered == share.of else "yellow"
    did = verb if share.covered == 1 else verbs
    return (f"{share.covered} of {count(share.of, noun)} {did} ", (f"({share.percent} %)", f"bold {style}"))


def _outside_text(coverage: Coverage) -> str:
    return f"{count(len(coverage.outside), 'scenario')} in no cell"


def _skipped(coverage: Coverage) -> str:
    return f"{count(coverage.skipped, 'scenario')} skipped, which cover nothing"


def _tools_title(coverage: Coverage) -> tuple[Part, ...]:
    where = f"  {_conversations(coverage)}" if coverage.results else "  from the scenarios' mocks"
    return ("Tools", "bold"), (where, "dim")


def _conversations(coverage: Coverage) -> str:
    return f"{count(coverage.conversations, 'conversation')} in {', '.join(coverage.results)}"


def _tool_row(tool: ToolUsage) -> tuple[Part, Part, Part]:
    called: Part = f"{tool.called:,}" if tool.called else ("never", "red")
    return tool.name, called, f"{tool.failed:,}" if tool.failed else ("–", "dim")


def _tool_lines(coverage: Coverage) -> Iterator[ConsoleLine]:
    names = ", ".join(tool.name for tool in coverage.tools)
    if not coverage.tools:
        yield line(0, "No scenario mocks a tool" + (", and none was called." if coverage.results else "."))
    elif not coverage.results:
        yield ConsoleLine((f"{count(len(coverage.tools), 'tool')}: ",), ((names,),))
        yield line(0, "Whether they are called is known after a run: agentest run --reporter json")
    if share := coverage.tools_share:
        yield BLANK
        yield line(0, *_share(share, "tool", "was called", "were called"))
        never_failed = [tool.name for tool in coverage.tools if tool.called and not tool.failed]
        if never_failed:
            yield ConsoleLine(("Never seen failing: ",), ((", ".join(never_failed),),))


def as_json(coverage: Coverage) -> str:
    """Return a JSON document: the matrix, its gaps, the tools, and shares in percent."""
    cells = coverage.cells.items()
    document: dict[str, Any] = {
        "tasks": coverage.tasks,
        "paths": coverage.paths,
        "cells": [
            {"task": task, "path": path, "scenarios": _listed(scenarios)} for (task, path), scenarios in cells
        ],
        "gaps": [{"task": task, "path": path} for (task, path), scenarios in cells if not scenarios],
        "levels": [
            {"task": task, "path": path, **{level.value: _listed(placed) for level, placed in row.items()}}
            for (task, path), row in coverage.levels.items()
        ],
        "untagged": [{"name": s.name, "where": s.where} for s in coverage.outside],
        "skipped": coverage.skipped,
        "tools": [{"name": t.name, "called": t.called, "failed": t.failed} for t in coverage.tools],
        "neverCalled": [t.name for t in coverage.tools if coverage.results and not t.called],
        "results": coverage.results,
        "shares": {"cells": _share_json(coverage.cells_share), "tools": _share_json(coverage.tools_share)},
    }
    return json_document(json.loads(json.dumps(document)))


def _listed(scenarios: Iterable[PlacedScenario]) -> list[dict[str, Any]]:
    return [{"name": s.name, "status": s.status and s.status.value} for s in scenarios]


def _share_json(share: CoveredShare | None) -> dict[str, Any] | None:
    return {"covered": share.covered, "of": share.of, "percent": share.percent} if share else None


def as_markdown(coverage: Coverage) -> str:
    """Return Markdown tables for a pull request."""
    rows = [*_matrix_markdown(coverage), "", *_levels_markdown(coverage), *_tools_markdown(coverage)]
    return "\n".join(rows) + "\n"


def _matrix_markdown(coverage: Coverage) -> Iterator[str]:
    share = coverage.cells_share
    if not share:
        yield f"**Tasks × paths**: no scenario has both tags, like `{_HOW_TO_TAG}`."
        return
    yield f"**Tasks × paths**: {_share_text(share, 'cell')} with a scenario"
    yield ""
    cells = coverage.cells
    rows = (
        [task, *(_icon(coverage, cells[task, path]) for path in coverage.paths)] for task in coverage.tasks
    )
    yield _markdown_table(["task", *coverage.paths], rows)
    if coverage.outside:
        yield f"\n{_outside_text(coverage)}."
    if coverage.skipped:
        yield f"\n{_skipped(coverage)}."


def _levels_markdown(coverage: Coverage) -> Iterator[str]:
    if not coverage.levels:
        return
    yield f"**{_LEVELS}**"
    yield ""
    rows = (
        [*cell, *(_icon(coverage, placed) for placed in row.values())]
        for cell, row in coverage.levels.items()
    )
    yield _markdown_table(_LEVEL_HEAD, rows)
    yield ""


def _icon(coverage: Coverage, scenarios: Sequence[PlacedScenario]) -> str:
    if not scenarios:
        return "–"
    if not coverage.results:
        return str(len(scenarios))
    status = worst(s.status for s in scenarios)
    return f"{ICONS[status] if status else '❔'} {_passed(scenarios)}"


def _tools_markdown(coverage: Coverage) -> Iterator[str]:
    share = coverage.tools_share
    if not share:
        why = "there are no results" if coverage.tools else "no scenario mocks one"
        yield f"**Tools**: {why}."
        return
    yield f"**Tools**: {_share_text(share, 'tool')} called"
    yield ""
    rows = ([t.name, str(t.called) if t.called else "never", str(t.failed or "–")] for t in coverage.tools)
    yield _markdown_table(["tool", "called", "failed"], rows)


def _share_text(share: CoveredShare, noun: str) -> str:
    return f"{share.covered} of {count(share.of, noun)} ({share.percent} %)"


def _markdown_table(head: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [table_row(map(literal, row)) for row in rows]
    return (table_head([*map(literal, head)]) + "".join(cells)).rstrip("\n")
