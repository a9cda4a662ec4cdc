"""Verdicts on scenarios and metrics, with reasons, warnings and root causes.

`agentest.domain.verdict` creates them; reporters show them and need only their fields.
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
    """A reason why a scenario did not pass: a message for the user, and its subject in fields."""

    status: Status
    """The status of a scenario that has only this reason."""
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
    """A metric's score and its threshold; the status is `errored` without a score."""

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
    """The codes of warnings that question a verdict."""

    ONLY_REPLIES = "only-replies"
    """The only check was that the agent replied."""
    ERROR_REPLY = "error-reply"
    """A reply reads like an error, and no check covered its text."""
    VACUOUS_CHECK = "vacuous-check"
    """A check passes whatever the agent does."""
    UNKNOWN_TOOL = "unknown-tool"
    """A ban, limit or expectation names a tool that is unknown to all mocks, schemas and calls of the run."""
    MOCK_NEVER_CALLED = "mock-never-called"
    MOCK_MISFIT = "mock-misfit"
    """No call of a tool had arguments that its mock accepts."""
    MOCK_RAISED = "mock-raised"
    """A mock's own code raised an unintended exception."""
    PARTIAL_VISIBILITY = "partial-visibility"
    """Only some of the agent's tool calls are visible."""
    NO_CALL_SEEN = "no-call-seen"
    """No tool call of the agent was visible in the whole run, although its scenarios are about calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictWarning:
    """A reason to question the verdict on a scenario. In strict mode it makes the scenario errored."""

    code: WarningCode
    scenario: str
    """The scenario's name."""
    message: str
    agent: str = ""
    file: str = ""
    line: int = 0
    tools: tuple[str, ...] = ()
    """The tools that the warning is about."""

    @property
    def text(self) -> str:
        """The message, preceded by the code."""
        return f"{self.code}: {self.message}"


def by_code(warnings: Iterable[VerdictWarning]) -> dict[WarningCode, list[VerdictWarning]]:
    """Group the warnings by code, in the order of the codes."""
    groups: dict[WarningCode, list[VerdictWarning]] = {code: [] for code in WarningCode}
    for warning in warnings:
        groups[warning.code].append(warning)
    return {code: group for code, group in groups.items() if group}


class CauseKind(StrEnum):
    """The kinds of root causes."""

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
    """A cause that affects some conversations of one scenario and needs no judge's labels."""

    kind: CauseKind
    title: str
    """The full title if all conversations agree, otherwise the pattern."""
    pattern: str
    """The title without values that vary between conversations. It identifies the cause."""
    conversations: int
    conversation_id: str | None = None
    """The first conversation; None if the cause is not about a single one."""
    turn_index: int | None = None
    text: str = ""
    """The finding in the first conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseExample:
    """One occurrence of a root cause."""

    scenario: str
    agent: str = ""
    conversation_id: str | None = None
    turn_index: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausePlace:
    """A scenario and agent that a root cause affects, with the first affected conversation."""

    scenario: str
    agent: str
    conversations: int
    conversation_id: str | None = None
    turn_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """One cause of failures or errors in the whole run."""

    id: str
    """Identical in every run that has this cause."""
    title: str
    kind: CauseKind
    severity: Severity
    scenarios: int
    conversations: int
    agents: tuple[str, ...] = ()
    example: CauseExample
    places: tuple[CausePlace, ...] = ()
    """The first affected scenarios; `scenarios` counts all of them."""
    labels: tuple[str, ...] = ()
    """The normalized labels of the groups that a model joined; empty without a join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseJoin:
    """Labels of judged groups that share one root cause, with the title of that cause."""

    title: str
    labels: tuple[str, ...]
