"""The results of scenarios and of the whole run, with their time, calls and tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, field
from enum import StrEnum
from heapq import nlargest
from typing import TYPE_CHECKING

from agentest.domain.metrics import LIMITS
from agentest.domain.repeat_setting import Repeat
from agentest.domain.results.evaluations import (
    CaseId,
    CheckResult,
    ConversationResult,
    CriterionResult,
    CriterionTotals,
    Evidence,
    Severity,
    TrajectoryResult,
    UniqueError,
)
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import TimeSpent, Usage
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import duration

if TYPE_CHECKING:
    from agentest.domain.results.exploration import Explored


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
    WARNING = "warning"  # strict mode: a warning questions the verdict


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why a scenario did not pass: a message for the user, and its subject in fields."""

    status: Status  # the status of a scenario that has only this reason
    kind: ReasonKind
    message: str
    _: KW_ONLY
    conversation_id: str | None = None
    turn_index: int | None = None
    metric: str | None = None
    expected: float | None = None  # the threshold of the metric, or of the pass rate
    actual: float | None = None  # the metric's average, or the share of conversations that passed
    group: UniqueError | None = None
    check: CheckResult | None = None
    trajectory: TrajectoryResult | None = None
    criterion: CriterionResult | None = None

    @property
    def is_of_limit(self) -> bool:
        """True if the metric must be at most `expected`; a custom metric of the same name, at least."""
        return self.metric in LIMITS and (self.actual is None or self.actual > (self.expected or 0.0))


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
    reasons: Sequence[Reason] = ()

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED


class WarningCode(StrEnum):
    """The codes of warnings that question a verdict."""

    ONLY_REPLIES = "only-replies"  # the only check was that the agent replied
    ERROR_REPLY = "error-reply"  # a reply reads like an error, and no check covered its text
    VACUOUS_CHECK = "vacuous-check"  # a check passes whatever the agent does
    UNKNOWN_TOOL = "unknown-tool"
    """A ban, limit or expectation names a tool that is unknown to all mocks, schemas and calls of the run."""
    MOCK_NEVER_CALLED = "mock-never-called"
    MOCK_MISFIT = "mock-misfit"
    """A call of a tool had arguments that its mock does not accept: a note, unless none had."""
    INVALID_ARGUMENTS = "invalid-arguments"
    """A call had arguments that are not a JSON object, so that no tool could run."""
    MOCK_RAISED = "mock-raised"  # a mock's own code raised an unintended exception
    SIMULATED_TOOLS = "simulated-tools"
    """A model answered tools, so nothing shows that the agent works with the real ones."""
    SHARED_SESSION = "shared-session"
    """A reply carries the session id of another conversation: the agent shares state between them."""
    PARTIAL_VISIBILITY = "partial-visibility"  # only some of the agent's tool calls are visible
    NO_CALL_SEEN = "no-call-seen"
    """No tool call of the agent was visible in the whole run, although its scenarios are about calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictWarning:
    """A reason to question the verdict on a scenario, which errs it in strict mode, or a note."""

    code: WarningCode
    scenario: str
    message: str
    agent: str = ""
    file: str = ""
    line: int = 0
    tools: tuple[str, ...] = ()
    note: bool = False  # True if it questions no verdict: it is shown, and never makes the scenario errored

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

    AGENT_ERROR = "agent_error"  # the agent's own error ended the conversation
    UNMOCKED_TOOL = "unmocked_tool"
    TRAJECTORY = "trajectory"
    CHECK = "check"
    CRITERION = "criterion"
    GOAL = "goal"
    JUDGED = "judged"  # failures that judges labelled, grouped by their cause
    THRESHOLD = "threshold"
    PASS_RATE = "pass_rate"
    ERRORED = "errored"  # something outside the agent kept the scenario from being judged


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioCause:
    """Why some conversations of one scenario failed, as far as known without a judge's labels."""

    kind: CauseKind
    title: str  # the full title if all conversations agree, otherwise the pattern
    pattern: str  # the title without values that vary between conversations. It identifies the cause.
    conversations: int
    conversation_id: str | None = None  # the first conversation; None if the cause is not about a single one
    turn_index: int | None = None
    text: str = ""


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

    id: str  # identical in every run that has this cause
    title: str
    kind: CauseKind
    severity: Severity
    scenarios: int
    conversations: int
    agents: tuple[str, ...] = ()
    example: CauseExample
    places: tuple[CausePlace, ...] = ()  # the first affected scenarios; `scenarios` counts all of them
    labels: tuple[str, ...] = ()
    """The normalized labels of the groups that a model joined; empty without a join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseJoin:
    """Labels of judged groups that share one root cause, with the title of that cause."""

    title: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """An average or a rate with its 95 % interval, which is None if the observations do not allow one."""

    value: float
    n: int  # the number of observations: turns, or conversations
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRate:
    """How often the attacks of a scenario succeeded, with the 95 % interval of the share."""

    strategy: str
    objectives: tuple[str, ...]
    successes: int
    attempts: int
    low: float
    high: float
    success_at_k: tuple[float, ...]  # the probability that at least one of 1, 2, … attempts succeeds
    notes: tuple[str, ...] = ()  # what kept attempts from dropping exchanges


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCalibration:
    """The agreement of a judge with people's labels, for one metric.

    Attributes:
        model: the judge.
        n: the labelled questions that were compared.
        agreement: the share of questions for which both see a fault, or both see none.
        kappa: Cohen's kappa; None if it is not defined.
        low, high: the 95 % interval of kappa; None if there is none. Older files may have a zero width.
        date: the day of the measurement, ISO 8601.
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
        """Format the agreement briefly, to follow a figure."""
        if self.kappa is None:
            return f"judge agrees {self.agreement:.0%}, n {self.n}"
        low, high = self.low, self.high
        sure = f" [{low:.2f}, {high:.2f}]" if low is not None and high is not None and low < high else ""
        return f"judge κ {self.kappa:.2f}{sure}, n {self.n}"


