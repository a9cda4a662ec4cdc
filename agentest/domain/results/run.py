"""The results of scenarios and of the whole run, with what they took in time, calls and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest

from agentest.domain.repeat import Repeat
from agentest.domain.results.evaluations import (
    CaseId,
    ConversationResult,
    CriterionTotals,
    ErrorGroup,
    Evidence,
)
from agentest.domain.results.verdicts import (
    CauseJoin,
    MetricVerdict,
    ReasonKind,
    ScenarioCause,
    Status,
    Verdict,
    VerdictWarning,
    WarningCode,
)
from agentest.domain.tool_visibility import Sight
from agentest.domain.transcript import TimeSpent, Usage


@dataclass(frozen=True, slots=True)
class Figure:
    """An average or a rate with its 95 % interval.

    `low` and `high` are both None where the observations do not tell how sure the value is.
    """

    value: float
    n: int
    """How many observations the value is the mean of: turns, or conversations."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCalibration:
    """A judge against people's labels, for one metric.

    Attributes:
        model: the judge.
        n: the labelled questions that were compared.
        agreement: the share of those where both see a fault, or both see none.
        kappa: Cohen's kappa of that; None where it is not defined.
        low, high: its 95 % interval; None where there is none. Older files may have a zero width.
        date: when it was measured: ISO 8601, a day.
    """

    model: str
    n: int
    agreement: float
    kappa: float | None = None
    low: float | None = None
    high: float | None = None
    date: str = ""

    @property
    def shown(self) -> str:
        """In short, for beside a figure."""
        if self.kappa is None:
            return f"judge agrees {self.agreement:.0%}, n {self.n}"
        low, high = self.low, self.high
        sure = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None and low < high else ""
        return f"judge κ {self.kappa:.2f}{sure}, n {self.n}"


