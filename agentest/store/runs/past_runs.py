"""Find the latest verdicts, the trend of recent runs and their use of resources in the run history."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from typing import NamedTuple

from agentest.domain.figures import PastRun, ScenarioResources
from agentest.domain.results import ReasonKind, ScenarioResult, Status
from agentest.store.runs.folder import (
    JOURNAL,
    RESULTS,
    RunKind,
    RunRecord,
    StoredRunFolder,
    list_stored_runs,
    read_record,
    recorded_scenario,
)
from agentest.support.errors import UsageError
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass

_KINDS = frozenset({RunKind.RUN, RunKind.EVAL, RunKind.MERGE})


class ScenarioWithAgent(NamedTuple):
    file: str
    name: str
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestVerdicts:
    """The verdicts from each scenario's last complete execution."""

    known: Mapping[ScenarioWithAgent, Status] = field(default_factory=dict)
    begun: frozenset[tuple[str, str]] = frozenset()  # scenario and agent of those that never completed
    runs: int = 0
    unreadable: tuple[str, ...] = ()  # lines of journals that were skipped

    def has_failed(self, tried: ScenarioWithAgent) -> bool:
        """True if a scenario failed, errored or never ended, because an unknown verdict is not a pass."""
        status = self.known.get(tried)
        if status is None:
            return (tried.name, tried.agent) in self.begun
        return status in (Status.FAILED, Status.ERRORED)

    def is_new(self, tried: ScenarioWithAgent) -> bool:
        """True if no stored run has started it."""
        return tried not in self.known and (tried.name, tried.agent) not in self.begun

    @property
    def failed(self) -> list[ScenarioWithAgent]:
        """Return all that failed or errored."""
        return [tried for tried in self.known if self.has_failed(tried)]


def latest_verdicts(output_dir: Path, wanted: Collection[ScenarioWithAgent] = ()) -> LatestVerdicts:
    """Return the latest verdict on each scenario. An interrupted scenario has the verdict before it.

    Args:
        wanted: reading stops when the verdicts on these are known; older runs are not read.
    """
    known: dict[ScenarioWithAgent, Status] = {}
    begun: set[tuple[str, str]] = set()
    unreadable: list[str] = []
    read_runs = 0
    for run in reversed(list_stored_runs(output_dir)):
        record = run.record
        if record is None or record.kind not in _KINDS or run.file is None:
            continue
        read_runs += 1
        # A line that amends another comes after it.
        for tried, status in dict(_verdicts(run, unreadable)).items():
            if status is None:
                begun.add((tried.name, tried.agent))
            else:
                known.setdefault(tried, status)
        if wanted and all(tried in known for tried in wanted):
            break
    begun -= {(tried.name, tried.agent) for tried in known}
    return LatestVerdicts(known=known, begun=frozenset(begun), runs=read_runs, unreadable=tuple(unreadable))


def verdicts_of_selection(
    output_dir: Path, kind: RunKind, selection: str
) -> dict[tuple[str, str, str], Status]:
    """Return the verdicts of the last run of a kind with the same selection, by file, scenario and agent."""
    for run in reversed(list_stored_runs(output_dir)):
        record = run.record
        if record and record.kind is kind and record.selection == selection and record.ended:
            return {
                (each.file, each.name, each.agent): status for each, status in _verdicts(run, []) if status
            }
    return {}


def _verdicts(
    run: StoredRunFolder, unreadable: list[str]
) -> Iterator[tuple[ScenarioWithAgent, Status | None]]:
    from agentest.store.reader import JournalError, index_journal, read_checked

    journal, lines = run.path / JOURNAL, list[str]()
    begun, results = list[tuple[str, str]](), list[ScenarioResult]()
    with suppress(OSError, JournalError):  # it is missing, or not a journal
        index = index_journal(journal, lines)
        begun, results = [*index.planned], [*index.scenarios.values()]
    if lines or not (begun or results):
        try:
            results = [*read_checked(run.path / RESULTS)[1].scenarios]
        except UsageError:  # the run was killed: the other lines count
            unreadable += (f"{journal} is damaged, and was read without {line}" for line in lines)
    yield from ((ScenarioWithAgent("", *place), None) for place in begun)
    for result in results:
        status = result.verdict.status
        kinds = (reason.kind for reason in result.verdict.reasons)
        undecided = status is not Status.FAILED and ReasonKind.INTERRUPTED in kinds
        yield ScenarioWithAgent(result.file, result.name, result.agent), None if undecided else status


