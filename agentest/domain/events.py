"""What happens during a run, and who may listen. The runner emits events; reporters consume them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agentest.domain.results import (
    CaseId,
    ConversationResult,
    JudgeCalibration,
    ModelUsage,
    RunResult,
    ScenarioResult,
    Status,
)
from agentest.domain.tool_visibility import Sight


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Before the first conversation."""

    version: str
    agents: Mapping[str, str]
    """Name → where the agent is."""
    scenarios: int
    conversations: int
    concurrency: int
    """How many conversations may be under way at once."""
    models: Mapping[str, str | None] = field(default_factory=dict)
    """Role (user, judge) → model; None is offline."""
    comparison: bool = False
    started_at: str = ""
    """ISO 8601, UTC."""
    planned: tuple[tuple[str, str, int], ...] = ()
    """Scenario, agent and how many conversations are to be held."""
    fingerprints: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Scenario and agent → what tells whether either has changed since."""
    used: Mapping[tuple[str, str], Mapping[str, ModelUsage]] = field(default_factory=dict)
    """Scenario and agent → what an earlier run, which this one goes on with, has used for them, by role."""
    kept: Iterable[ConversationFinished] = ()
    """The conversations of that run that are kept; `conversations` does not count them."""
    sights: Mapping[str, Sight] = field(default_factory=dict)
    """How the agents' tool calls come to be known."""
    servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Agent → the servers of ours by which that is, where they are why, as keys of the configuration."""
    calibrations: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → how far its judge has been right, where that was measured."""
    at_most: bool = False
    """Whether fewer conversations may be enough, as with `repeat`."""


@dataclass(frozen=True, slots=True)
class ScenarioStarted:
    name: str
    agent: str
    conversations: int


@dataclass(frozen=True, slots=True)
class ConversationStarted:
    """A conversation has its place, and is held from now on."""

    name: str
    agent: str
    number: int
    """Which of the scenario's conversations it is."""


@dataclass(frozen=True, slots=True)
class TurnFinished:
    name: str
    agent: str
    conversation_id: str
    turn_index: int


@dataclass(frozen=True, slots=True)
class ConversationHeld:
    """A conversation was held; those who judge it may still be at work."""

    name: str
    agent: str
    number: int
    used: ModelUsage = field(default_factory=ModelUsage)
    """What its scenario has used of models so far."""


@dataclass(frozen=True, slots=True)
class ConversationFinished:
    """A conversation was held and judged."""

    name: str
    agent: str
    result: ConversationResult | bytes
    """Its JSON, as in results.json, where a worker has written it already."""
    number: int = 1
    """Which of the scenario's conversations it is."""
    case: CaseId | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    failed: bool = False
    """Whether it fails by itself, whatever becomes of its scenario."""
    used: ModelUsage = field(default_factory=ModelUsage)
    """What its scenario has used of models so far."""


@dataclass(frozen=True, slots=True)
class ScenarioFinished:
    result: ScenarioResult


@dataclass(frozen=True, slots=True)
class ScenarioAmended:
    """The whole run has shown more about a scenario that had finished: this result replaces its result."""

    result: ScenarioResult
    """Without conversations where the run does not keep them."""
    was: Status
    """The status that the scenario had before."""


@dataclass(frozen=True, slots=True)
class Noted:
    """What the user should know at once, and not only when the run has ended: that a model is waited for."""

    text: str
    """One line, without secrets."""


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Some time has gone by, whatever happened in it: whoever says how far the run is says it now."""


@dataclass(frozen=True, slots=True)
class RunFinished:
    result: RunResult


Event = (
    RunStarted
    | ScenarioStarted
    | ConversationStarted
    | TurnFinished
    | ConversationHeld
    | ConversationFinished
    | ScenarioFinished
    | ScenarioAmended
    | Noted
    | TimePassed
    | RunFinished
)


class Reporter(Protocol):
    """Reports on a run. Formats, never computes."""

    name: str

    def on_event(self, event: Event) -> None: ...


Emit = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class WantedReport:
    """A reporter by its name, and the file that it is to write to; None: it writes where it always does."""

    name: str
    path: Path | None = None
