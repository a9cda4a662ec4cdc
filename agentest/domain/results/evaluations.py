"""What evaluation says about a conversation: scores, trajectories, checks, and failures by their causes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any

from agentest.domain.transcript import Conversation, TimeSpent


class RowStatus(StrEnum):
    """What is to say of an expected call, a call that was made, or the two side by side."""

    MATCHED = "matched"
    FREE = "free"
    """Allowed besides what is expected; within a set of allowed calls also one of them that was not made."""
    DIFFERENT = "different"
    """A call of the same tool that is not as expected stands where the expected one is missing."""
    MISSING = "missing"
    EXTRA = "extra"
    """Not expected, or one more than a limit allows: then `difference` names the limit."""
    FORBIDDEN = "forbidden"
    OUT_OF_ORDER = "out_of_order"
    """As expected, but not at this place."""
    UNKNOWN = "unknown"
    """It could not be told; `difference` says why."""

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong with it."""
        return self in (RowStatus.MATCHED, RowStatus.FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedRow:
    """An expected call, a call that was made, or one beside the other."""

    expected: str | None
    """The expected call as text; None: nothing was expected for this call."""
    call: int | None
    """Which of the calls that the trajectory looked at, from 0; None: it was not made."""
    status: RowStatus
    difference: str = ""
    """What is not as expected, in words."""


NO_MODEL = "no model configured"
DECIDED = "not asked: the conversation has failed already"
"""Why a judge was not asked whose answer cannot change the verdict any more."""
STATE_CHECKS = ("session_state", "final_session_state")
"""The checks of the session's state: of one turn, and after the last."""


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
    """The judges' answer to one rubric: 1 yes, 0 no, None where they gave no valid answer."""

    rubric_id: str
    score: float | None
    rationale: str = ""


class GoalOutcome(StrEnum):
    """What became of the user's goal. The worst first, as in all that judges choose from."""

    REACHED_WRONGLY = "reached wrongly"
    """The user got what they wanted, but with a fault: overcharged, for the wrong person, with a leak."""
    NOT_REACHED = "not reached"
    RIGHTLY_NOT_REACHED = "rightly not reached"
    """It could not or must not be reached, and the agent found that out and said so."""
    REACHED = "reached"

    @property
    def value_of_goal(self) -> int:
        """The value of `goal_completion`: 1, unless the goal was missed or reached wrongly."""
        return int(self in (GoalOutcome.REACHED, GoalOutcome.RIGHTLY_NOT_REACHED))


class Evidence(StrEnum):
    """What the known facts say to a statement."""

    CONTRADICTED = "contradicted"
    UNSUPPORTED = "unsupported"
    """Nothing known bears it out, and nothing contradicts it."""
    SUPPORTED = "supported"


@dataclass(frozen=True, slots=True)
class Score:
    """A metric's value: a number, or a label for a qualitative metric.

    `samples` keeps every answer of the judge where it was asked more than once (`judge.samples`).
    """

    value: float | str
    reason: str
    samples: tuple[float | str, ...] = ()
    rubrics: tuple[RubricScore, ...] = ()
    """The answers that the value is the mean of, for a metric that asks several rubrics."""
    labels: tuple[str, ...] = ()
    """All labels that apply, by their precedence; the first is the value. Empty without a failure."""
    outcome: GoalOutcome | None = None
    """What became of the goal, for `goal_completion`."""
    evidence: Evidence | None = None
    """What the known facts say, for what judges statements."""
    severity: Severity | None = None
    """How severe the judge finds a failure; None: there is none, or it did not say."""

    @property
    def number(self) -> float | None:
        """The value, unless it is a label."""
        return None if isinstance(self.value, str) else float(self.value)


@dataclass(frozen=True, slots=True)
class Unscored:
    """The metric should have a value and has none: its judge or its code failed."""

    error: str
    own_code: bool = False
    """Whether a custom metric's own code failed, not the model that it asked."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The metric was not evaluated here, and why."""

    why: str


MetricResult = Score | Unscored | Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryScore:
    """How much of a trajectory was met: partial credit beside its verdict. Each from 0 to 1."""

    met: float
    """The share of all that it demands: expected calls, forbidden ones, limits and orders. Of calls too many
    precision tells; but where only some calls are allowed (`within`), each that counts is a demand."""
    precision: float
    """The share of the calls that count which were expected; 1 where none was made."""
    recall: float
    """The share of the expected calls that were made; 1 where none is expected."""

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryResult:
    """Expected against actual tool calls. `…_calls` are names of tools; the sides are whole calls as text."""

    matched: bool
    summary: str
    """What does not match, or that all of it does."""
    mode: str | None = None
    expected: str | None = None
    forbidden: str | None = None
    actual: str | None = None
    missing_calls: tuple[str, ...] = ()
    extra_calls: tuple[str, ...] = ()
    ordering_issues: tuple[str, ...] = ()
    forbidden_calls: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    """The demands other than expected calls that were broken: limits and orders, in words."""
    error: str | None = None
    """Why the calls could not be compared: then they are not `matched`."""
    without_calls: bool = False
    """Whether it matched without any call: that shows nothing if no call of the agent was ever seen."""
    alignment: tuple[AlignedRow, ...] = ()
    """Expected calls and those made, side by side; empty where it is not about calls, or none are known."""
    alignment_more: int = 0
    """How many rows more there are: rows with which something is wrong are kept before others."""
    name: str = ""
    """What the scenario calls the trajectory; "": nothing."""
    score: TrajectoryScore | None = None
    """None where the calls could not be compared, or it says nothing of calls."""
    parts: tuple[TrajectoryResult, ...] = ()
    """The results of several trajectories, of which this is the one of all together; else empty."""

    @property
    def sides(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each side that the trajectory compares, in the order in which they are shown."""
        sides = (
            (f"expected ({self.mode})", self.expected),
            ("forbidden", self.forbidden),
            ("actual", self.actual),
        )
        return tuple((label, text) for label, text in sides if text is not None)

    @property
    def reason(self) -> str:
        """The summary, and below it the sides in full."""
        return "\n".join((self.summary, *(f"{label}: {text}" for label, text in self.sides)))

    def with_reason(self, reason: str) -> TrajectoryResult:
        """The result whose reason is this: it has the summary to these sides."""
        sides = replace(self, summary="").reason
        return replace(self, summary=reason.removesuffix(sides))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one deterministic `expect` check of a reply."""

    check: str
    passed: bool
    summary: str
    """What was expected of the reply."""
    reply: str | None = None
    """The reply as it is shown; None where the summary says what matters of it."""
    error: str | None = None
    """Why the reply could not be checked: then it has not `passed`."""
    turn_index: int | None = None
    """The turn that decides about a check of the whole conversation; None: no single one does."""

    @property
    def reason(self) -> str:
        """What was expected, and what the reply was."""
        return self.summary if self.reply is None else f"{self.summary}; the reply was {self.reply}"

    def with_reason(self, reason: str) -> CheckResult:
        """The result whose reason is this: it has the summary to this reply."""
        reply = replace(self, summary="").reason
        return replace(self, summary=reason.removesuffix(reply))


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """A call that an evaluation set expects; `args` is None where the set gives no arguments."""

    name: str
    args: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Reference:
    """What an evaluation set expects of a turn. None stands for what the set does not say."""

    text: str | None
    tool_calls: tuple[ReferenceCall, ...] | None
    invocation: Mapping[str, Any]
    """The invocation in ADK's JSON form, camelCase."""


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
    judged_ms: float | None = field(default=None, compare=False)
    """From when judges were asked about the turn until all had answered; None: none was asked of it alone."""


@dataclass(frozen=True, slots=True)
class LabelledFailure:
    """A label other than `no failure`, with the id that deduplication refers to."""

    id: str
    conversation_id: str
    turn_index: int | None
    metric: str
    label: str
    reason: str
    severity: Severity | None = None
    """How bad the judge says that it is; None: no judge was asked."""


class CriterionOutcome(StrEnum):
    """What a judge says of a criterion. The worst first."""

    VIOLATED = "violated"
    CANNOT_TELL = "cannot tell"
    MET = "met"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionResult:
    """One of the scenario's criteria, judged over the whole conversation."""

    text: str
    required: bool
    result: CriterionOutcome
    turn_index: int | None
    """The turn that decides; None: no single one does."""
    reason: str
    samples: tuple[CriterionOutcome, ...] = ()
    """Every answer, where the judge was asked more than once."""

    @property
    def not_asked(self) -> bool:
        """Whether no judge was asked, as the conversation had failed already."""
        return self._is_untold(DECIDED)

    @property
    def without_model(self) -> bool:
        """Whether there was no judge to ask."""
        return self._is_untold(NO_MODEL)

    def _is_untold(self, why: str) -> bool:
        # A judge that found something may have written the same words.
        return self.result is CriterionOutcome.CANNOT_TELL and self.reason == why


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionTotals:
    """What became of one criterion in a scenario's conversations."""

    text: str
    required: bool
    met: int = 0
    violated: int = 0
    untold: int = 0
    example: tuple[str, CriterionResult] | None = None
    """The first conversation, by its id, of the worst result that there is; None: it was met in all."""

    @property
    def judged(self) -> int:
        """In how many conversations it was judged, or should have been."""
        return self.met + self.violated + self.untold

    @property
    def worst(self) -> CriterionOutcome:
        """The worst of its results."""
        return self.example[1].result if self.example else CriterionOutcome.MET


@dataclass(frozen=True, slots=True)
class ConversationResult:
    """A conversation with all its evaluations."""

    conversation: Conversation
    turns: tuple[TurnEvaluation, ...] = ()
    metrics: Mapping[str, MetricResult] = field(default_factory=dict)
    """Metrics of the conversation as a whole, `goal_completion` among them."""
    trajectory: TrajectoryResult | None = None
    failures: tuple[LabelledFailure, ...] = ()
    time: TimeSpent = field(default_factory=TimeSpent)
    criteria: tuple[CriterionResult, ...] = ()
    """In the scenario's order; empty where the conversation was cut short."""
    invalid: str | None = None
    """How the simulated user broke its role (`user.check`): the conversation says nothing of the agent."""
    checks: tuple[CheckResult, ...] = ()
    """What the scenario says of the whole conversation: `says`, `never_says`, `final_state`, `check`."""
    severe_failures: tuple[str, ...] = ()
    """Ids of its failures that belong to a group at or above `fail_on_error_severity`."""
    severity_unknown: bool = False
    """True if it has failures that could not be grouped, so that a severe one cannot be ruled out."""

    @property
    def metric_results(self) -> Iterator[tuple[str, MetricResult]]:
        """Metric and result, of each turn and of the whole; none of an invalid conversation."""
        if self.invalid is None:
            for turn in self.turns:
                yield from turn.metrics.items()
            yield from self.metrics.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorExample:
    """A turn in which an error occurred. The texts are shortened to one row each and hold no secrets."""

    conversation_id: str
    turn_index: int
    user_message: str
    agent_message: str
    tool_calls: tuple[str, ...] = ()
    """Each as `name(key=value) → result`."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failures with one root cause. `occurrences` are failure ids, each in exactly one group."""

    label: str
    severity: Severity
    occurrences: tuple[str, ...]
    explanation: str
    examples: tuple[ErrorExample, ...] = ()
    """At most three of the turns in which it occurred."""
    fails: bool = False
    """True if its severity is at or above `fail_on_error_severity`."""


@dataclass(frozen=True, slots=True)
class Deduplication:
    """Groups of a scenario's failures; `error` says why the model could not group them."""

    groups: tuple[ErrorGroup, ...] = ()
    error: str | None = None
    graded: bool = True
    """False if nobody could be asked how severe the failures are."""