RecordOf = Callable[[StoredRunFolder], RunRecord | None]
MOST_RUNS = 20


def resume_command(record: RunRecord, eval_sets: Iterable[str] = ()) -> str:
    """Return the command that continues a run that ended early; "" if there is none."""
    sets = tuple(dict.fromkeys(eval_sets))
    if record.kind is RunKind.RUN or (record.kind is RunKind.EVAL and sets):
        return shlex.join(["agentest", str(record.kind), *sets, "--resume", record.id])
    return ""


def about(record: RunRecord) -> Json:
    """Return the properties of a run without its numbers, such as `id`, `kind` and `startedAt`."""
    return {
        "id": record.id,
        "kind": str(record.kind),
        "startedAt": record.started_at,
        "version": record.version,
        "models": dict(record.models),
        "agents": dict(record.agents),
        "commit": record.commit,
        "shard": record.shard,
        "partial": record.partial,
        "resumed": record.resumed,
    }


def trend(
    output_dir: Path, last: RunRecord, most: int = MOST_RUNS, record_of: RecordOf = lambda run: run.record
) -> list[Json]:
    """Summarize a run and the runs of its kind that ended before it; the latest comes last.

    Args:
        last: the run; it is omitted if it has not ended.
        most: the maximum number of runs.
    """
    earlier = [point for record in _before(output_dir, last, most, record_of) for point in _points(record)]
    return [*reversed(earlier), *_points(last)][-most:]


def _before(output_dir: Path, last: RunRecord, most: int, record_of: RecordOf) -> Iterator[RunRecord]:
    for run in reversed(list_stored_runs(output_dir)):
        record = record_of(run) if run.id < last.id else None
        if record and record.kind == last.kind and record.ended:
            yield record
            most -= 1
            if not most:
                return


def _points(record: RunRecord) -> Iterator[Json]:
    ended = record.ended
    if ended:
        yield {
            "id": record.id,
            "startedAt": record.started_at,
            "state": "interrupted" if ended.interrupted else str(ended.status),
            "scenarios": ended.scenarios,
            "passed": ended.passed,
            "failed": ended.failed,
            "errored": ended.errored,
            "conversations": ended.conversations,
            "cost": ended.cost,
            "durationMs": round(ended.duration_ms, 3),
            "partial": record.partial or record.shard is not None,
            "statuses": [
                [each.scenario, each.agent, str(each.status)] for each in record.took if each.status
            ],
        }


def find_earlier_run(
    records: Iterable[RunRecord], places: Collection[tuple[str, str]], *, offline: bool
) -> PastRun | None:
    """Return the resources of the first run that has all of these places, or otherwise the most of them.

    Args:
        places: names of a scenario and its agent.
        offline: True for runs without model calls.
    """
    best: tuple[int, RunRecord] | None = None
    for record in records:
        if not record.took or offline is any(record.models.values()):
            continue
        known = len({(each.scenario, each.agent) for each in record.took} & set(places))
        if best is None or known > best[0]:
            best = known, record
        if known == len(places):
            break
    return _resources(best[1]) if best else None


def read_earlier_run(path: Path) -> PastRun | None:
    """Return the resources of the run in a results.json or a journal.

    None if it is unreadable or has no finished conversations. An interrupted scenario counts with those that
    it has. In a killed run it does not, because its calls are not known.
    """
    record = read_record(path.parent)
    is_whole = record and record.ended and not (record.ended.interrupted or record.ended.stopped)
    if record is None or not record.took or not is_whole:
        try:
            from agentest.store.reader import KILLED, read_results

            run = read_results(path)
        except UsageError:
            return None
        about = RunRecord(
            id="", kind=RunKind.RUN, started_at=run.started_at, version=run.version, models=run.models
        )
        scenarios = run.finished if run.stopped == KILLED else run.scenarios
        took = tuple(recorded_scenario(each) for each in scenarios if each.totals.conversations)
        record = replace(about, took=took)
    return _resources(record) if record.took else None


def _resources(record: RunRecord) -> PastRun:
    took = {
        (each.scenario, each.agent): ScenarioResources(
            conversations=each.conversations,
            talking_s=each.talking_ms / 1000,
            judging_s=each.judging_ms / 1000,
            cost=each.cost,
            calls=each.calls,
        )
        for each in record.took
    }
    return PastRun(started_at=record.started_at, models=record.models, took=took, quotas=record.quotas)
