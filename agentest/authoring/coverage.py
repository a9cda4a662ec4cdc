"""Measure which tasks, paths, levels, and tools scenarios, evaluation cases, and results cover."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import product
from typing import TypeVar

from agentest.domain.end_reason import REASONS_TO_STOP
from agentest.domain.results import CaseId, RunResult, ScenarioResult, Status
from agentest.domain.transcript import ToolCall, are_arguments_unknown
from agentest.runner.plan import Unit
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass

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
    where: str
    """`file:line`."""
    tasks: tuple[str, ...]
    paths: tuple[str, ...]
    status: Status | None
    """The worst status of its results; None without results."""
    levels: tuple[CoverageLevel, ...] = (CoverageLevel.UNIT,)
    own_path: str = ""
    """For a case that names no path: its id, which serves as a path of its own."""

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


def place_unit(unit: Unit, status: Status | None) -> PlacedScenario:
    """Place a planned scenario. Raises UsageError for a tag without a name."""
    scenario = unit.scenario
    level = _default_level(is_case=scenario.case is not None, scripted=scenario.scripted)
    where = f"{unit.file}:{scenario.line}"
    return _placed(scenario.name, where, scenario.tags, scenario.case, level, status)


def place_result_case(result: ScenarioResult, case: CaseId, status: Status | None) -> PlacedScenario:
    """Place a case that occurs only in results. Raises UsageError for a tag without a name."""
    scripted = all(each.conversation.ending not in REASONS_TO_STOP for each in result.conversations)
    level = _default_level(is_case=True, scripted=scripted)
    return _placed(result.name, f"{result.file}:{result.line}", result.tags, case, level, status)


def _default_level(*, is_case: bool, scripted: bool) -> CoverageLevel:
    if not scripted:
        return CoverageLevel.SCENARIO
    return CoverageLevel.INTEGRATION if is_case else CoverageLevel.UNIT


def _placed(
    name: str,
    where: str,
    tags: tuple[str, ...],
    case: CaseId | None,
    level: CoverageLevel,
    status: Status | None,
) -> PlacedScenario:
    task, path, position = _position_by_id(case) if case else ("", "", "")
    tasks, paths = _named(tags, TASK, where) or _as_tuple(task), _named(tags, PATH, where) or _as_tuple(path)
    levels = tuple(each for each in CoverageLevel if each in tags) or (level,)
    return PlacedScenario(name, where, tasks, paths, status, levels, "" if paths else position)


def _position_by_id(case: CaseId) -> tuple[str, str, str]:
    """Return task, path, and own path of a case: from an id like `task/path/…`, else its set is the task."""
    task, _, rest = (part.strip() for part in case.eval_id.partition("/"))
    path = rest.partition("/")[0].strip()
    return (task, path, "") if task and path else (case.eval_set_id, "", case.eval_id)


def _as_tuple(name: str) -> tuple[str, ...]:
    return (name,) if name else ()


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
    skipped: int
    """Number of skipped scenarios, which cover nothing."""
    tools: tuple[ToolUsage, ...]
    results: tuple[str, ...]
    """The files of the results; () if there are none."""
    conversations: int
    """Number of conversations in the results."""

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
        cells: dict[tuple[str, str], list[PlacedScenario]] = {
            (t, p): [] for t in self.tasks for p in self.paths
        }
        for scenario in self.scenarios:
            for cell in product(scenario.tasks, scenario.paths):
                cells[cell].append(scenario)
        return {cell: tuple(scenarios) for cell, scenarios in cells.items()}

    @property
    def gaps(self) -> dict[str, tuple[str, ...]]:
        """Map each task to the paths for which it has no scenario. Tasks without gaps are left out."""
        empty = [cell for cell, scenarios in self.cells.items() if not scenarios]
        return {
            t: tuple(path for task, path in empty if task == t) for t in dict.fromkeys(t for t, _ in empty)
        }

    @property
    def levels(self) -> dict[tuple[str, str], dict[CoverageLevel, tuple[PlacedScenario, ...]]]:
        """Map each covered task and path to its unit, integration, and scenario tests; () for none."""
        rows: dict[tuple[str, str], dict[CoverageLevel, tuple[PlacedScenario, ...]]] = {}
        for scenario in self.scenarios:
            for cell in product(scenario.tasks, scenario.all_paths):
                row = rows.setdefault(cell, dict.fromkeys(CoverageLevel, ()))
                for level in scenario.levels:
                    row[level] += (scenario,)
        order = [*self.cells, *rows]
        return {cell: rows[cell] for cell in dict.fromkeys(order) if cell in rows}

    @property
    def outside(self) -> tuple[PlacedScenario, ...]:
        """Return the scenarios outside the matrix: without a task or without a path."""
        return tuple(s for s in self.scenarios if not (s.tasks and s.all_paths))

    @property
    def cells_share(self) -> CoveredShare | None:
        """Return the share of cells with a scenario; None if no scenario is placed."""
        cells = self.cells
        return (
            CoveredShare(sum(bool(scenarios) for scenarios in cells.values()), len(cells)) if cells else None
        )

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
) -> Coverage:
    """Measure planned scenarios and cases, and results.

    Cases that occur only in the results are placed, too. If several runs have a scenario, the last run's
    status counts; calls are counted in all runs.

    Args:
        results: runs by the path of their results.
        only_units: ignore results of other scenarios than these.
        agent: ignore results of other agents.

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
    scenarios = [place_unit(unit, statuses.get(key)) for (key, _), unit in planned.items()]
    return Coverage(
        (*scenarios, *_placed_result_cases(counted, known, statuses)),
        skipped,
        _tools(units, _all_calls(counted)),
        tuple(results),
        sum(len(result.conversations) for run in counted for result in run),
    )


