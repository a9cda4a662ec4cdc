"""Verdicts: the status of a scenario with its reasons, and of a metric with its threshold.

`agentest.domain.verdict` makes them; reporters show them, and need nothing but their fields.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

from agentest.domain.results.evaluations import CheckResult, CriterionResult, ErrorGroup, TrajectoryResult


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"
    SKIPPED = "skipped"


class ReasonKind(StrEnum):
    CONVERSATION = "conversation"
    TRAJECTORY = "trajectory"
    CHECK = "check"
    CRITERION = "criterion"
    GOAL = "goal"
    ERROR = "error"
    THRESHOLD = "threshold"
    PASS_RATE = "pass_rate"
    MODEL = "model"
    UNSCORED = "unscored"
    DEDUPLICATION = "deduplication"
    FILE = "file"
    INTERRUPTED = "interrupted"
    WARNING = "warning"
    """Strict mode: a warning questions the verdict."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a scenario did not pass: a message for the user, and in fields what the message is about."""

    status: Status
    """The status of a scenario with this reason alone."""
    kind: ReasonKind
    message: str
    _: KW_ONLY
    conversation_id: str | None = None
    turn_index: int | None = None
    metric: str | None = None
    expected: float | None = None
    """The threshold of the metric, or of the pass rate."""
    actual: float | None = None
    """The metric's average, or the share of conversations that passed."""
    group: ErrorGroup | None = None
    check: CheckResult | None = None
    trajectory: TrajectoryResult | None = None
    criterion: CriterionResult | None = None


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """A metric's score beside its threshold; the status is `errored` where there is no score."""

    name: str
    threshold: float
    score: float | None
    status: Status


@dataclass(frozen=True, slots=True)
class Verdict:
    status: Status
    reasons: tuple[Reason, ...] = ()

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED
