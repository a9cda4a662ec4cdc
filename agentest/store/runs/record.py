"""run.json: what a kept run was, in a file that is quickly read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from agentest.domain.results import ModelUsage, RunResult, ScenarioResult, Status
from agentest.domain.shards import Part
from agentest.domain.verdict import run_status
from agentest.store.codec import Codecs, Layout
from agentest.support.files import write_atomically
from agentest.support.json_text import encoded

RECORD = "run.json"
JOB_VARIABLE = "AGENTEST_JOB"
"""The environment variable that tells a run what the page calls it."""


class RunKind(StrEnum):
    """Which command made a run."""

    RUN = "run"
    EVAL = "eval"
    JUDGE = "judge"
    MERGE = "merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended, in numbers."""

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
    """USD; None: the price of a model is not known."""
    stopped: bool = False
    """Whether something else than a signal had ended it early: a budget, --fail-fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioTook:
    """What a scenario took against one agent, over all of its conversations."""

    scenario: str
    agent: str
    conversations: int
    talking_ms: float
    """From the first message to the last, judges left out."""
    judging_ms: float
    """What judges took after the last turn."""
    calls: int
    """To models, in all roles."""
    cost: float | None
    """USD; None: the price of a model is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """What a kept run was. It is written when the run begins and again when it ends.

    A run without `ended` is under way or was killed: its lock tells which (`finding.KeptRun.under_way`).
    """

    id: str
    kind: RunKind
    started_at: str
    """ISO 8601, UTC."""
    version: str
    models: Mapping[str, str | None] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)
    """Name → where it was, without secrets."""
    scenarios: int = 0
    conversations: int = 0
    """Planned ones."""
    commit: str | None = None
    """The commit of the project's repository; None: there is none, or nobody knows it."""
    shard: str | None = None
    """Which part of a run it is, as K/N."""
    part: Part | None = None
    """What it is that part of."""
    partial: bool = False
    """Whether filters had chosen its scenarios."""
    resumed: str | None = None
    """The run that it goes on with."""
    job: str | None = None
    """What the page of `agentest ui` calls it, where that has started it."""
    ended: Ended | None = None
    took: tuple[ScenarioTook, ...] = ()
    """What each scenario took that came to its verdict, by which later runs are forecast."""


_CODECS = Codecs(
    {
        RunRecord: Layout(only_if_set=("shard", "part", "partial", "resumed", "job", "took")),
        Ended: Layout(digits={"cost": 6}, only_if_set=("stopped",)),
        ScenarioTook: Layout(digits={"cost": 6}),
    }
)


def with_end(record: RunRecord, result: RunResult) -> RunRecord:
    """The record of a run that has ended."""
    return replace(
        record,
        ended=Ended(
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


def _took(scenario: ScenarioResult) -> ScenarioTook:
    time, used = scenario.totals.time, sum(scenario.usage.values(), ModelUsage())
    return ScenarioTook(
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
    """The record in a folder; None where there is none that can be read."""
    try:
        return _CODECS.read(RunRecord, json.loads((folder / RECORD).read_bytes()))
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