def _all_calls(counted: Sequence[Sequence[ScenarioResult]]) -> list[ToolCall]:
    return [
        call
        for run in counted
        for result in run
        for each in result.conversations
        for call in each.conversation.tool_calls
    ]


def _key(result: ScenarioResult) -> Key:
    return key_of(result.name, result.case)


def _latest_statuses(runs: Iterable[Sequence[ScenarioResult]]) -> dict[Key, Status | None]:
    """Return the status of each scenario: the worst of all agents in the last run that has it.

    Args:
        runs: oldest first.
    """
    latest: dict[tuple[Key, str], Status | None] = {}
    for run in runs:
        latest |= _worst_of(((_key(result), result.agent), result.verdict.status) for result in run)
    return _worst_of((key, status) for (key, _), status in latest.items())


_K = TypeVar("_K")


def _worst_of(statuses: Iterable[tuple[_K, Status | None]]) -> dict[_K, Status | None]:
    worst_by_key: dict[_K, Status | None] = {}
    for key, status in statuses:
        worst_by_key[key] = worst([worst_by_key[key], status]) if key in worst_by_key else status
    return worst_by_key


def _placed_result_cases(
    runs: Iterable[Sequence[ScenarioResult]], planned: Container[Key], statuses: Mapping[Key, Status | None]
) -> Iterator[PlacedScenario]:
    last = {_key(result): result for run in runs for result in run}
    for key, result in last.items():
        if result.case and key not in planned:
            yield place_result_case(result, result.case, statuses[key])


def _tools(units: Iterable[Unit], calls: Sequence[ToolCall]) -> tuple[ToolUsage, ...]:
    mocked = [name for unit in units for name in unit.scenario.tools]
    called = Counter(call.name for call in calls)
    failed = Counter(call.name for call in calls if _failed(call))
    return tuple(
        ToolUsage(name, called[name], failed[name])
        for name in dict.fromkeys([*mocked, *(call.name for call in calls)])
    )


def _failed(call: ToolCall) -> bool:
    """Return True if the agent saw the call fail: an exception, invalid arguments, or an `error`."""
    error = call.result.get("error") if isinstance(call.result, Mapping) else None
    invalid = call.invalid_arguments and not are_arguments_unknown(call)
    return bool(call.error or invalid or error)
