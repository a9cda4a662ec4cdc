"""Measure which tasks, paths, levels, and tools scenarios, evaluation cases, and results cover."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import Any, Literal, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from agentest.domain.end_reason import REASONS_TO_STOP
from agentest.domain.results import CaseId, RunResult, ScenarioResult, Status
from agentest.domain.results.exploration import ExploredCoverage
from agentest.domain.transcript import ToolCall
from agentest.report.console.printer import Printer
from agentest.report.console.text import BLANK, STYLES, Part, line
from agentest.report.markdown_text import ICONS, literal, table_head, table_row
from agentest.runner.plan import Unit
from agentest.support.errors import UsageError
from agentest.support.json_text import json_document
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count

TASK, PATH = "task:", "path:"
_WORST_FIRST = (Status.FAILED, Status.ERRORED, None, Status.SKIPPED, Status.PASSED)

Key = tuple[str, str] | str
"""Identifies a scenario in plans and results: a case by its set's id and its own, others by name."""


class CoverageLevel(StrEnum):
    """The columns of a test matrix."""

    UNIT = "unit"
    INTEGRATION = "integration"
    SCENARIO = "scenario"


@dataclass(frozen=True, slots=True)
class PlacedScenario:
    """A scenario or case, and its position in the matrix."""

    name: str
    where: str  # `file:line`
    tasks: tuple[str, ...]
    paths: tuple[str, ...]
    status: Status | None  # the worst status of its results; None without results
    levels: tuple[CoverageLevel, ...] = (CoverageLevel.UNIT,)
    own_path: str = ""  # for a case that names no path: its id, which serves as a path of its own

    @property
    def opens_rows(self) -> bool:
        """Return True if its task is a row of the matrix: a path of its own is not enough."""
        return bool(self.paths or not self.own_path)

    @property
    def all_paths(self) -> tuple[str, ...]:
        return self.paths or ((self.own_path,) if self.own_path else ())


def worst(statuses: Iterable[Status | None]) -> Status | None:
    """Return the worst of at least one status; unknown is worse than passed."""
    return min(statuses, key=_WORST_FIRST.index)


def key_of(name: str, case: CaseId | None) -> Key:
    return (case.eval_set_id, case.eval_id) if case else name


def _placed(
    name: str, where: str, tags: tuple[str, ...], case: CaseId | None, scripted: bool, status: Status | None
) -> PlacedScenario:
    task = path = own_path = ""
    if case:  # an id like `task/path/…` names both, else the set is the task
        task, _, rest = (part.strip() for part in case.eval_id.partition("/"))
        path = rest.partition("/")[0].strip()
        if not (task and path):
            task, path, own_path = case.eval_set_id, "", case.eval_id
    tasks = _named(tags, TASK, where) or ((task,) if task else ())
    paths = _named(tags, PATH, where) or ((path,) if path else ())
    by_kind = CoverageLevel.INTEGRATION if case else CoverageLevel.UNIT
    levels = tuple(each for each in CoverageLevel if each in tags)
    levels = levels or ((by_kind if scripted else CoverageLevel.SCENARIO),)
    return PlacedScenario(name, where, tasks, paths, status, levels, "" if paths else own_path)


def _named(tags: Iterable[str], prefix: str, where: str) -> tuple[str, ...]:
    names = dict.fromkeys(tag.removeprefix(prefix).strip() for tag in tags if tag.startswith(prefix))
    if "" in names:
        raise UsageError(f"{where}: the tag {prefix!r} names nothing; write it like {prefix}refund")
    return tuple(names)


@dataclass(frozen=True, slots=True)
class CoveredShare:
    """A count out of a total. `of` is at least 1."""

    covered: int
    of: int

    @property
    def percent(self) -> int:
        """Return the percentage, rounded down, so that 100 means all."""
        return 100 * self.covered // self.of

    def below(self, percent: float) -> bool:
        return 100 * self.covered < percent * self.of


