"""The evaluation of a conversation: scores, trajectories, checks, criteria and grouped failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import Any

from agentest.domain.transcript import Conversation, TimeSpent
from agentest.support.lazy_dataclasses import dataclass


class RowStatus(StrEnum):
    """The status of one row of an alignment of expected and actual calls."""

    MATCHED = "matched"
    FREE = "free"
    """Allowed but not expected; within a set of allowed calls also an allowed call that was not made."""
    DIFFERENT = "different"
    """A call of the right tool with other arguments, in the position of the missing expected call."""
    MISSING = "missing"
    EXTRA = "extra"  # not expected, or above a limit, which `difference` names
    FORBIDDEN = "forbidden"
    OUT_OF_ORDER = "out_of_order"  # as expected, but in the wrong position
    UNKNOWN = "unknown"  # could not be compared; `difference` has the reason

    @property
    def holds(self) -> bool:
        """True if the row has no fault."""
        return self in (RowStatus.MATCHED, RowStatus.FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentDifference:
    """One part of a call that is not as expected, with both values as text."""

    path: str  # the argument, or `result`, with keys and indexes joined by dots
    expected: str | None = None  # None if the key should not exist
    actual: str | None = None  # None if the key does not exist
    expected_kind: str = ""  # the JSON type of the value: `text`, `a number`; "" if a matcher decides
    actual_kind: str = ""

    @property
    def words(self) -> str:
        """A description without the path: `expected 5, got 500`."""
        if self.expected is None:
            return f"not expected, got {self.actual}"
        return f"expected {self.expected}, " + ("not given" if self.actual is None else f"got {self.actual}")

    @property
    def pattern(self) -> str:
        """A description without values: "differs" if only the values differ, not their types."""
        if self.expected is None or self.actual is None:
            return "not expected" if self.expected is None else "not given"
        kinds = {self.expected_kind, self.actual_kind}
        alike = len(kinds) == 1 or "" in kinds
        return "differs" if alike else f"expected {self.expected_kind}, got {self.actual_kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedRow:
    """One row of an alignment: an expected call, an actual call, or both."""

    expected: str | None  # the expected call as text; None if no call was expected
    call: int | None  # the index of the actual call, from 0; None if it was not made
    status: RowStatus
    difference: str = ""  # a description of the mismatch
    differences: tuple[ArgumentDifference, ...] = ()  # what differs in the call of a `different` row
    tool: str = ""  # the name of the expected tool, or of all alternatives, in a `different` or `missing` row


NO_MODEL = "no model configured"
DECIDED = "not asked: the conversation has failed already"
"""The reason why a judge was skipped whose answer could no longer change the verdict."""
STATE_CHECKS = ("session_state", "final_session_state")
"""The checks of the session's state: after one turn, and after the last turn."""


class Severity(IntEnum):
    """The severity of a grouped error, ordered from mild to severe."""

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
    """The judge's answer to one rubric: 1 for yes, 0 for no, None without a valid answer."""

    rubric_id: str
    score: float | None
    rationale: str = ""


class GoalOutcome(StrEnum):
    """The outcome of the user's goal. The worst comes first, as in all choices that judges receive."""

    REACHED_WRONGLY = "reached wrongly"
    """The user reached the goal, but with a fault: overcharged, for the wrong person, with a leak."""
    NOT_REACHED = "not reached"
    LEFT_OPEN = "left open"
    """The script or a limit ended the conversation while the agent rightly waited, so nothing is known."""
    RIGHTLY_NOT_REACHED = "rightly not reached"
    """The goal could not or must not be reached, and the agent found that out and said so."""
    REACHED = "reached"

    @property
    def value_of_goal(self) -> int:
        """The value of `goal_completion`: 1, unless the goal was missed, reached wrongly or left open."""
        return int(self in (GoalOutcome.REACHED, GoalOutcome.RIGHTLY_NOT_REACHED))


class Evidence(StrEnum):
    """The relation of the known facts to a statement."""

    CONTRADICTED = "contradicted"
    UNSUPPORTED = "unsupported"  # the known facts neither support nor contradict it
    SUPPORTED = "supported"


@dataclass(frozen=True, slots=True)
class Score:
    """A metric's value, a number or a label; `samples` has every answer if there are several."""

    value: float | str
    reason: str
    samples: tuple[float | str, ...] = ()
    rubrics: tuple[RubricScore, ...] = ()
    """The rubric answers whose mean is the value, for a metric with several rubrics."""
    labels: tuple[str, ...] = ()
    """All labels that apply, in order of precedence; the first is the value. Empty without a failure."""
    outcome: GoalOutcome | None = None  # the outcome of the goal, for `goal_completion`
    evidence: Evidence | None = None  # the evidence for statements, for metrics that judge statements
    severity: Severity | None = None
    """The judge's severity for a failure; None without a failure or without an answer."""

    @property
    def number(self) -> float | None:
        """The value, unless it is a label."""
        return None if isinstance(self.value, str) else float(self.value)


