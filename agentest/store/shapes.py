"""The values of results.json and the journal, as `schemas/results.schema.json` describes them.

Most are the values of `transcript` and `results` themselves. Values with another stored form have a dataclass
here; `conversations` and `run_results` convert between the two. `CODECS` encodes and decodes all of them, so
that no other module spells a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentest.domain.end_reason import Ending
from agentest.domain.repeat import Repeat
from agentest.domain.results import (
    AlignedRow,
    CaseId,
    CriterionResult,
    Figure,
    JudgeCalibration,
    MetricResult,
    ModelUsage,
    Reason,
    RootCause,
    RunWarning,
    ScenarioCause,
    Severity,
    Status,
    TrajectoryScore,
    UniqueError,
    VerdictWarning,
)
from agentest.domain.tool_visibility import Sight
from agentest.domain.transcript import (
    Blame,
    TimeSpent,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)

SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTime:
    """Where the time went, including our own overhead."""

    spent: TimeSpent
    own_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrajectoryScore:
    """Partial credit for a trajectory, with the mean of precision and recall."""

    score: TrajectoryScore
    f1: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrajectory:
    """The comparison of expected and actual tool calls. `matched` is None if unknown."""

    matched: bool | None
    missing_calls: tuple[str, ...]
    extra_calls: tuple[str, ...]
    ordering_issues: tuple[str, ...]
    forbidden_calls: tuple[str, ...]
    reason: str
    """The summary and the sides in one text."""
    broken: tuple[str, ...] = ()
    counted: bool = False
    """True if it does not match but is not a reason, because a threshold counts what it lacks."""
    mode: str | None = None
    expected: str | None = None
    forbidden: str | None = None
    actual: str | None = None
    error: str | None = None
    without_calls: bool = False
    vacuous: bool = False
    """True if it matched only because no call of the agent was visible in the whole run."""
    alignment: tuple[AlignedRow, ...] = ()
    alignment_more: int = 0
    name: str = ""
    score: StoredTrajectoryScore | None = None
    parts: tuple[StoredTrajectory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrajectory:
    """The trajectory of one turn."""

    turn_index: int
    trajectory: StoredTrajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCheck:
    """A check of a reply; `reason` is its summary and the reply in one text."""

    check: str
    passed: bool
    reason: str
    reply: str | None = None
    error: str | None = None
    turn_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnScores:
    """The metrics and checks of one turn."""

    turn_index: int
    metrics: Mapping[str, MetricResult]
    checks: tuple[StoredCheck, ...]
    judged_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """All metrics and checks of a conversation."""

    turn_evaluations: tuple[TurnScores, ...]
    goal_completion: MetricResult | None
    conversation_metrics: Mapping[str, MetricResult]
    """The other metrics of the conversation as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFailure:
    """A labelled failure of the enclosing conversation."""

    id: str
    turn_index: int | None
    metric: str
    label: str
    reason: str
    severity: Severity | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdkInvocations:
    """ADK's own results for a conversation with a case, in JSON types."""

    eval_metric_result_per_invocation: object


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredConversation:
    """A conversation and its evaluation."""

    conversation_id: str
    passed: bool
    ended_by: Ending
    error: str | None
    error_source: Blame | None
    turns: tuple[Turn, ...]
    unfinished_turn: UnfinishedTurn | None
    evaluation: StoredEvaluation
    trajectory: StoredTrajectory | None
    per_turn_trajectory: tuple[TurnTrajectory, ...]
    labelled_failures: tuple[StoredFailure, ...]
    time: StoredTime = StoredTime(spent=TimeSpent())
    shortened: bool = False
    initial_state: Mapping[str, Any] | None = None
    criteria: tuple[CriterionResult, ...] = ()
    invalid: str | None = None
    checks: tuple[StoredCheck, ...] = ()
    mock_state: Mapping[str, Any] | None = None
    inexact_state: tuple[str, ...] = ()
    user_calls: tuple[ToolCall, ...] = ()
    severe_failures: tuple[str, ...] = ()
    severity_unknown: bool = False
    adk: AdkInvocations | None = None
    """Set for a case of an evaluation set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdkCase:
    """ADK's own results for a case; status and metrics are in JSON types."""

    case: CaseId
    final_eval_status: object
    overall_eval_metric_results: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """The limits of `repeat`, and the number of conversations that decided the verdict, if they did."""

    repeat: Repeat
    decided_after: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredScenario:
    """One scenario with one agent, without its conversations."""

    agent: str
    name: str
    file: str
    line: int
    tags: tuple[str, ...]
    goal: str = ""
    profile: str = ""
    status: Status
    passed: bool
    duration_ms: float
    planned_conversations: int = 0
    averages: Mapping[str, float]
    thresholds: Mapping[str, float]
    skipped_metrics: Mapping[str, str]
    information: tuple[str, ...] = ()
    errors: tuple[UniqueError, ...]
    severity_unknown: bool = False
    causes: tuple[ScenarioCause, ...] = ()
    failures: tuple[str, ...]
    """The messages of the verdict's reasons."""
    reasons: tuple[Reason, ...] = ()
    """The verdict's reasons in order, with all fields that reports need."""
    warnings: tuple[str, ...] = ()
    verdict_warnings: tuple[VerdictWarning, ...] = ()
    """Warnings that question the verdict."""
    usage: Mapping[str, ModelUsage]
    intervals: Mapping[str, Figure] = field(default_factory=dict)
    """The averages again, each with n and its interval."""
    pass_rate: Figure | None = None
    pass_hat_k: Mapping[str, float] = field(default_factory=dict)
    """"1" to "n" → the probability that this number of conversations all pass."""
    flaky: bool | None = None
    """None if nothing passed or failed."""
    repeated: Repeated | None = None
    """None if the number of conversations was fixed."""
    adk: AdkCase | None = None
    """Set for a case of an evaluation set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    """A scenario with its conversations."""

    scenario: StoredScenario
    conversations: tuple[StoredConversation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedScenario:
    """The results of one scenario with several agents."""

    name: str
    agents: tuple[StoredEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAgent:
    """The properties of an agent. Files of version 1 have only its name."""

    tool_calls: Sight | None = None
    no_call_seen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A run, or one agent's part of it, in numbers."""

    passed: bool
    total_scenarios: int
    passed_scenarios: int
    failed_scenarios: int
    errored_scenarios: int
    skipped_scenarios: int
    llm_calls: int
    agent_calls: int
    pass_rate: Figure | None = None
    """Over all conversations that passed or failed; None if there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUsage:
    """The model usage of the whole run."""

    tokens: Usage
    total_tokens: int
    cost: float | None
    by_role: Mapping[str, ModelUsage]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlowTurn:
    """One of the slowest turns of the run."""

    latency_ms: float
    scenario: str
    agent: str
    conversation_id: str
    turn_index: int
    first_token_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The run in numbers. Only comparisons have `per_agent`."""

    counts: Counts
    duration_ms: float
    usage: RunUsage
    time: StoredTime
    slowest_turns: tuple[StoredSlowTurn, ...]
    warnings: tuple[VerdictWarning, ...] = ()
    """Warnings that question the verdicts of all scenarios."""
    unclaimed_calls: tuple[RunWarning, ...] = ()
    """Warnings about calls to mock servers that belonged to no conversation."""
    silent_agents: tuple[RunWarning, ...] = ()
    """Warnings about agents without a visible call."""
    unanswered_calls: tuple[RunWarning, ...] = ()
    """Warnings about calls that were answered with null."""
    per_agent: Mapping[str, Counts] | None = None


