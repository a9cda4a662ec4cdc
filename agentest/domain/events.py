"""The events of a run and the protocol of reporters. The runner emits events; reporters consume them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
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
from agentest.domain.tool_visibility import ToolVisibility
from agentest.support.lazy_dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunStarted:
    """Emitted before the first conversation."""

    version: str
    agents: Mapping[str, str]  # name → address of the agent
    scenarios: int
    conversations: int
    concurrency: int  # the maximum number of conversations that run at the same time
    models: Mapping[str, str | None] = field(default_factory=dict)
    """Role (user, judge) → model; None if the role is offline."""
    comparison: bool = False
    started_at: str = ""  # ISO 8601, UTC
    planned: tuple[tuple[str, str, int], ...] = ()  # scenario, agent and the number of planned conversations
    fingerprints: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Scenario and agent → a hash that changes if either of them changes."""
    used: Mapping[tuple[str, str], Mapping[str, ModelUsage]] = field(default_factory=dict)
    """Scenario and agent → what the run that is being resumed has used for them, by role."""
    kept: Iterable[ConversationFinished] = ()
    """The stored conversations of the run that is being resumed; `conversations` does not count them."""
    visibilities: Mapping[str, ToolVisibility] = field(default_factory=dict)
    """Agent → how its tool calls become visible."""
    servers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Agent → the mock servers that make its calls visible, as keys of the configuration."""
    model_tapes: Mapping[str, str] = field(default_factory=dict)
    """Agent → how recordings of its own model are used, such as `replay`; no entry: not at all."""
    calibrations: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → the measured agreement of its judge with people's labels, if there is one."""
    at_most: bool = False  # True if fewer conversations may be enough, as with `repeat`


@dataclass(frozen=True, slots=True)
class ScenarioStarted:
    name: str
    agent: str
    conversations: int


@dataclass(frozen=True, slots=True)
class ConversationStarted:
    """Emitted when a conversation leaves the queue and starts to run."""

    name: str
    agent: str
    number: int


@dataclass(frozen=True, slots=True)
class TurnFinished:
    name: str
    agent: str
    conversation_id: str
    turn_index: int


@dataclass(frozen=True, slots=True)
class ConversationHeld:
    """Emitted when a conversation has ended. Judges may still be working on it."""

    name: str
    agent: str
    number: int
    used: ModelUsage = field(default_factory=ModelUsage)


@dataclass(frozen=True, slots=True)
class ConversationFinished:
    """Emitted when a conversation has been executed and judged."""

    name: str
    agent: str
    result: ConversationResult | bytes
    """The result, or its JSON as in results.json if a worker has serialized it already."""
    number: int = 1
    case: CaseId | None = None
    thresholds: Mapping[str, float] = field(default_factory=dict)
    failed: bool = False  # True if the conversation fails on its own, whatever the verdict on its scenario
    used: ModelUsage = field(default_factory=ModelUsage)
    measured: bytes = b""
    """The JSON of its `MeasuredConversation` if `result` is JSON; empty if it is unknown."""


@dataclass(frozen=True, slots=True)
class ScenarioFinished:
    result: ScenarioResult


@dataclass(frozen=True, slots=True)
class ScenarioAmended:
    """Emitted when the whole run changes the result of a finished scenario, which this one replaces."""

    result: ScenarioResult  # has no conversations if the run does not retain them
    was: Status


@dataclass(frozen=True, slots=True)
class Noted:
    """A notice that must reach the user during the run, such as a wait for a model."""

    text: str  # one line, without secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplorationProgressed:
    """Emitted while changed scenarios are tried."""

    tried: int
    total: int  # the number of changed scenarios that could be tried
    new: int  # findings that no saved scenario has
    failing: int  # all findings so far, including those that were seen once
    left: int


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Emitted at intervals, even if nothing happened, so that reporters can show progress."""

    rate_bound: bool = False  # True if model calls wait for a quota, so that it limits the speed of the run


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
    | ExplorationProgressed
    | TimePassed
    | RunFinished
)


class Reporter(Protocol):
    """Reports on a run. A reporter formats values and never computes them.

    It may have further attributes:

        events: the types of events that it receives; without this, all of them.
        prints_outcome: True if it prints the outcome, which is otherwise printed as one line.
        shows_comparison: the same for the comparison with a baseline or between agents.
        receives_credentials: True if its report stays on this machine, or it hides credentials itself. All
            others receive events without values that look like credentials.
        counts_conversations: True if it only counts conversations, so that theirs need not be hidden.
        replaces_progress_log: True if it shows progress, or no progress should be shown.
        show: shows a text in its live area, at any time. Returns True if it has one.
    """

    name: str

    def on_event(self, event: Event) -> None: ...


Emit = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class ReportRequest:
    """A requested reporter: its name and its output file; None for the reporter's default output."""

    name: str
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Options for what a run reports."""

    reporters: tuple[str, ...] = ()
    verbosity: int = 0  # -1: quiet, 1: passed scenarios and conversations, 2: transcripts
    detailed: bool = False
    """True if the console shows every invocation of an evaluation set next to the expected one."""
    baseline: str | None = None  # the run to compare with at the end; None: as configured
    fail_on_regression: bool = False

    @property
    def shows_conversations(self) -> bool:
        """True if reports show conversations even of scenarios that passed."""
        return self.verbosity > 0


def stored_events(result: RunResult, *, conversations: bool = True) -> Iterator[Event]:
    """Yield the events of a stored run, scenario by scenario. Its concurrency is unknown, so it is 0.

    Args:
        conversations: yield an event for each conversation, too.
    """
    yield RunStarted(
        version=result.version,
        started_at=result.started_at,
        agents={name: result.addresses.get(name, "") for name in result.agents},
        scenarios=len(result.scenarios),
        conversations=sum(scenario.planned for scenario in result.scenarios),
        concurrency=0,
        models=result.models,
        comparison=result.comparison,
        planned=tuple((each.name, each.agent, each.planned) for each in result.scenarios),
        visibilities=result.visibilities,
        calibrations=result.calibrations,
    )
    for scenario in result.scenarios:
        yield ScenarioStarted(scenario.name, scenario.agent, scenario.planned)
        for number, conversation in enumerate(scenario.conversations if conversations else (), start=1):
            yield ConversationFinished(
                name=scenario.name,
                agent=scenario.agent,
                result=conversation,
                number=number,
                case=scenario.case,
                thresholds=scenario.thresholds,
            )
        yield ScenarioFinished(scenario)
    yield RunFinished(result)
