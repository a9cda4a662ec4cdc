"""What became of each scenario when it last ran, by all kept runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from agentest.domain.results import ReasonKind, Status
from agentest.store.codec import CODECS
from agentest.store.runs.folder import JOURNAL, RESULTS, KeptRun, kept_runs
from agentest.store.runs.record import RunKind, RunRecord
from agentest.store.shapes import (
    CONVERSATION,
    RUN,
    SCENARIO,
    ComparedScenario,
    RunLine,
    ScenarioLine,
    StoredRun,
    StoredScenario,
)
from agentest.support.json_text import Json, encoded

_KINDS = frozenset({RunKind.RUN, RunKind.EVAL, RunKind.MERGE})
"""Those in which agents were talked to."""
_TYPE = CODECS.key(RunLine, "type")
_OF_CONVERSATION = encoded({_TYPE: CONVERSATION}).removesuffix(b"}")
"""How a line begins that tells of no verdict; most lines, and the long ones, do."""
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


class Tried(NamedTuple):
    """A scenario with an agent."""

    file: str
    name: str
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestVerdicts:
    """The verdicts of scenarios when each last ran to its end."""

    known: Mapping[Tried, Status] = field(default_factory=dict)
    begun: frozenset[tuple[str, str]] = frozenset()
    """Scenario and agent, of those that never came to their end."""
    runs: int = 0
    """How many runs were looked at."""

    def has_failed(self, tried: Tried) -> bool:
        """Whether a scenario failed or errored: one that nobody knows a verdict of has not passed."""
        status = self.known.get(tried)
        if status is None:
            return (tried.name, tried.agent) in self.begun
        return status in (Status.FAILED, Status.ERRORED)

    def is_new(self, tried: Tried) -> bool:
        """Whether no kept run has tried it."""
        return tried not in self.known and (tried.name, tried.agent) not in self.begun

    @property
    def failed(self) -> list[Tried]:
        """All that failed or errored."""
        return [tried for tried in self.known if self.has_failed(tried)]


def latest_verdicts(output_dir: Path, wanted: Collection[Tried] = ()) -> LatestVerdicts:
    """The latest verdict on each scenario. What an interruption left undecided keeps the verdict before it.

    Args:
        wanted: runs are looked at until the verdicts on these are known; older ones are not read.
    """
    known: dict[Tried, Status] = {}
    begun: set[tuple[str, str]] = set()
    looked = 0
    for run in reversed(kept_runs(output_dir)):
        record = run.record
        if record is None or record.kind not in _KINDS or run.file is None:
            continue
        looked += 1
        for tried, status in dict(_verdicts(run)).items():  # a line that amends another comes after it
            if status is None:
                begun.add((tried.name, tried.agent))
            else:
                known.setdefault(tried, status)
        if wanted and all(tried in known for tried in wanted):
            break
    begun -= {(tried.name, tried.agent) for tried in known}
    return LatestVerdicts(known=known, begun=frozenset(begun), runs=looked)


def _verdicts(run: KeptRun) -> Iterator[tuple[Tried, Status | None]]:
    """What a run says; None where it did not come to a verdict. What cannot be read says nothing."""
    try:
        journal = run.path / JOURNAL
        yield from _of_journal(journal) if journal.is_file() else _of_results(run.path / RESULTS)
    except (OSError, *_UNREADABLE):
        return


def _of_journal(path: Path) -> Iterator[tuple[Tried, Status | None]]:
    with path.open("rb") as lines:
        for line in lines:
            if not line.startswith(_OF_CONVERSATION) and line.endswith(b"\n"):
                yield from _of_line(json.loads(line))


def _of_line(data: Any) -> Iterator[tuple[Tried, Status | None]]:
    if data[_TYPE] == RUN:
        for planned in CODECS.read(RunLine, data).planned:
            yield Tried("", planned.scenario, planned.agent), None
    elif data[_TYPE] == SCENARIO:
        yield _verdict(CODECS.read(ScenarioLine, data).scenario)


def _of_results(path: Path) -> Iterator[tuple[Tried, Status | None]]:
    agents = CODECS.key(ComparedScenario, "agents")
    for entry in json.loads(path.read_bytes())[CODECS.key(StoredRun, "scenarios")]:
        for each in entry.get(agents, [entry]):
            yield _verdict(each)


def _verdict(data: Any) -> tuple[Tried, Status | None]:
    stored = CODECS.read(StoredScenario, data)
    cut_short = any(reason.kind is ReasonKind.INTERRUPTED for reason in stored.reasons)
    undecided = cut_short and stored.status is not Status.FAILED
    return Tried(stored.file, stored.name, stored.agent), None if undecided else stored.status


RecordOf = Callable[[KeptRun], RunRecord | None]
MOST_RUNS = 20


def read_anew(run: KeptRun) -> RunRecord | None:
    """What its run.json says now."""
    return run.record


def about(record: RunRecord) -> Json:
    """What a run was, without its numbers: `id`, `kind`, `startedAt`, `version`, `models`, `agents` …"""
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
    output_dir: Path, last: RunRecord, most: int = MOST_RUNS, record_of: RecordOf = read_anew
) -> list[Json]:
    """The runs of a kind that ended before a run, and that run, in numbers; the latest last.

    Args:
        last: the run; it is left out where it has not ended.
        most: how many there are at most.
    """
    found = [point for record in _before(output_dir, last, most, record_of) for point in _points(record)]
    return [*reversed(found), *_points(last)][-most:]


def _before(output_dir: Path, last: RunRecord, most: int, record_of: RecordOf) -> Iterator[RunRecord]:
    """The latest first; no more records are read than that takes."""
    for run in reversed(kept_runs(output_dir)):
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
        }