@dataclass(frozen=True, slots=True)
class ToolUsage:
    """The number of calls of a tool, and how many failed."""

    name: str
    called: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """The complete coverage. Tasks, paths, scenarios, and tools are in order of appearance."""

    scenarios: tuple[PlacedScenario, ...]
    skipped: int  # number of skipped scenarios, which cover nothing
    tools: tuple[ToolUsage, ...]
    results: tuple[str, ...]  # the files of the results; () if there are none
    conversations: int  # number of conversations in the results
    explored: ExploredCoverage | None = None  # what explorations reached; None without an exploration

    @property
    def outcomes_share(self) -> CoveredShare | None:
        """Return the share of tools' outcomes that explorations reached; None without any."""
        if not (self.explored and self.explored.size):
            return None
        return CoveredShare(self.explored.size - len(self.explored.never_reached), self.explored.size)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Return the rows of the matrix. A case with only a path of its own opens no row."""
        return tuple(dict.fromkeys(task for s in self.scenarios if s.opens_rows for task in s.tasks))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for s in self.scenarios for path in s.paths))

    @property
    def cells(self) -> dict[tuple[str, str], tuple[PlacedScenario, ...]]:
        """Return the scenarios of every task and path; () for a gap."""
        cells = dict.fromkeys(product(self.tasks, self.paths), tuple[PlacedScenario, ...]())
        for scenario in self.scenarios:
            for cell in product(scenario.tasks, scenario.paths):
                cells[cell] += (scenario,)
        return cells

    @property
    def gaps(self) -> dict[str, tuple[str, ...]]:
        """Map each task to the paths for which it has no scenario. Tasks without gaps are left out."""
        gaps: dict[str, tuple[str, ...]] = {}
        for (task, path), scenarios in self.cells.items():
            if not scenarios:
                gaps[task] = (*gaps.get(task, ()), path)
        return gaps

    @property
    def levels(self) -> dict[tuple[str, str], dict[CoverageLevel, tuple[PlacedScenario, ...]]]:
        """Map each covered task and path to its unit, integration, and scenario tests; () for none."""
        rows: dict[tuple[str, str], dict[CoverageLevel, tuple[PlacedScenario, ...]]] = {}
        for scenario in self.scenarios:
            for cell in product(scenario.tasks, scenario.all_paths):
                row = rows.setdefault(cell, dict.fromkeys(CoverageLevel, ()))
                for level in scenario.levels:
                    row[level] += (scenario,)
        return {cell: rows[cell] for cell in dict.fromkeys([*self.cells, *rows]) if cell in rows}

    @property
    def outside(self) -> tuple[PlacedScenario, ...]:
        """Return the scenarios outside the matrix: without a task or without a path."""
        return tuple(s for s in self.scenarios if not (s.tasks and s.all_paths))

    @property
    def cells_share(self) -> CoveredShare | None:
        """Return the share of cells with a scenario; None if no scenario is placed."""
        cells = self.cells
        return CoveredShare(sum(map(bool, cells.values())), len(cells)) if cells else None

    @property
    def tools_share(self) -> CoveredShare | None:
        """Return the share of tools that were called; None without results or tools."""
        if not (self.results and self.tools):
            return None
        return CoveredShare(sum(tool.called > 0 for tool in self.tools), len(self.tools))


def measure(
    units: Sequence[Unit],
    skipped: int,
    results: Mapping[str, RunResult],
    *,
    only_units: bool,
    agent: str | None = None,
    explored: ExploredCoverage | None = None,
) -> Coverage:
    """Measure planned scenarios and cases, and results.

    Cases that occur only in the results are placed, too. If several runs have a scenario, the last run's
    status counts; calls are counted in all runs.

    Args:
        results: runs by the path of their results.
        only_units: ignore results of other scenarios than these.
        agent: ignore results of other agents.
        explored: what explorations reached.

    Raises UsageError for a tag without a name.
    """
    planned = {(key_of(unit.scenario.name, unit.scenario.case), unit.file): unit for unit in units}
    known = {key for key, _ in planned}
    in_order = sorted(results.values(), key=lambda run: run.started_at)
    counted = [
        [
            result
            for result in run.scenarios
            if (not only_units or _key(result) in known) and agent in (None, result.agent)
        ]
        for run in in_order
    ]
    statuses = _latest_statuses(counted)
    scenarios = []
    for (key, file), unit in planned.items():
        each, where = unit.scenario, f"{file}:{unit.scenario.line}"
        scenarios.append(_placed(each.name, where, each.tags, each.case, each.scripted, statuses.get(key)))
    for key, result in {_key(result): result for run in counted for result in run}.items():
        if result.case and key not in known:
            scripted = all(c.conversation.ending not in REASONS_TO_STOP for c in result.conversations)
            where = f"{result.file}:{result.line}"
            scenarios.append(_placed(result.name, where, result.tags, result.case, scripted, statuses[key]))
    conversations = [each.conversation for run in counted for result in run for each in result.conversations]
    calls = [call for each in conversations for call in each.tool_calls]
    tools = _tools(units, calls)
    return Coverage(tuple(scenarios), skipped, tools, tuple(results), len(conversations), explored)


def _key(result: ScenarioResult) -> Key:
    return key_of(result.name, result.case)


def _latest_statuses(runs: Iterable[Sequence[ScenarioResult]]) -> dict[Key, Status | None]:
    latest: dict[tuple[Key, str], Status | None] = {}
    for run in runs:
        latest |= _worst_of(((_key(result), result.agent), result.verdict.status) for result in run)
    return _worst_of((key, status) for (key, _), status in latest.items())


_K = TypeVar("_K")


def _worst_of(statuses: Iterable[tuple[_K, Status | None]]) -> dict[_K, Status | None]:
    by_key: dict[_K, list[Status | None]] = {}
    for key, status in statuses:
        by_key.setdefault(key, []).append(status)
    return {key: worst(each) for key, each in by_key.items()}


def _tools(units: Iterable[Unit], calls: Sequence[ToolCall]) -> tuple[ToolUsage, ...]:
    mocked = [name for unit in units for name in unit.scenario.tools]
    called = Counter(call.name for call in calls)
    failed = Counter(call.name for call in calls if call.failed)
    return tuple(ToolUsage(name, called[name], failed[name]) for name in dict.fromkeys([*mocked, *called]))


_SHOWN = 5
_CELL, _GAP = 5, 3  # width of a cell such as `✓ 1/1`, and of the space between cells
_HOW_TO_TAG = 'tags=["task:refund", "path:tool-error"]'
_NONE: Part = ("–", "dim")
_Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _CoverageTable:
    """A part of the text and of the Markdown: a table, and lines below it."""

    title: str
    note: str
    head: Sequence[str]
    rows: Sequence[_Parts]
    lines: Sequence[_Parts]
    numbers: bool = False  # the cells after the first are numbers


def _sections(coverage: Coverage, marks: Mapping[Status, str]) -> Iterator[_CoverageTable]:
    cells = coverage.cells
    rows = [
        (task, *(_cell(coverage, cells[task, path], marks, "red") for path in coverage.paths))
        for task in (coverage.tasks if cells else ())
    ]
    head, note = ["task", *coverage.paths], "from the tags task:… and path:…"
    yield _CoverageTable("Tasks × paths", note, head, rows, [*_matrix_lines(coverage, marks)])
    if coverage.levels:
        yield _levels_table(coverage, marks)
    rows = [
        (
            tool.name,
            f"{tool.called:,}" if tool.called else ("never", "red"),
            f"{tool.failed:,}" if tool.failed else _NONE,
        )
        for tool in (coverage.tools if coverage.results else ())
    ]
    held = f"{count(coverage.conversations, 'conversation')} in {', '.join(coverage.results)}"
    note = held if coverage.results else "from the scenarios' mocks"
    yield _CoverageTable(
        "Tools", note, ["tool", "called", "failed"], rows, [*_tool_lines(coverage)], numbers=True
    )
    if explored := coverage.explored:
        rows = [
            (
                tool,
                ", ".join(f"{each} {number:,}" for each, number in outcomes.items() if number) or _NONE,
                ", ".join(each for each in outcomes if not outcomes[each]) or _NONE,
            )
            for tool, outcomes in explored.tools.items()
        ]
        lines = (
            [_share(share, "outcome", "was", "were", "reached")] if (share := coverage.outcomes_share) else []
        )
        if unused := explored.never_exercised:
            lines.append((f"Rules never exercised: {', '.join(unused)}",))
        head = ["tool", "reached", "never reached"]
        yield _CoverageTable("Explored", "outcomes of tools, and rules", head, rows, lines)


def _levels_table(coverage: Coverage, marks: Mapping[Status, str]) -> _CoverageTable:
    levels = coverage.levels
    have = {level: sum(bool(row[level]) for row in levels.values()) for level in CoverageLevel}
    verb = "has" if have[CoverageLevel.UNIT] == 1 else "have"
    counted = (
        f"{count(len(levels), 'path')}: {have[CoverageLevel.UNIT]} {verb} a unit test, "
        f"{have[CoverageLevel.INTEGRATION]} an integration test, "
        f"{have[CoverageLevel.SCENARIO]} a scenario test"
    )
    rows: list[_Parts] = [
        (*cell, *(_cell(coverage, found, marks, "dim") for found in row.values()))
        for cell, row in levels.items()
    ]
    head = ("task", "path", *(level.title() for level in CoverageLevel))
    title = "Unit, integration and scenario tests"
    return _CoverageTable(title, "by tag, else by kind", head, rows, [(counted,)])


def _cell(
    coverage: Coverage, scenarios: Sequence[PlacedScenario], marks: Mapping[Status, str], gap_style: str
) -> Part:
    if not scenarios:
        return "–", gap_style
    if not coverage.results:
        return str(len(scenarios))
    status = worst(s.status for s in scenarios)
    passed = f"{sum(s.status is Status.PASSED for s in scenarios)}/{len(scenarios)}"
    return (f"{marks[status]} {passed}", STYLES[status]) if status else (f"? {passed}", "yellow")


def _matrix_lines(coverage: Coverage, marks: Mapping[Status, str]) -> Iterator[_Parts]:
    share = coverage.cells_share
    if not share:
        yield ("Nothing to show: ", "yellow"), f"no scenario has both tags, like {_HOW_TO_TAG}."
    elif coverage.results:
        statuses = (Status.PASSED, Status.FAILED, Status.ERRORED)
        meanings = ", ".join(f"{marks[status]} {status}" for status in statuses)
        yield ((f"passed/scenarios: {meanings}, ? not in the results, – none", "dim"),)
    if share:
        yield _share(share, "cell", "has", "have", "a scenario")
    if coverage.gaps:
        yield (("Without a scenario", "bold"),)
        yield from ((f"  {task}: {', '.join(paths)}",) for task, paths in coverage.gaps.items())
    if coverage.outside and share:
        outside = count(len(coverage.outside), "scenario")
        yield ((f"{outside} in no cell: they need a task: and a path: tag", "bold"),)
        yield from (("  ", (each.where, "cyan"), f" {each.name}") for each in coverage.outside[:_SHOWN])
        if len(coverage.outside) > _SHOWN:
            yield ((f"  and {len(coverage.outside) - _SHOWN} more", "dim"),)
    if coverage.skipped:
        yield ((f"{count(coverage.skipped, 'scenario')} skipped, which cover nothing", "dim"),)


def _tool_lines(coverage: Coverage) -> Iterator[_Parts]:
    if not coverage.tools:
        yield ("No scenario mocks a tool" + (", and none was called." if coverage.results else "."),)
    elif not coverage.results:
        yield (f"{count(len(coverage.tools), 'tool')}: {', '.join(tool.name for tool in coverage.tools)}",)
        yield ("Whether they are called is known after a run: agentest run --reporter json",)
    if share := coverage.tools_share:
        yield _share(share, "tool", "was", "were", "called")
        if never_failed := [tool.name for tool in coverage.tools if tool.called and not tool.failed]:
            yield (f"Never seen failing: {', '.join(never_failed)}",)


def _share(share: CoveredShare, noun: str, verb: str, verbs: str, what: str) -> _Parts:
    style = "green" if share.covered == share.of else "yellow"
    did = f"{share.covered} of {count(share.of, noun)} {verb if share.covered == 1 else verbs} {what} "
    return did, (f"({share.percent} %)", f"bold {style}")


def print_text(coverage: Coverage, console: Console) -> None:
    """Print tables and lists."""
    printer = Printer(console)
    for number, section in enumerate(_sections(coverage, printer.glyphs.marks)):
        title = line(0, (section.title, "bold"), (f"  {section.note}", "dim"))
        printer.write([*([BLANK] if number else ()), title, BLANK])
        for columns in _together(section, console) if section.rows else ():
            table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
            for column in columns:
                justify: Literal["left", "right"] = "right" if section.numbers and column else "left"
                table.add_column(printer.text([section.head[column]]), overflow="fold", justify=justify)
            for row in section.rows:
                table.add_row(*(printer.text([row[column]]) for column in columns))
            printer.write_table(table)
            printer.write([BLANK])
        printer.write([line(0, *parts) for parts in section.lines])


def _together(section: _CoverageTable, console: Console) -> Iterator[list[int]]:
    """Yield the columns of each table that fits the terminal; each begins with the first column."""
    wraps = console.is_terminal and not console.soft_wrap
    first = max(cell_len(_plain(row[0])) for row in section.rows)
    columns, width = [0], first
    for column in range(1, len(section.head)):
        more = max(cell_len(section.head[column]), _CELL) + _GAP
        if wraps and columns[1:] and width + more > console.width:
            yield columns
            columns, width = [0], first
        columns, width = [*columns, column], width + more
    yield columns


def _plain(part: Part) -> str:
    return part if isinstance(part, str) else part[0]


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
    if explored := coverage.explored:
        document["explored"] = {
            "tools": explored.tools,
            "rules": explored.rules,
            "neverReached": [{"tool": tool, "outcome": each} for tool, each in explored.never_reached],
            "neverExercised": explored.never_exercised,
        }
        document["shares"]["outcomes"] = _share_json(coverage.outcomes_share)
    return json_document(json.loads(json.dumps(document)))


def _listed(scenarios: Iterable[PlacedScenario]) -> list[dict[str, Any]]:
    return [{"name": s.name, "status": s.status and s.status.value} for s in scenarios]


def _share_json(share: CoveredShare | None) -> dict[str, Any] | None:
    return {"covered": share.covered, "of": share.of, "percent": share.percent} if share else None


def as_markdown(coverage: Coverage) -> str:
    """Return Markdown tables for a pull request."""
    text = []
    for section in _sections(coverage, ICONS):
        text.append(f"**{section.title}**")
        if section.rows:
            rows = [table_row(literal(_plain(part)) for part in row) for row in section.rows]
            text.append((table_head([*map(literal, section.head)]) + "".join(rows)).rstrip("\n"))
        text += [literal("".join(map(_plain, parts)).strip()) for parts in section.lines]
    return "\n\n".join(text) + "\n"