ROLES = ("user", "judge", "dedup")  # the purposes of model calls, in display order


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """Model calls, tokens, repeated requests (`retries`), and cost in USD; None if a price is not known.

    `cached` counts the calls that stored answers replaced, and `saved` is what they had cost.
    """

    calls: int = 0
    tokens: Usage = field(default_factory=Usage)
    retries: int = 0
    cost: float | None = 0.0
    cached: int = 0
    saved: float | None = 0.0

    def __add__(self, other: ModelUsage) -> ModelUsage:
        return ModelUsage(
            self.calls + other.calls,
            self.tokens + other.tokens,
            self.retries + other.retries,
            _sum(self.cost, other.cost),
            self.cached + other.cached,
            _sum(self.saved, other.saved),
        )


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def total_usage(usages: Iterable[Mapping[str, ModelUsage]]) -> dict[str, ModelUsage]:
    """Return the sum of model usages by role."""
    total: dict[str, ModelUsage] = {}
    for each in usages:
        for role, used in each.items():
            total[role] = total.get(role, ModelUsage()) + used
    return total


@dataclass(frozen=True, slots=True)
class SlowTurn:
    """One of the turns with the longest response times."""

    latency_ms: float
    conversation_id: str
    turn_index: int
    first_token_ms: float | None = None
    model_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """A scenario's conversations in numbers, which remain when the conversations themselves are dropped."""

    conversations: int = 0
    passed: int = 0
    turns: int = 0  # started turns, with or without a reply
    tool_calls: int = 0
    agent_calls: int = 0  # requests to the agent, retries included
    agent_retries: int = 0
    agent_tokens: Usage = field(default_factory=Usage)
    slowest: tuple[SlowTurn, ...] = ()
    time: TimeSpent = field(default_factory=TimeSpent)
    unanswered: Mapping[str, int] = field(default_factory=dict)
    """Tool → number of calls that were answered with null because no source had an answer."""
    reporting_turns: int = 0
    """Turns whose answers showed that the agent reports its calls, if its type does not guarantee that."""
    withholds_calls: bool = False
    """True if mock servers answered calls that the agent did not report in their turn."""
    evidence: Mapping[str, Mapping[Evidence, int]] = field(default_factory=dict)
    """Metric → number of turns with contradicted or unsupported statements, by evidence."""
    criteria: tuple[CriterionTotals, ...] = ()  # in the scenario's order
    called: frozenset[str] = frozenset()
    offered: frozenset[str] = frozenset()
    """Names of the tools that the agent offered its model, as far as that was seen."""
    agent_cost: float | None = None  # the cost of the agent's model in USD; None if it is unknown


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """One scenario against one agent, or a file that did not load. Its `conversations` may be dropped."""

    name: str
    agent: str
    file: str  # relative to the working directory if possible, with forward slashes
    line: int
    verdict: Verdict
    conversations: Sequence[ConversationResult] = ()
    averages: Mapping[str, float] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)
    information: tuple[str, ...] = ()  # the metrics whose scores are informational: they decide nothing
    errors: tuple[UniqueError, ...] = ()
    severity_unknown: bool = False
    """True if no judge was available to grade the severity of the failures in `errors`."""
    skipped_metrics: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    duration_ms: float = 0.0
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)  # by role: user, judge, dedup
    case: CaseId | None = None  # set for a case of an evaluation set
    totals: Totals = field(default_factory=Totals)
    planned: int = 0
    """Planned conversations; with `repeat`, the number that ran, or the maximum after an early end."""
    repeat: Repeat | None = None  # None if the number of conversations is fixed
    decided_after: int | None = None
    """The number of conversations after which `repeat` decided the verdict; None if it did not."""
    warnings: tuple[str, ...] = ()
    """Problems to look at even if the scenario passed, such as mocks that do not accept the agent's calls."""
    verdict_warnings: tuple[VerdictWarning, ...] = ()
    intervals: Mapping[str, Figure] = field(default_factory=dict)
    """Metric → its average with n and interval, for the metrics of `averages`."""
    pass_rate: Figure | None = None
    """The share of conversations that passed, among those that passed or failed; None without any."""
    goal: str = ""  # the simulated user's goal, without secrets; "" if the scenario has none
    profile: str = ""  # the simulated user's profile, without secrets; "" if the scenario has none
    causes: tuple[ScenarioCause, ...] = ()
    """The causes that need no judge's labels, collected when the scenario was decided."""
    attack: AttackRate | None = None  # None if its user is no attacker, or no attempt could be decided

    @property
    def flaky(self) -> bool:
        """True if some conversations passed and others failed."""
        return self.pass_rate is not None and 0 < self.pass_rate.value < 1

    @property
    def unfinished(self) -> bool:
        """True if only the early end of the run keeps the scenario from a verdict of its own."""
        reasons = self.verdict.reasons
        undecided = self.verdict.status in (Status.ERRORED, Status.SKIPPED)
        return undecided and bool(reasons) and all(r.kind is ReasonKind.INTERRUPTED for r in reasons)


