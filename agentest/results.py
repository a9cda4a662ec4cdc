"""What was found out: frozen values from one score up to the whole run.

`evaluate` writes scores and trajectories, `verdict` the verdicts, `runner` puts them together, and
`report` only reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from heapq import nlargest
from typing import Any

from agentest.sight import Sight
from agentest.transcript import Conversation, TimeSpent, Usage

NO_MODEL = "no model configured"


ROLES = ("user", "judge", "dedup")
"""What models are asked to be, in the order in which they are told of."""


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ERRORED = "errored"
    SKIPPED = "skipped"


class Severity(IntEnum):
    """How bad a deduplicated error is; compares by badness."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2
    CRITICAL = 3

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Severity:
        return cls[label.upper()]


@dataclass(frozen=True, slots=True)
class RubricScore:
    """The judges' answer to one rubric: 1 yes, 0 no, None where no answer could be had."""

    rubric_id: str
    score: float | None
    rationale: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """A metric's value: a number, or a label for a qualitative metric.

    `samples` keeps every judge's answer where more than one was asked (`judge.samples`).
    """

    value: float | str
    reason: str
    samples: tuple[float | str, ...] = ()
    rubrics: tuple[RubricScore, ...] = ()
    """What the value was made of, for a metric that asks several rubrics."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """The metric should have a value and has none: its judge or its code failed."""

    error: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """The metric was not asked for a value here, and why."""

    why: str


MetricResult = Score | Unscored | Skipped


@dataclass(frozen=True, slots=True)
class TrajectoryResult:
    """Expected against actual tool calls. Names of tools, and `reason` with both sides in full."""

    matched: bool
    reason: str
    missing_calls: tuple[str, ...] = ()
    extra_calls: tuple[str, ...] = ()
    ordering_issues: tuple[str, ...] = ()
    forbidden_calls: tuple[str, ...] = ()
    error: str | None = None
    """Why it could not be told whether the calls are as expected: then they are not `matched`."""
    without_calls: bool = False
    """Whether it held and had no call to look at: nothing was shown if none of the agent was ever seen."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One deterministic `expect` check of a reply."""

    check: str
    passed: bool
    reason: str
    error: str | None = None
    """Why it could not be told whether it holds: then it has not `passed`."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a turn was expected to be, by an evaluation set. None stands for what the set does not say."""

    text: str | None
    tool_calls: tuple[ExpectedCall, ...] | None
    invocation: Mapping[str, Any]
    """The invocation in ADK's JSON form, camelCase."""


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A call that an evaluation set expects; `args` is None where it names none."""

    name: str
    args: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class CaseId:
    """Which case of which evaluation set a scenario is."""

    eval_set_id: str
    eval_id: str


@dataclass(frozen=True, slots=True)
class TurnEvaluation:
    turn_index: int
    metrics: Mapping[str, MetricResult] = field(default_factory=dict)
    trajectory: TrajectoryResult | None = None
    checks: tuple[CheckResult, ...] = ()
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class LabelledFailure:
    """A label other than `no failure`, with the id that deduplication refers to."""

    id: str
    conversation_id: str
    turn_index: int | None
    metric: str
    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class ConversationResult:
    """A conversation and everything that was found out about it."""

    conversation: Conversation
    turns: tuple[TurnEvaluation, ...] = ()
    metrics: Mapping[str, MetricResult] = field(default_factory=dict)
    """Metrics of the conversation as a whole, `goal_completion` among them."""
    trajectory: TrajectoryResult | None = None
    failures: tuple[LabelledFailure, ...] = ()
    time: TimeSpent = field(default_factory=TimeSpent)


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failures with one root cause. `occurrences` are failure ids, each in exactly one group."""

    label: str
    severity: Severity
    occurrences: tuple[str, ...]
    explanation: str


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Groups of a scenario's failures; `error` says why the model did not group them itself."""

    groups: tuple[ErrorGroup, ...] = ()
    error: str | None = None


