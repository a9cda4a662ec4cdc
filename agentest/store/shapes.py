"""Values that exist only in files: parts of results.json, such as its head, and the lines of a journal.

All other stored values are those of `transcript` and `results`. `codec` has the layout of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from agentest.domain.results import (
    Changes,
    Figure,
    JudgeCalibration,
    MetricResult,
    ModelUsage,
    QuotaUse,
    RootCause,
    RunWarning,
    SlowTurn,
    Totals,
    TurnEvaluation,
    VerdictWarning,
)
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import TimeSpent, Usage
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from typing import Any as AlreadyJson
else:
    AlreadyJson = object  # so that the codec leaves it as it is

SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """The metrics of a conversation, and the checks of its turns."""

    turn_evaluations: tuple[TurnEvaluation, ...]
    goal_completion: MetricResult | None
    conversation_metrics: Mapping[str, MetricResult]  # the other metrics of the conversation as a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAgent:
    """The properties of an agent. Files of version 1 have only its name."""

    tool_calls: ToolVisibility | None = None
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
    pass_rate: Figure | None = None  # over all conversations that passed or failed; None if there are none
    agent_turn_ms: float | None = None
    """The agent's mean time for a turn, as the next field only in a comparison of agents behind model
    gateways."""
    agent_cost: float | None = None  # the cost of the agent's model in USD; None if it is unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUsage:
    tokens: Usage
    total_tokens: int
    cost: float | None
    by_role: Mapping[str, ModelUsage]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlowTurn:
    """One of the slowest turns of the run."""

    turn: SlowTurn
    scenario: str
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The run in numbers. Only comparisons have `per_agent`."""

    counts: Counts
    duration_ms: float
    usage: RunUsage
    time: TimeSpent
    slowest_turns: tuple[StoredSlowTurn, ...]
    warnings: tuple[VerdictWarning, ...] = ()  # warnings that question the verdicts of all scenarios
    unclaimed_calls: tuple[RunWarning, ...] = ()
    """Warnings about calls to mock servers that belonged to no conversation."""
    silent_agents: tuple[RunWarning, ...] = ()  # warnings about agents without a visible call
    unanswered_calls: tuple[RunWarning, ...] = ()  # warnings about calls that were answered with null
    quotas: tuple[QuotaUse, ...] = ()
    changes: Changes = Changes()
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
    shard: str | None = None  # the part of a split run that this is, as K/N; None if the run is not split
    root_causes: tuple[RootCause, ...] = ()  # the worst and most frequent first
    joining: Mapping[str, ModelUsage] = field(default_factory=dict)
    """Model usage for joining groups of several scenarios, by role; `summary.usage` includes it."""
    summary: Summary


RUN, CONVERSATION, SCENARIO, END = "run", "conversation", "scenario", "end"  # the `type` values of lines


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedConversations:
    """The planned number of conversations of a scenario with an agent."""

    scenario: str
    agent: str
    conversations: int
    fingerprint: str = ""  # a hash that changes if the scenario or the configuration changes
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
    conversation: AlreadyJson


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioLine:
    """A finished scenario in a journal, without conversations; `scenario` is in JSON types."""

    type: str = SCENARIO
    scenario: AlreadyJson
    totals: Totals | None = None  # the conversations in numbers; None if an earlier version wrote the line
    amended: bool = False  # True if it replaces the line from the scenario's end


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLine:
    """The last line of a journal: the head of results.json, in JSON types."""

    type: str = END
    run: AlreadyJson
    order: tuple[tuple[str, str], ...] = ()  # each scenario and its agent, in the order of the plan
    start: int = -1  # where this line begins, if no line was lost: the index holds only there
    index: AlreadyJson = ()
    """[scenario, agent, start and length of its line, the flat array of its conversations' places as text]"""
