"""Verdicts: the status of a scenario with its reasons, and of a metric with its threshold.

`agentest.domain.verdict` makes them; reporters show them, and need nothing but their fields.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum

from agentest.domain.results.evaluations import (
    CheckResult,
    CriterionResult,
    ErrorGroup,
    Severity,
    TrajectoryResult,
)


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


class WarningCode(StrEnum):
    """What questions a verdict."""

    ONLY_REPLIES = "only-replies"
    """The only check was that the agent replied."""
    ERROR_REPLY = "error-reply"
    """A reply reads like an error, and nothing checked its text."""
    VACUOUS_CHECK = "vacuous-check"
    """A check holds whatever the agent does."""
    UNKNOWN_TOOL = "unknown-tool"
    """A ban, limit or expectation names a tool that no mock, schema or call of the run knows."""
    MOCK_NEVER_CALLED = "mock-never-called"
    MOCK_MISFIT = "mock-misfit"
    """No call of a tool had arguments that its mock takes."""
    MOCK_RAISED = "mock-raised"
    """A mock's own code raised by mistake."""
    PARTIAL_VISIBILITY = "partial-visibility"
    """Only some of the agent's tool calls can be seen."""
    NO_CALL_SEEN = "no-call-seen"
    """No tool call of the agent was seen in the whole run, though its scenarios are about calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictWarning:
    """One reason to question the verdict of a scenario. In strict mode it makes the scenario errored."""

    code: WarningCode
    scenario: str
    """The scenario's name."""
    message: str
    agent: str = ""
    file: str = ""
    line: int = 0
    tools: tuple[str, ...] = ()
    """The tools that it is about."""

    @property
    def text(self) -> str:
        """The message with the code in front."""
        return f"{self.code}: {self.message}"


def by_code(warnings: Iterable[VerdictWarning]) -> dict[WarningCode, list[VerdictWarning]]:
    """The warnings of each code, in the order of the codes."""
    groups: dict[WarningCode, list[VerdictWarning]] = {code: [] for code in WarningCode}
    for warning in warnings:
        groups[warning.code].append(warning)
    return {code: group for code, group in groups.items() if group}


class CauseKind(StrEnum):
    """Where a root cause shows."""

    AGENT_ERROR = "agent_error"
    """The agent's own error ended the conversation."""
    UNMOCKED_TOOL = "unmocked_tool"
    TRAJECTORY = "trajectory"
    CHECK = "check"
    CRITERION = "criterion"
    GOAL = "goal"
    JUDGED = "judged"
    """Failures that judges labelled, grouped by their cause."""
    THRESHOLD = "threshold"
    PASS_RATE = "pass_rate"
    ERRORED = "errored"
    """Something outside the agent kept the scenario from being judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioCause:
    """What speaks against some conversations of one scenario, without a judge's labels."""

    kind: CauseKind
    title: str
    """In full where all conversations agree, else the pattern."""
    pattern: str
    """The title without values that differ from one conversation to the next. It identifies the cause."""
    conversations: int
    conversation_id: str | None = None
    """The first conversation; None: the cause is not about a single one."""
    turn_index: int | None = None
    text: str = ""
    """What was found in the first conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseExample:
    """One place where a root cause shows."""

    scenario: str
    agent: str = ""
    conversation_id: str | None = None
    turn_index: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausePlace:
    """A scenario with an agent in which a root cause shows, and its first conversation there."""

    scenario: str
    agent: str
    conversations: int
    conversation_id: str | None = None
    turn_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """One cause of failures or errors in the whole run."""

    id: str
    """The same in every run that has this cause."""
    title: str
    kind: CauseKind
    severity: Severity
    scenarios: int
    conversations: int
    agents: tuple[str, ...] = ()
    example: CauseExample
    places: tuple[CausePlace, ...] = ()
    """The first scenarios with the cause; `scenarios` counts all of them."""
    labels: tuple[str, ...] = ()
    """The labels of groups that a model joined, normalised; empty: it joined none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseJoin:
    """Labels of judged groups that have one root cause, and what it is called."""

    title: str
    labels: tuple[str, ...]