class Mode(StrEnum):
    """Distinguishes runs with one agent from comparisons."""

    SINGLE = "single"
    COMPARISON = "comparison"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHead:
    """The run without its scenarios."""

    schema_version: int
    mode: Mode
    version: str
    started_at: str
    interrupted: bool
    stopped: str | None
    models: Mapping[str, str | None]
    agents: Mapping[str, StoredAgent]
    calibration: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → the measured agreement of its judge with people's labels, if there is one."""
    shard: str | None = None
    """The part of a split run that this is, as K/N; None if the run is not split."""
    root_causes: tuple[RootCause, ...] = ()
    """The worst and most frequent first."""
    joining: Mapping[str, ModelUsage] = field(default_factory=dict)
    """Model usage for joining groups of several scenarios, by role; `summary.usage` includes it."""
    summary: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The whole run with one agent."""

    head: RunHead
    scenarios: tuple[StoredEntry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredComparison:
    """The whole run with several agents, whose results are grouped by scenario."""

    head: RunHead
    scenarios: tuple[ComparedScenario, ...] = ()


RUN, CONVERSATION, SCENARIO, END = "run", "conversation", "scenario", "end"
"""The `type` values of lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedConversations:
    """The planned number of conversations of a scenario with an agent."""

    scenario: str
    agent: str
    conversations: int
    fingerprint: str = ""
    """A hash that changes if the scenario or the configuration changes."""
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)
    """By role: the usage of the run that is being resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """The first line of a journal."""

    type: str = RUN
    schema_version: int
    version: str
    started_at: str
    agents: Mapping[str, StoredAgent]
    models: Mapping[str, str | None]
    mode: Mode
    planned: tuple[PlannedConversations, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLine:
    """A finished conversation in a journal; `conversation` is in JSON types."""

    type: str = CONVERSATION
    scenario: str
    agent: str
    number: int
    conversation: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioLine:
    """A finished scenario in a journal, without conversations; `scenario` is in JSON types."""

    type: str = SCENARIO
    scenario: object
    amended: bool = False
    """True if it replaces the line from the scenario's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLine:
    """The last line of a journal: the head of results.json, in JSON types."""

    type: str = END
    run: object
