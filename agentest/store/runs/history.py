"""What kept runs were, in a few words each, as pages show it: one run, and the last of its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from agentest.store.runs.finding import KeptRun, kept_runs
from agentest.store.runs.record import RunRecord
from agentest.support.json_text import Json

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