@dataclass(frozen=True, slots=True)
class Unscored:
    """A metric without the value that it should have, because its judge or its code failed."""

    error: str
    own_code: bool = False  # True if a custom metric's own code failed, rather than the model that it called
    outcome: GoalOutcome | None = None  # `left open`, if that is why `goal_completion` has no value


@dataclass(frozen=True, slots=True)
class Skipped:
    """A metric that was not evaluated here, with the reason."""

    why: str


MetricResult = Score | Unscored | Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryScore:
    """Partial credit for a trajectory, in addition to its verdict. All values are from 0 to 1."""

    met: float
    """The share of its requirements that was met: expected calls, forbidden calls, limits and orders.

    Extra calls lower the precision instead; but if only some calls are allowed (`within`), each counted call
    is a requirement.
    """
    precision: float  # the share of the counted calls that were expected; 1 if none was made
    recall: float  # the share of the expected calls that were made; 1 if none is expected

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryResult:
    """The comparison of expected and actual tool calls: names in `…_calls`, and both sides as text."""

    matched: bool
    summary: str  # the mismatches, or a statement that everything matches
    mode: str | None = None
    expected: str | None = None
    forbidden: str | None = None
    actual: str | None = None
    missing_calls: tuple[str, ...] = ()
    extra_calls: tuple[str, ...] = ()
    ordering_issues: tuple[str, ...] = ()
    forbidden_calls: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    """The broken requirements other than expected calls: limits and orders, as sentences."""
    error: str | None = None  # the reason why the calls could not be compared; then `matched` is False
    without_calls: bool = False
    """True if it matched without any call, which proves nothing if no call of the agent was ever visible."""
    alignment: tuple[AlignedRow, ...] = ()
    """The alignment of expected and actual calls; empty if calls are not compared or are unknown."""
    alignment_more: int = 0
    """The number of omitted rows. Rows with a fault are retained first."""
    name: str = ""  # the trajectory's name in the scenario; "" if it has none
    score: TrajectoryScore | None = None
    """None if the calls could not be compared, or if the trajectory is not about calls."""
    parts: tuple[TrajectoryResult, ...] = ()
    """The results of the single trajectories, if this is the result of several; otherwise empty."""

    @property
    def sides(self) -> tuple[tuple[str, str], ...]:
        """The label and the text of each side of the comparison, in display order."""
        sides = (
            (f"expected ({self.mode})", self.expected),
            ("forbidden", self.forbidden),
            ("actual", self.actual),
        )
        return tuple((label, text) for label, text in sides if text is not None)

    @property
    def reason(self) -> str:
        """The summary followed by the sides in full."""
        return self.summary + self._sides_text

    @property
    def _sides_text(self) -> str:
        return "".join(f"\n{label}: {text}" for label, text in self.sides)

    def summary_in(self, reason: str) -> str:
        """Return the part of a `reason` that precedes the sides."""
        return reason.removesuffix(self._sides_text)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one deterministic `expect` check of a reply."""

    check: str
    passed: bool
    summary: str  # the expectation about the reply
    reply: str | None = None  # the reply as shown; None if the summary contains everything that matters
    error: str | None = None  # the reason why the reply could not be checked; then `passed` is False
    turn_index: int | None = None
    """The turn that decides a check of the whole conversation; None if no single turn does."""

    @classmethod
    def undecided(cls, check: str, error: str, summary: str = "") -> CheckResult:
        text = f"could not be decided: {error}" + (f"; {summary}" if summary else "")
        return cls(check=check, passed=False, summary=text, error=error)

    @property
    def reason(self) -> str:
        """The expectation followed by the reply."""
        return self.summary + self._reply_text

    @property
    def _reply_text(self) -> str:
        return "" if self.reply is None else f"; the reply was {self.reply}"

    def summary_in(self, reason: str) -> str:
        """Return the part of a `reason` that precedes the reply."""
        return reason.removesuffix(self._reply_text)


@dataclass(frozen=True, slots=True)
class ReferenceCall:
    """A call that an evaluation set expects; `args` is None where the set gives no arguments."""

    name: str
    args: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Reference:
    """The expectations of an evaluation set for one turn. None means that the set has no such expectation."""

    text: str | None
    tool_calls: tuple[ReferenceCall, ...] | None
    invocation: Mapping[str, Any]  # the invocation in ADK's JSON form, camelCase


@dataclass(frozen=True, slots=True)
class CaseId:
    """The evaluation set and the case that a scenario comes from."""

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
    """Time from the first judge call for this turn alone to the last answer; None without such a call."""


@dataclass(frozen=True, slots=True)
class LabelledFailure:
    """A label other than `no failure`, with the id that the grouping uses."""

    id: str
    conversation_id: str
    turn_index: int
    metric: str
    label: str
    reason: str
    severity: Severity | None = None  # the judge's severity; None if no judge was called


class CriterionOutcome(StrEnum):
    """The judge's answer to a criterion. The worst comes first."""

    VIOLATED = "violated"
    CANNOT_TELL = "cannot tell"
    MET = "met"


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionResult:
    """One of the scenario's criteria, judged over the whole conversation."""

    text: str
    required: bool
    result: CriterionOutcome
    turn_index: int | None  # the turn that decides; None if no single turn does
    reason: str
    samples: tuple[CriterionOutcome, ...] = ()  # every answer, if the judge was called more than once

    @property
    def not_asked(self) -> bool:
        """True if no judge was called because the conversation had already failed."""
        return self._is_untold(DECIDED)

    @property
    def without_model(self) -> bool:
        """True if no judge is configured."""
        return self._is_untold(NO_MODEL)

    def _is_untold(self, why: str) -> bool:
        # A judge that found evidence may have written the same words.
        return self.result is CriterionOutcome.CANNOT_TELL and self.reason == why


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionTotals:
    """The outcomes of one criterion over a scenario's conversations."""

    text: str
    required: bool
    met: int = 0
    violated: int = 0
    undecided: int = 0
    example: tuple[str, CriterionResult] | None = None
    """The first conversation, by id, with the worst outcome; None if all met the criterion."""

    @property
    def judged(self) -> int:
        """The number of conversations in which the criterion was judged or should have been."""
        return self.met + self.violated + self.undecided

    @property
    def worst(self) -> CriterionOutcome:
        return self.example[1].result if self.example else CriterionOutcome.MET