@dataclass(frozen=True, slots=True)
class RunWarning:
    """A warning about the whole run, independent of its verdict, and the scenario to look at first."""

    message: str
    agent: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """What a run used of the quota that a provider grants one key for one model."""

    model: str
    requests: int
    tokens: int
    refused: int = 0  # requests that were refused for a quota
    waited_ms: float = 0.0  # time during which requests waited for the quota
    learnt_per_minute: float | None = None  # the rate of requests that 429s showed at last; None: none
    allowed_requests_per_minute: float | None = None  # by the provider's headers; None: they do not say
    allowed_tokens_per_minute: float | None = None

    @property
    def message(self) -> str:
        """Say how the quota held up the run; "" if it did not."""
        facts = [f"{self.refused:,} of {self.requests:,} requests refused"] if self.refused else []
        if self.waited_ms >= 1000:
            facts.append(f"requests waited {duration(self.waited_ms)} for its limits")
        if self.learnt_per_minute:
            facts.append(f"about {self.learnt_per_minute:,.0f} requests a minute seem to be allowed")
        return f"{self.model}: {'; '.join(facts)}" if facts else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedScenario:
    """A scenario with an agent whose verdict is compared with that of an earlier run."""

    name: str
    agent: str
    file: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The scenarios that fail, or did not pass before, compared with the last run of the same selection."""

    newly_failing: tuple[ChangedScenario, ...] = ()  # they passed in that run
    newly_fixed: tuple[ChangedScenario, ...] = ()
    still_failing: tuple[ChangedScenario, ...] = ()


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of the whole run."""

    scenarios: tuple[ScenarioResult, ...]
    agents: tuple[str, ...]
    comparison: bool
    started_at: str  # ISO 8601, UTC
    duration_ms: float
    version: str
    models: Mapping[str, str | None] = field(default_factory=dict)
    interrupted: bool = False
    stopped: str | None = None  # the reason why the run ended early: interrupted, --fail-fast, a budget
    real_tool_ran: bool = False
    """True if the run ended early because an agent ran a mocked tool itself. Known only during the run."""
    visibilities: Mapping[str, ToolVisibility] = field(default_factory=dict)
    """Agent → how its tool calls become visible."""
    silent: tuple[RunWarning, ...] = ()
    """One warning for each agent without a visible tool call, although its scenarios are about calls."""
    unanswered: tuple[RunWarning, ...] = ()
    """One warning for each tool whose calls were answered with null because no source had an answer."""
    unclaimed: tuple[RunWarning, ...] = ()
    """One warning for each tool whose calls mock servers refused because they belonged to no conversation."""

    calibrations: Mapping[str, JudgeCalibration] = field(default_factory=dict)
    """Metric → the measured agreement of its judge with people's labels, if there is one."""
    addresses: Mapping[str, str] = field(default_factory=dict)  # agent → its address, for people
    shard: str | None = None  # the part of a split run that this is, as K/N; None if the run is not split
    joins: tuple[CauseJoin, ...] = ()
    """The groups of several scenarios that a model joined because they have the same root cause."""
    joining: Mapping[str, ModelUsage] = field(default_factory=dict)
    """Model usage of the joining, by role. It belongs to no scenario."""
    quotas: tuple[QuotaUse, ...] = ()
    changes: Changes = Changes()
    explored: Explored | None = None  # what an exploration tried and found; None: the run explored nothing
    hidden: str = ""  # what a report says of the values that it hides; "" if it hides none

    @property
    def verdict_warnings(self) -> tuple[VerdictWarning, ...]:
        """The warnings that question verdicts, in the order of the scenarios."""
        return tuple(warning for scenario in self.scenarios for warning in scenario.verdict_warnings)

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        """The warnings about the run as a whole that no scenario has."""
        codes = {(each.agent, each.code) for each in self.verdict_warnings}
        silent = (each for each in self.silent if (each.agent, WarningCode.NO_CALL_SEEN) not in codes)
        return (*self.unclaimed, *silent, *self.unanswered)

    @property
    def unfinished(self) -> tuple[ScenarioResult, ...]:
        """The scenarios that did not run, or ran in part, because the run ended early."""
        if not self.interrupted and self.stopped is None:
            return ()
        return tuple(scenario for scenario in self.scenarios if scenario.unfinished)

    @property
    def lacks_conversations(self) -> bool:
        """True if the run ended before all conversations of a scenario that has failed for certain."""
        ended = self.interrupted or self.stopped is not None
        failed = (each for each in self.finished if not each.repeat)
        return ended and any(each.totals.conversations < each.planned for each in failed)

    @property
    def finished(self) -> tuple[ScenarioResult, ...]:
        """The scenarios with a verdict of their own."""
        left = set(map(id, self.unfinished))
        return tuple(scenario for scenario in self.scenarios if id(scenario) not in left)

    def with_status(self, status: Status) -> tuple[ScenarioResult, ...]:
        return tuple(s for s in self.scenarios if s.verdict.status is status)

    @property
    def usage(self) -> ModelUsage:
        return sum(total_usage(self._usages).values(), ModelUsage())

    @property
    def usage_by_role(self) -> dict[str, ModelUsage]:
        usage = total_usage(self._usages)
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
        """The number of conversations that took place."""
        return sum(scenario.totals.conversations for scenario in self.scenarios)

    @property
    def time(self) -> TimeSpent:
        return sum((scenario.totals.time for scenario in self.scenarios), TimeSpent())

    def slowest_turns(self, count: int) -> list[tuple[ScenarioResult, SlowTurn]]:
        """Return the slowest turns; the slowest comes first, and each scenario has at most five."""
        turns = ((scenario, turn) for scenario in self.scenarios for turn in scenario.totals.slowest)
        return nlargest(count, turns, key=lambda each: each[1].latency_ms)
