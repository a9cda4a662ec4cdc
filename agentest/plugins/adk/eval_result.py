"""Results in the form of ADK's classes: scores, statuses, and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from agentest.domain.results import (
    MetricResult,
    MetricVerdict,
    Reason,
    ScenarioResult,
    Score,
    Skipped,
    Status,
    Unscored,
)
from agentest.domain.verdict import turn_verdict
from agentest.plugins.adk.formats.eval_set import Invocation
from agentest.plugins.adk.metrics.evaluator_base import EvalStatus
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import turn_name

_STATUS = {Status.PASSED: EvalStatus.PASSED, Status.FAILED: EvalStatus.FAILED}


@dataclass(frozen=True, slots=True)
class EvalMetricResult:
    """A metric's score and status. `score` is None if the metric could not be scored."""

    metric_name: str
    threshold: float | None
    """None if the score does not affect the status."""
    score: float | None
    eval_status: EvalStatus
    reason: str = ""
    """Why the score is what it is, or why there is none."""


@dataclass(frozen=True, slots=True)
class EvalMetricResultPerInvocation:
    """The scores of one invocation, with the actual and the expected invocation."""

    actual_invocation: Invocation
    expected_invocation: Invocation | None
    eval_metric_results: Sequence[EvalMetricResult] = ()


@dataclass(frozen=True, slots=True)
class EvalCaseResult:
    """The result of one case."""

    eval_set_id: str
    eval_id: str
    final_eval_status: EvalStatus
    overall_eval_metric_results: Sequence[EvalMetricResult]
    eval_metric_result_per_invocation: Sequence[EvalMetricResultPerInvocation]
    session_id: str
    scenario: ScenarioResult = field(repr=False)
    """The case as an Agentest result, with the reasons of its verdict."""

    @property
    def reason(self) -> str:
        """Return why the case did not pass; "" if it passed."""
        return sentences(self.scenario.verdict.reasons)


@dataclass(frozen=True, slots=True)
class EvalSetResult:
    """The results of the cases of one set."""

    eval_set_result_id: str
    eval_set_id: str
    eval_case_results: Sequence[EvalCaseResult] = ()
    eval_set_result_name: str | None = None
    creation_timestamp: float = 0.0
    """Seconds since 1970."""


EvalResult = EvalSetResult
"""ADK-TS's name of the class."""


def eval_status(status: Status) -> EvalStatus:
    """Return ADK's status. An errored case was not evaluated."""
    return _STATUS.get(status, EvalStatus.NOT_EVALUATED)


def sentences(reasons: Iterable[Reason]) -> str:
    """Join the reasons of a verdict into one line."""
    return "; ".join(reason.message for reason in reasons)


def turn_result(
    name: str, threshold: float | None, metrics: Iterable[Mapping[str, MetricResult]]
) -> EvalMetricResult:
    """Return a metric's result for one invocation.

    Args:
        threshold: None for an informational metric.
        metrics: where to look for the result, in order: the turn, then the whole conversation.
    """
    result = next((results[name] for results in metrics if name in results), None)
    if threshold is None:
        score = result.number if isinstance(result, Score) else None
        reason = _why(result) if result else "this invocation has no score"
        return EvalMetricResult(name, None, score, EvalStatus.INFORMATIONAL, reason)
    reason = _why(result) if result else "the case expects nothing here to compare with"
    return _metric_result(turn_verdict(name, threshold, result), reason)


def overall_results(scenario: ScenarioResult) -> list[EvalMetricResult]:
    """Return the results of all metrics for the whole case."""
    return [
        *(_metric_result(each, _overall_reason(each.name, scenario)) for each in scenario.metric_verdicts),
        *(
            EvalMetricResult(
                name,
                None,
                scenario.averages.get(name),
                EvalStatus.INFORMATIONAL,
                _overall_reason(name, scenario),
            )
            for name in scenario.information
        ),
    ]


def _overall_reason(name: str, scenario: ScenarioResult) -> str:
    of_turns = [
        (turn.turn_index, turn.metrics[name])
        for conversation in scenario.conversations
        for turn in conversation.turns
        if name in turn.metrics
    ]
    unknown = [(at, result) for at, result in of_turns if isinstance(result, Unscored)]
    scored = [
        (at, result) for at, result in of_turns if isinstance(result, Score) and result.number is not None
    ]
    worst = unknown[:1] or sorted(scored, key=lambda pair: pair[1].number or 0.0)[:1]
    for at, result in worst:
        return f"{turn_name(at)}: {_why(result)}" if len(of_turns) > 1 and _why(result) else _why(result)
    of_whole = (conversation.metrics.get(name) for conversation in scenario.conversations)
    reason = next((_why(result) for result in of_whole if result is not None), "")
    return reason or sentences(scenario.verdict.reasons)


def _metric_result(verdict: MetricVerdict, reason: str) -> EvalMetricResult:
    return EvalMetricResult(
        metric_name=verdict.name,
        threshold=verdict.threshold,
        score=verdict.score,
        eval_status=eval_status(verdict.status),
        reason=reason,
    )


def _why(result: MetricResult) -> str:
    if isinstance(result, Score):
        return result.reason
    return result.why if isinstance(result, Skipped) else result.error