@dataclass(frozen=True, slots=True)
class ConversationResult:
    """A conversation with all of its evaluations."""

    conversation: Conversation
    turns: tuple[TurnEvaluation, ...] = ()
    metrics: Mapping[str, MetricResult] = field(default_factory=dict)
    """The metrics of the conversation as a whole, including `goal_completion`."""
    trajectory: TrajectoryResult | None = None
    failures: tuple[LabelledFailure, ...] = ()
    time: TimeSpent = field(default_factory=TimeSpent)
    criteria: tuple[CriterionResult, ...] = ()
    """In the scenario's order; empty if the conversation was cut short."""
    invalid: str | None = None
    """How the simulated user broke its role (`user.check`), which makes the conversation invalid."""
    checks: tuple[CheckResult, ...] = ()
    """Checks of the whole conversation: `says`, `never_says`, `final_state`, `check`."""
    severe_failures: tuple[str, ...] = ()
    """The ids of failures that belong to a group at or above `fail_on_error_severity`."""
    severity_unknown: bool = False
    """True if it has failures that could not be grouped, so that a severe one cannot be ruled out."""
    slim: bool = field(default=False, compare=False)
    """True if only what decides and counts is left (`truncation.without_unneeded`). Never stored."""
    reasons: tuple[Any, ...] | None = field(default=None, compare=False)
    """The reasons (`Reason`) of a slim conversation that did not pass, because their texts are not left."""

    @property
    def metric_results(self) -> Iterator[tuple[str, MetricResult]]:
        """Yield metric and result for each turn and for the whole; nothing for an invalid conversation."""
        if self.invalid is None:
            for turn in self.turns:
                if turn.metrics:  # this is read often, and scripted turns have none
                    yield from turn.metrics.items()
            yield from self.metrics.items()


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorExample:
    """A turn in which an error occurred. Each text is shortened to one row and contains no secrets."""

    conversation_id: str
    turn_index: int
    user_message: str
    agent_message: str
    tool_calls: tuple[str, ...] = ()  # each as `name(key=value) → result`


@dataclass(frozen=True, slots=True)
class UniqueError:
    """Failures with one root cause. `occurrences` are failure ids, each in exactly one group."""

    label: str
    severity: Severity
    occurrences: tuple[str, ...]
    explanation: str
    examples: tuple[ErrorExample, ...] = ()  # at most three turns in which it occurred
    fails: bool = False  # True if its severity is at or above `fail_on_error_severity`

    @property
    def description(self) -> str:
        return self.explanation

    @property
    def count(self) -> int:
        """The number of failures in the group."""
        return len(self.occurrences)


@dataclass(frozen=True, slots=True)
class Deduplication:
    """The groups of a scenario's failures; `error` has the reason why the model could not group them."""

    groups: tuple[UniqueError, ...] = ()
    error: str | None = None
    graded: bool = True  # False if no judge was available to grade the severity of the failures
