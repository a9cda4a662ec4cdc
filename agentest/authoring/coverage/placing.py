"""Where scenarios and cases of evaluation sets belong: task, path, and what kind of test they are.

Tags decide: any number of `task:NAME` and `path:NAME`, and `unit`, `integration`, `scenario`. Cases that have
none are placed by their ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from agentest.domain.end_reason import REASONS_TO_STOP
from agentest.domain.results import CaseId, Status
from agentest.runner.plan import Unit
from agentest.store.shapes import StoredEntry
from agentest.support.errors import UsageError

TASK, PATH = "task:", "path:"
_WORST_FIRST = (Status.FAILED, Status.ERRORED, None, Status.SKIPPED, Status.PASSED)

Key = tuple[str, str] | str
"""By what a scenario is known in plans and results: a case by its set's id and its own, others by name."""


class Level(StrEnum):
    """The columns of a test matrix."""

    UNIT = "unit"
    INTEGRATION = "integration"
    SCENARIO = "scenario"


@dataclass(frozen=True, slots=True)
class Placed:
    """A scenario or a case and where it belongs."""

    name: str
    where: str
    """`file:line`."""
    tasks: tuple[str, ...]
    paths: tuple[str, ...]
    status: Status | None
    """The worst of its results; None where the results hold none of it."""
    levels: tuple[Level, ...] = (Level.UNIT,)
    own_path: str = ""
    """A path that it shares with nobody, for a case that names none: its id."""

    @property
    def opens_rows(self) -> bool:
        """Whether its tasks belong to the matrix: a case with a path of its own alone opens no row there."""
        return bool(self.paths or not self.own_path)

    @property
    def all_paths(self) -> tuple[str, ...]:
        return self.paths or ((self.own_path,) if self.own_path else ())


def worst(statuses: Iterable[Status | None]) -> Status | None:
    """The worst of at least one status; unknown is worse than passed."""
    return min(statuses, key=_WORST_FIRST.index)


def key_of(name: str, case: CaseId | None) -> Key:
    return (case.eval_set_id, case.eval_id) if case else name


def placed(unit: Unit, status: Status | None) -> Placed:
    """A planned scenario. Raises UsageError for a tag without a name."""
    scenario = unit.scenario
    level = _level(is_case=scenario.case is not None, scripted=scenario.scripted)
    where = f"{unit.file}:{scenario.line}"
    return _placed(scenario.name, where, scenario.tags, scenario.case, level, status)


def placed_case(entry: StoredEntry, case: CaseId, status: Status | None) -> Placed:
    """A case that only results tell of. Raises UsageError for a tag without a name."""
    scenario = entry.scenario
    scripted = all(held.ended_by not in REASONS_TO_STOP for held in entry.conversations)
    level = _level(is_case=True, scripted=scripted)
    return _placed(scenario.name, f"{scenario.file}:{scenario.line}", scenario.tags, case, level, status)


def _level(*, is_case: bool, scripted: bool) -> Level:
    """What a test is whose tags say nothing."""
    if not scripted:
        return Level.SCENARIO
    return Level.INTEGRATION if is_case else Level.UNIT


def _placed(
    name: str, where: str, tags: tuple[str, ...], case: CaseId | None, level: Level, status: Status | None
) -> Placed:
    task, path, own = _by_id(case) if case else ("", "", "")
    tasks, paths = _named(tags, TASK, where) or _one(task), _named(tags, PATH, where) or _one(path)
    levels = tuple(each for each in Level if each in tags) or (level,)
    return Placed(name, where, tasks, paths, status, levels, "" if paths else own)


def _by_id(case: CaseId) -> tuple[str, str, str]:
    """Task, path and own path of a case: by an id that reads `task/path/…`, else its set is the task."""
    task, _, rest = (part.strip() for part in case.eval_id.partition("/"))
    path = rest.partition("/")[0].strip()
    return (task, path, "") if task and path else (case.eval_set_id, "", case.eval_id)


def _one(name: str) -> tuple[str, ...]:
    return (name,) if name else ()


def _named(tags: Iterable[str], prefix: str, where: str) -> tuple[str, ...]:
    names = dict.fromkeys(tag.removeprefix(prefix).strip() for tag in tags if tag.startswith(prefix))
    if "" in names:
        raise UsageError(f"{where}: the tag {prefix!r} names nothing; write it like {prefix}refund")
    return tuple(names)