ROLES = ("user", "judge", "dedup")
"""What models are used for, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Calls to models and the tokens they reported; `retries` are requests that had to be repeated.

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
    first_token_ms: float | None = None
    """None: not streamed."""


@dataclass(frozen=True, slots=True)
class Totals:
    """A scenario's conversations in numbers, which stay when the conversations themselves are dropped."""

    conversations: int = 0
    passed: int = 0
    turns: int = 0
    """Started ones, closed or not."""
    tool_calls: int = 0
    agent_calls: int = 0
    """Requests to the agent, retries included."""
    agent_retries: int = 0
    agent_tokens: Usage = field(default_factory=Usage)
    slowest: tuple[SlowTurn, ...] = ()
    """The slowest turns, the slowest first."""
    time: TimeSpent = field(default_factory=TimeSpent)
    unanswered: Mapping[str, int] = field(default_factory=dict)
    """Tool → calls that were answered with null, as nothing had an answer to them."""
    told_turns: int = 0
    """Turns whose answers showed that the agent tells of its calls, where its type does not say so."""
    keeps_calls_back: bool = False
    """Whether mock servers answered calls of an agent that reported none in their turn."""
    held_without_calls: bool = False
    """Whether a trajectory held without any call: that shows nothing if the agent was never seen to call."""
    evidence: Mapping[str, Mapping[Evidence, int]] = field(default_factory=dict)
    """Metric → in how many turns what was said is contradicted, or not supported, by what is known."""
    criteria: tuple[CriterionTotals, ...] = ()
    """In the scenario's order."""
    called: frozenset[str] = frozenset()
    """The tools that were called."""


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario against one agent. A file that did not load is one too: errored, without conversations.

    `conversations` may have been dropped when the scenario was finished; `totals` stay.
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
    metric_verdicts: tuple[MetricVerdict, ...] = ()
    """One for each metric with a threshold."""
    information: tuple[str, ...] = ()
    """The metrics whose scores decide nothing."""
    errors: tuple[ErrorGroup, ...] = ()
    severity_unknown: bool = False
    """True if nobody could tell how severe the failures in `errors` are."""
    skipped_metrics: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    duration_ms: float = 0.0
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)
    """By role: user, judge, dedup."""
    case: CaseId | None = None
    """Set for a case of an evaluation set."""
    totals: Totals = field(default_factory=Totals)
    planned: int = 0
    """How many conversations the plan had; with `repeat`, how many it took, or the most if it was ended."""
    repeat: Repeat | None = None
    """None: a fixed number of conversations was held."""
    decided_after: int | None = None
    """After how many conversations the verdict was decided, where there is `repeat`; None: it was not."""
    warnings: tuple[str, ...] = ()
    """What the user should look at even if the scenario passed: mocks that do not take the agent's calls."""
    verdict_warnings: tuple[VerdictWarning, ...] = ()
    """What questions the verdict."""
    intervals: Mapping[str, Figure] = field(default_factory=dict)
    """Metric → its average with n and interval: the metrics of `averages`."""
    pass_rate: Figure | None = None
    """The share of conversations that passed, among those that passed or failed; None: there are none."""
    pass_hat_k: Mapping[int, float] = field(default_factory=dict)
    """k → how likely k conversations all pass (pass^k), for k up to the `n` of `pass_rate`."""
    flaky: bool = False
    """Whether some conversations passed and some failed."""
    goal: str = ""
    """What the simulated user wants, without secrets; "": the scenario does not say."""
    profile: str = ""
    """Who the simulated user is, as above."""
    causes: tuple[ScenarioCause, ...] = ()
    """What speaks against it without a judge's labels, collected when it was decided."""

    @property
    def unfinished(self) -> bool:
        """Whether nothing but the early end of a run keeps it from a verdict of its own."""
        reasons = self.verdict.reasons
        undecided = self.verdict.status in (Status.ERRORED, Status.SKIPPED)
        return undecided and bool(reasons) and all(r.kind is ReasonKind.INTERRUPTED for r in reasons)


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A warning about the whole run, whatever its verdict, and the scenario to look at first."""

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
    """Why the run ended early: interrupted, --fail-fast, a budget."""
    real_tool_ran: bool = False
    """Whether it ended early because an agent ran a mocked tool itself; known while the run lasts."""
    sights: Mapping[str, Sight] = field(default_factory=dict)
    """How the tool calls of each agent become visible."""
    silent: tuple[RunWarning, ...] = ()
    """One for each agent without a single visible tool call, although its scenarios are about calls."""
    unanswered: tuple[RunWarning, ...] = ()
    """One for each tool of which calls were answered with null, as nothing had an answer to them."""
    unclaimed: tuple[RunWarning, ...] = ()
    """One for each tool of which mock servers refused calls, as they belonged to no conversation."""

    calibrations: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → how far its judge has been right, where that was measured."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Agent → where it was, for people."""
    shard: str | None = None
    """Which part of a run this is, as K/N; None: it is whole."""
    joins: tuple[CauseJoin, ...] = ()
    """The judged groups of several scenarios that a model joined by their root causes."""
    joining: Mapping[str, ModelUsage] = field(default_factory=dict)
    """By role, what that took: it belongs to no scenario."""

    @property
    def verdict_warnings(self) -> tuple[VerdictWarning, ...]:
        """What questions the verdicts, scenario by scenario."""
        return tuple(warning for scenario in self.scenarios for warning in scenario.verdict_warnings)

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        """All warnings about the run as a whole that its scenarios do not have themselves."""
        codes = {(each.agent, each.code) for each in self.verdict_warnings}
        silent = (each for each in self.silent if (each.agent, WarningCode.NO_CALL_SEEN) not in codes)
        return (*self.unclaimed, *silent, *self.unanswered)

    @property
    def unfinished(self) -> tuple[ScenarioResult, ...]:
        """The scenarios that did not run, or ran in part, as the run ended early."""
        if not self.interrupted and self.stopped is None:
            return ()
        return tuple(scenario for scenario in self.scenarios if scenario.unfinished)

    @property
    def finished(self) -> tuple[ScenarioResult, ...]:
        """All others: those whose verdicts are their own."""
        left = set(map(id, self.unfinished))
        return tuple(scenario for scenario in self.scenarios if id(scenario) not in left)

    def with_status(self, status: Status) -> tuple[ScenarioResult, ...]:
        return tuple(s for s in self.scenarios if s.verdict.status is status)

    @property
    def usage(self) -> ModelUsage:
        return sum((used for part in self._usages for used in part.values()), ModelUsage())

    @property
    def usage_by_role(self) -> dict[str, ModelUsage]:
        usage: dict[str, ModelUsage] = {}
        for part in self._usages:
            for role, used in part.items():
                usage[role] = usage.get(role, ModelUsage()) + used
        return {role: usage[role] for role in ROLES if role in usage}

    @property
    def _usages(self) -> Iterator[Mapping[str, ModelUsage]]:
        yield from (scenario.usage for scenario in self.scenarios)
        yield self.joining

    @property
    def agent_calls(self) -> int:
        return sum(scenario.totals.agent_calls for scenario in self.scenarios)

    @property
    def conversations(self) -> int:
        """How many conversations took place."""
        return sum(scenario.totals.conversations for scenario in self.scenarios)

    @property
    def time(self) -> TimeSpent:
        return sum((scenario.totals.time for scenario in self.scenarios), TimeSpent())

    def slowest_turns(self, count: int) -> list[tuple[ScenarioResult, SlowTurn]]:
        """The turns for which agents took longest, the slowest first; at most five of each scenario."""
        turns = ((scenario, turn) for scenario in self.scenarios for turn in scenario.totals.slowest)
        return nlargest(count, turns, key=lambda each: each[1].latency_ms)