class ReasonKind(StrEnum):
    CONVERSATION = "conversation"
    TRAJECTORY = "trajectory"
    CHECK = "check"
    ERROR = "error"
    THRESHOLD = "threshold"
    PASS_RATE = "pass_rate"
    MODEL = "model"
    UNSCORED = "unscored"
    DEDUPLICATION = "deduplication"
    FILE = "file"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a scenario did not pass. `status` is what the reason alone would make of it."""

    status: Status
    kind: ReasonKind
    message: str
    conversation_id: str | None = None
    turn_index: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    status: Status
    reasons: tuple[Reason, ...] = ()

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Calls to models and what they reported; `retries` are answers that had to be asked for again.

    `cost` is in USD; None where the price of a model that was asked is not known.
    """

    calls: int = 0
    tokens: Usage = field(default_factory=Usage)
    retries: int = 0
    cost: float | None = 0.0

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.retries + other.retries,
            None if self.cost is None or other.cost is None else self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """A turn for which the agent took long."""

    latency_ms: float
    conversation_id: str
    turn_index: int


@dataclass(frozen=True, slots=True)
class Totals:
    """A scenario's conversations in numbers: what is left of them when they have been let go."""

    conversations: int = 0
    passed: int = 0
    turns: int = 0
    """Started ones, closed or not."""
    tool_calls: int = 0
    agent_calls: int = 0
    """Requests to the agent, those that were sent again included."""
    agent_retries: int = 0
    agent_tokens: Usage = field(default_factory=Usage)
    slowest: tuple[SlowTurn, ...] = ()
    """The slowest turns, the slowest first."""
    time: TimeSpent = field(default_factory=TimeSpent)


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario against one agent. A file that did not load is one too: errored, without conversations.

    `conversations` may have been let go when the scenario was finished; `totals` stay.
    """

    name: str
    agent: str
    file: str
    """Relative to the working directory where possible, with forward slashes."""
    line: int
    verdict: Verdict
    conversations: Sequence[ConversationResult] = ()
    averages: Mapping[str, float] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    errors: tuple[ErrorGroup, ...] = ()
    skipped_metrics: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    duration_ms: float = 0.0
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)
    """By role: user, judge, dedup."""
    case: CaseId | None = None
    """Set for a case of an evaluation set."""
    totals: Totals = field(default_factory=Totals)
    planned: int = 0
    """How many conversations were to be held."""
    warnings: tuple[str, ...] = ()
    """What the user should look at, be the scenario passed: mocks that do not take the agent's calls."""


@dataclass(frozen=True, slots=True)
class RunWarning:
    """What everybody should know of a run, whatever its verdict, and the scenario at which to look first."""

    message: str
    agent: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """The whole run."""

    scenarios: tuple[ScenarioResult, ...]
    agents: tuple[str, ...]
    comparison: bool
    started_at: str
    """ISO 8601, UTC."""
    duration_ms: float
    version: str
    models: Mapping[str, str | None] = field(default_factory=dict)
    interrupted: bool = False
    stopped: str | None = None
    """Why the run ended before its end: interrupted, --fail-fast, a budget."""
    sights: Mapping[str, Sight] = field(default_factory=dict)
    """How the agents' tool calls come to be known."""
    silent: tuple[RunWarning, ...] = ()
    """One for each agent of which not one tool call was seen, though its scenarios speak of calls."""

    def with_status(self, status: Status) -> tuple[ScenarioResult, ...]:
        return tuple(s for s in self.scenarios if s.verdict.status is status)

    @property
    def usage(self) -> ModelUsage:
        return sum((u for s in self.scenarios for u in s.usage.values()), ModelUsage())

    @property
    def usage_by_role(self) -> dict[str, ModelUsage]:
        found: dict[str, ModelUsage] = {}
        for scenario in self.scenarios:
            for role, used in scenario.usage.items():
                found[role] = found.get(role, ModelUsage()) + used
        return {role: found[role] for role in ROLES if role in found}

    @property
    def agent_calls(self) -> int:
        return sum(scenario.totals.agent_calls for scenario in self.scenarios)

    @property
    def conversations(self) -> int:
        """How many were held."""
        return sum(scenario.totals.conversations for scenario in self.scenarios)

    @property
    def time(self) -> TimeSpent:
        return sum((scenario.totals.time for scenario in self.scenarios), TimeSpent())

    def slowest_turns(self, count: int) -> list[tuple[ScenarioResult, SlowTurn]]:
        """The turns for which agents took longest, the slowest first; at most five of each scenario."""
        turns = ((scenario, turn) for scenario in self.scenarios for turn in scenario.totals.slowest)
        return nlargest(count, turns, key=lambda found: found[1].latency_ms)
