"""What scenarios and results cover. Tags place a scenario: any number of `task:NAME` and `path:NAME`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentest.errors import UsageError
from agentest.results import Status
from agentest.run.plan import Unit
from agentest.store.conversations import conversation_of
from agentest.store.reading import AnyRun
from agentest.store.runs import entries
from agentest.transcript import ToolCall

TASK, PATH = "task:", "path:"
_WORST_FIRST = (Status.FAILED, Status.ERRORED, None, Status.SKIPPED, Status.PASSED)


@dataclass(frozen=True, slots=True)
class Placed:
    """A scenario and where its tags place it."""

    name: str
    where: str
    """`file:line`."""
    tasks: tuple[str, ...]
    paths: tuple[str, ...]
    status: Status | None
    """The worst of its results; None where the results hold none of it."""


@dataclass(frozen=True, slots=True)
class CoveredShare:
    """How many of how many. `of` is at least 1."""

    covered: int
    of: int

    @property
    def percent(self) -> int:
        """Rounded down, so that 100 means all."""
        return 100 * self.covered // self.of

    def below(self, percent: float) -> bool:
        return 100 * self.covered < percent * self.of


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How often a tool was called, and how many of the calls failed."""

    name: str
    called: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Coverage:
    """Everything that was measured. Tasks, paths, scenarios and tools in the order in which they came."""

    scenarios: tuple[Placed, ...]
    skipped: int
    """How many scenarios are not run, and so cover nothing."""
    tools: tuple[ToolUse, ...]
    results: tuple[str, ...]
    """Where the results were read; () where there are none."""
    conversations: int
    """In the results."""

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(task for s in self.scenarios for task in s.tasks))

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(path for s in self.scenarios for path in s.paths))

    @property
    def cells(self) -> dict[tuple[str, str], tuple[Placed, ...]]:
        """The scenarios of every task and path; () for a gap."""
        cells: dict[tuple[str, str], list[Placed]] = {(t, p): [] for t in self.tasks for p in self.paths}
        for scenario in self.scenarios:
            for task in scenario.tasks:
                for path in scenario.paths:
                    cells[task, path].append(scenario)
        return {cell: tuple(scenarios) for cell, scenarios in cells.items()}

    @property
    def gaps(self) -> dict[str, tuple[str, ...]]:
        """Task → the paths for which it has no scenario; tasks without a gap are left out."""
        empty = [cell for cell, scenarios in self.cells.items() if not scenarios]
        return {
            t: tuple(path for task, path in empty if task == t) for t in dict.fromkeys(t for t, _ in empty)
        }

    @property
    def outside(self) -> tuple[Placed, ...]:
        """The scenarios that are in no cell: without a task, or without a path."""
        return tuple(s for s in self.scenarios if not (s.tasks and s.paths))

    @property
    def cells_share(self) -> CoveredShare | None:
        """Cells that have a scenario; None where no scenario is placed."""
        cells = self.cells
        return (
            CoveredShare(sum(bool(scenarios) for scenarios in cells.values()), len(cells)) if cells else None
        )

    @property
    def tools_share(self) -> CoveredShare | None:
        """Tools that were called; None without results or tools."""
        if not (self.results and self.tools):
            return None
        return CoveredShare(sum(tool.called > 0 for tool in self.tools), len(self.tools))


def worst(statuses: Iterable[Status | None]) -> Status | None:
    """The worst of at least one status; unknown is worse than passed."""
    return min(statuses, key=_WORST_FIRST.index)


def measure(
    units: Sequence[Unit],
    skipped: int,
    results: Mapping[str, AnyRun],
    *,
    only_units: bool,
    agent: str | None = None,
) -> Coverage:
    """Measure planned scenarios and what results hold.

    Args:
        results: runs by the path from which they were read.
        only_units: ignore results of other scenarios than these.
        agent: ignore results of other agents.

    Raises UsageError for a tag without a name.
    """
    by_name = {unit.scenario.name: unit for unit in units}

    statuses: dict[str, list[Status]] = {}
    calls: list[ToolCall] = []
    conversations = 0
    for entry in (entry for run in results.values() for entry in entries(run)):
        scenario = entry.scenario
        if (only_units and scenario.name not in by_name) or agent not in (None, scenario.agent):
            continue
        statuses.setdefault(scenario.name, []).append(scenario.status)
        conversations += len(entry.conversations)
        calls += [call for stored in entry.conversations for call in conversation_of(stored).tool_calls]
    placed = tuple(_placed(unit, statuses.get(name, [])) for name, unit in by_name.items())
    return Coverage(placed, skipped, _tools(units, calls), tuple(results), conversations)


def _placed(unit: Unit, statuses: Sequence[Status]) -> Placed:
    scenario = unit.scenario
    where = f"{unit.file}:{scenario.line}"
    return Placed(
        scenario.name,
        where,
        _named(scenario.tags, TASK, where),
        _named(scenario.tags, PATH, where),
        worst(statuses) if statuses else None,
    )


def _named(tags: Iterable[str], prefix: str, where: str) -> tuple[str, ...]:
    names = dict.fromkeys(tag.removeprefix(prefix).strip() for tag in tags if tag.startswith(prefix))
    if "" in names:
        raise UsageError(f"{where}: the tag {prefix!r} names nothing; write it like {prefix}refund")
    return tuple(names)


def _tools(units: Iterable[Unit], calls: Sequence[ToolCall]) -> tuple[ToolUse, ...]:
    mocked = [name for unit in units for name in unit.scenario.tools]
    called = Counter(call.name for call in calls)
    failed = Counter(call.name for call in calls if _failed(call))
    return tuple(
        ToolUse(name, called[name], failed[name])
        for name in dict.fromkeys([*mocked, *(call.name for call in calls)])
    )


def _failed(call: ToolCall) -> bool:
    """Whether the agent saw the call fail: an exception, wrong arguments, an answer with an `error`."""
    error = call.result.get("error") if isinstance(call.result, Mapping) else None
    return bool(call.error or call.invalid_arguments or error)
