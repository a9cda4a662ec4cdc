"""Routes of comparisons: two kept runs, or two agents of one, by the figures of `agentest compare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from aiohttp import web

from agentest.history.compared_runs import MeasuredRun, measured_run, measured_scenario, of_agent
from agentest.history.comparison import compared
from agentest.history.comparison_data import Between, for_page
from agentest.store.reader import read_results
from agentest.store.run_results import run_of
from agentest.store.runs.folder import LATEST, KeptRun, kept_runs
from agentest.store.runs.record import RunRecord, read_record
from agentest.support.errors import UsageError
from agentest.support.json_text import Json
from agentest.web.json_exchange import answer_of
from agentest.web.project import UI, Project
from agentest.web.run_index import CHOSEN

_COMMIT_CHARS = 7


def add_comparisons(app: web.Application) -> None:
    """Add the routes."""
    app.add_routes(routes())


def routes() -> Iterable[web.RouteDef]:
    """All of them."""
    return (web.get("/api/compare", _compare),)


async def _compare(request: web.Request) -> web.Response:
    query = {key: request.query.get(key, "") for key in ("of", "base", "new")}
    return await answer_of(lambda: answer(request.app[UI], **query))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """A run that can be compared."""

    id: str
    file: Path
    record: RunRecord | None

    @property
    def stamp(self) -> tuple[Path, str, tuple[int, int]]:
        """Its file, its name, and what differs whenever the file does."""
        try:
            found = self.file.stat()
        except OSError:
            raise UsageError(f"the run {self.id} is not kept any more: choose another") from None
        return self.file, self.id, (found.st_mtime_ns, found.st_size)

    @property
    def measured(self) -> MeasuredRun:
        return _measured(*self.stamp)


class _Side(NamedTuple):
    """What stands on one side; `agent`: whose part of the run, None: all of it."""

    file: Path
    label: str
    written: tuple[int, int]
    agent: str | None = None

    @property
    def measured(self) -> MeasuredRun:
        run = _measured(self.file, self.label, self.written)
        return of_agent(run, self.agent) if self.agent is not None else run


def answer(project: Project, *, of: str, base: str, new: str) -> Json:
    """What there is to choose from, what is chosen, and what came of comparing it.

    Args:
        of: the run whose agents may be compared; "": the latest.
        base, new: two of its agents, or two runs; "": its first two agents, or else this run and the one
            before it.

    What cannot be compared says why as `problem`.
    """
    runs = _runs(project)
    shown: Json = {
        "choices": _choices(runs, ()),
        "of": "",
        "agents": [],
        "base": base,
        "new": new,
        "between": str(Between.RUNS),
        "comparison": None,
        "problem": "",
    }
    try:
        return {**shown, **_compared(runs, of, base, new)}
    except UsageError as error:
        return {**shown, "problem": str(error)}


def _compared(runs: Sequence[_Run], of: str, base: str, new: str) -> Json:
    mine = _named(runs, of or (new if any(run.id == new for run in runs) else LATEST))
    agents = mine.measured.agents
    if not (base or new) and len(agents) > 1:
        base, new = agents[:2]
    base, new = _chosen(runs, mine, agents, base, new)
    shown: Json = {"of": mine.id, "agents": list(agents), "base": base, "new": new}
    shown["choices"] = _choices(runs, agents if len(agents) > 1 else ())
    between = Between.AGENTS if base in agents and new in agents else Between.RUNS
    try:
        if base == new:
            raise UsageError("both are the same: choose two that differ")
        if between is Between.AGENTS:
            sides = [_Side(*mine.stamp, name) for name in (base, new)]
        else:
            sides = [_Side(*_named(runs, name).stamp) for name in (base, new)]
        comparison = _comparison(sides[0], sides[1], between)
    except UsageError as error:
        return {**shown, "between": str(between), "problem": str(error)}
    return {**shown, "between": str(between), "comparison": comparison}


def _chosen(runs: Sequence[_Run], mine: _Run, agents: Sequence[str], base: str, new: str) -> tuple[str, str]:
    """Both sides, where an address leaves one out."""
    if base in agents or new in agents:
        return base or _other(agents, new), new or _other(agents, base)
    new = new or mine.id
    named = next((run for run in runs if run.id == new), mine)
    earlier = [run.id for run in sorted(runs, key=lambda run: not _alike(run, named)) if run.id < new]
    return base or (earlier[0] if earlier else _other([run.id for run in runs], new)), new


def _alike(run: _Run, other: _Run) -> bool:
    """Whether both were of as many scenarios, in the same way: such runs are compared first."""
    if run.record is None or other.record is None:
        return False
    one, two = run.record, other.record
    return (one.kind, one.scenarios, one.partial) == (two.kind, two.scenarios, two.partial)


def _other(names: Sequence[str], name: str) -> str:
    """The first that is another one; "": there is none."""
    return next((each for each in names if each != name), "")


def _named(runs: Sequence[_Run], name: str) -> _Run:
    if not runs:
        raise UsageError("no run is kept yet: start one, here or with agentest run")
    if name == LATEST:
        return runs[0]
    for run in runs:
        if run.id == name:
            return run
    if not name:
        raise UsageError("one run is kept, and two are compared: run again")
    raise UsageError(f"{name[:80]!r} is neither a kept run nor an agent of this one: choose another")


def _runs(project: Project) -> list[_Run]:
    """Those that can be read, the latest first."""
    kept = [
        _Run(id=run.id, file=run.file, record=run.record)
        for run in reversed(kept_runs(project.output_dir))
        if run.file
    ]
    path = project.chosen
    if path and all(run.file.parent.resolve() != path.parent.resolve() for run in kept):
        return [*kept, _Run(id=CHOSEN, file=path, record=read_record(path.parent))]
    return kept


def _choices(runs: Sequence[_Run], agents: Sequence[str]) -> Json:
    """What each side may be, and how it is called."""
    every = [*((name, f"agent {name}") for name in agents), *((run.id, _told(run)) for run in runs)]
    return {"base": every, "new": every}


def _told(run: _Run) -> str:
    """A run in words: when it began, how it ended, of which commit it was."""
    record = run.record
    if record is None:
        return run.id
    state = KeptRun(run.file.parent).state_of(record)
    begun = f"{record.started_at[:16].replace('T', ' ')} UTC"
    commit = record.commit[:_COMMIT_CHARS] if record.commit else ""
    return " · ".join(filter(None, [begun, state, commit, run.id]))


@lru_cache(maxsize=4)
def _comparison(base: _Side, new: _Side, between: Between) -> Json:
    """It is asked for again with every transcript that is opened."""
    return for_page(compared(base.measured, new.measured), between)


@lru_cache(maxsize=4)
def _measured(file: Path, label: str, written: tuple[int, int]) -> MeasuredRun:
    """A run in numbers; `written` keeps what a file was before it changed from being taken for it."""
    del written
    result, record = run_of(read_results(file)), read_record(file.parent)
    partial = record is not None and record.partial
    return measured_run(result, label, map(measured_scenario, result.scenarios), partial=partial)
