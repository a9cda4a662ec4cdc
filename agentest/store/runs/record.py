"""run.json: the record of a stored run, in a small file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from agentest.domain.results import ModelUsage, RunResult, ScenarioResult, Status
from agentest.domain.shards import ShardedRun
from agentest.domain.verdict import run_status
from agentest.store.codec import Codecs, Layout
from agentest.support.files import write_atomically
from agentest.support.json_text import encoded

RECORD = "run.json"
JOB_VARIABLE = "AGENTEST_JOB"
"""The environment variable with the page's id for a run that it started."""


class RunKind(StrEnum):
    """The command that created a run."""

    RUN = "run"
    EVAL = "eval"
    JUDGE = "judge"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRunNumbers:
    """The end of a run in numbers."""

    status: Status
    interrupted: bool
    scenarios: int
    passed: int
    failed: int
    errored: int
    skipped: int
    conversations: int
    duration_ms: float
    cost: float | None
    """USD; None if the price of a model is not known."""
    stopped: bool = False
    """True if something other than a signal ended the run early: a budget, --fail-fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedScenario:
    """The resources that a scenario used against one agent, in total over its conversations."""

    scenario: str
    agent: str
    conversations: int
    talking_ms: float
    """From the first message to the last, without judging."""
    judging_ms: float
    """The duration of judging after the last turn."""
    calls: int
    """Model calls in all roles."""
    cost: float | None
    """USD; None if the price of a model is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The record of a stored run, written when the run starts and again when it ends.

    A run without `ended` is active or was killed, which its lock shows (`folder.KeptRun.under_way`).
    """

    id: str
    kind: RunKind
    started_at: str
    """ISO 8601, UTC."""
    version: str
    models: Mapping[str, str | None] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    """Name → address, without secrets."""
    scenarios: int = 0
    conversations: int = 0
    """The planned number."""
    commit: str | None = None
    """The commit of the project's repository; None if unknown."""
    shard: str | None = None
    """The shard, as K/N."""
    part: ShardedRun | None = None
    """The run that the shard belongs to."""
    partial: bool = False
    """True if filters selected its scenarios."""
    resumed: str | None = None
    """The run that this one resumes."""
    job: str | None = None
    """The page's id, if `agentest ui` started the run."""
    ended: EndedRunNumbers | None = None
    took: tuple[RecordedScenario, ...] = ()
    """The resources of each scenario with a verdict, as the basis of forecasts."""


_CODECS = Codecs(
    {
        RunRecord: Layout(only_if_set=("shard", "part", "partial", "resumed", "job", "took")),
        EndedRunNumbers: Layout(digits={"cost": 6}, only_if_set=("stopped",)),
        RecordedScenario: Layout(digits={"cost": 6}),
    }
)


def with_end(record: RunRecord, result: RunResult) -> RunRecord:
    """Return the record of a run that has ended."""
    return replace(
        record,
        ended=EndedRunNumbers(
            status=run_status(result),
            interrupted=result.interrupted,
            scenarios=len(result.scenarios),
            passed=len(result.with_status(Status.PASSED)),
            failed=len(result.with_status(Status.FAILED)),
            errored=len(result.with_status(Status.ERRORED)),
            skipped=len(result.with_status(Status.SKIPPED)),
            conversations=result.conversations,
            duration_ms=result.duration_ms,
            cost=result.usage.cost,
            stopped=result.stopped is not None and not result.interrupted,
        ),
        took=tuple(_took(each) for each in result.finished if each.totals.conversations),
    )


def _took(scenario: ScenarioResult) -> RecordedScenario:
    time, used = scenario.totals.time, sum(scenario.usage.values(), ModelUsage())
    return RecordedScenario(
        scenario=scenario.name,
        agent=scenario.agent,
        conversations=scenario.totals.conversations,
        talking_ms=time.total_ms - time.judges_ms,
        judging_ms=time.judges_ms,
        calls=used.calls,
        cost=used.cost,
    )


def write_record(folder: Path, record: RunRecord) -> None:
    """Write run.json into the folder of its run. Raises OSError."""
    write_atomically(folder / RECORD, encoded(_CODECS.write(record)) + b"\n")


def read_record(folder: Path) -> RunRecord | None:
    """Read the record in a folder; None if there is no readable one."""
    try:
        return _CODECS.read(RunRecord, json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
