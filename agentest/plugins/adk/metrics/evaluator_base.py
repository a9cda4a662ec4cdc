"""Evaluators and results as google-adk has them: the base class of evaluators, and scores with statuses."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, Self

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
from agentest.domain.verdict import metric_verdicts, turn_verdict
from agentest.plugins.adk.formats.eval_set import Invocation
from agentest.plugins.adk.formats.metric_info import MetricInfo
from agentest.support.errors import errors_as
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import turn_name, valid_keys


class EvalStatus(IntEnum):
    """The status of a metric, a case, or an invocation, numbered as in google-adk."""

    PASSED = 1
    FAILED = 2
    NOT_EVALUATED = 3
    INFORMATIONAL = 4  # the score, if any, does not affect the verdict


@dataclass(frozen=True, slots=True)
class PerInvocationResult:
    """An evaluator's score of one invocation; None if there is none."""

    actual_invocation: Invocation
    expected_invocation: Invocation | None = None
    score: float | None = None
    eval_status: EvalStatus = EvalStatus.NOT_EVALUATED
    reason: str = ""
    """Why the score is what it is, or why there is none. It is shown with the score."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of an evaluator. Without results per invocation, the overall score is the case's score."""

    overall_score: float | None = None
    overall_eval_status: EvalStatus = EvalStatus.NOT_EVALUATED
    per_invocation_results: Sequence[PerInvocationResult] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EvalMetric:
    """The metric that custom code scores: `self.metric`, or the first argument of a function.

    A function gets only the criterion's threshold, as in google-adk.
    """

    metric_name: str
    threshold: float | None = None
    criterion: SimpleNamespace = field(default_factory=SimpleNamespace)
    """The criterion's keys as attributes: `criterion.threshold`."""


@dataclass(frozen=True, slots=True)
class HeldMetric(EvalMetric):
    """The metric of an evaluator, which always has a threshold."""

    threshold: float = 1.0


class Evaluator(ABC):
    """Base class of custom evaluators.

        class Polite(Evaluator):
            def __init__(self, threshold: float = 0.8) -> None:
                super().__init__(metric_name="polite", threshold=threshold)

    In a run, `threshold` is the criterion's, else the `default_threshold` of `get_metric_info()`, else the
    default of the class.
    """

    metric_name: str = ""
    threshold: float = 1.0
    _criterion: SimpleNamespace | None = None
    _made_with: bool = False
    """True if the instance was created with arguments, so that its threshold is deliberate."""

    def __new__(cls, *args: Any, **named: Any) -> Self:
        self = super().__new__(cls)
        object.__setattr__(self, "_made_with", bool(args or named))  # also works for a frozen dataclass
        return self

    def __init__(
        self,
        threshold: float | Mapping[str, Any] | EvalMetric | None = None,
        metric_name: str | None = None,
        **spelled: Any,
    ) -> None:
        """Set name and threshold from keywords or one mapping; keys may be in either spelling.

        Raises TypeError for an unknown key, ValueError for a threshold that is not a number.
        """
        first = first_argument_keys(threshold)
        named = {} if metric_name is None else {"metric_name": metric_name}
        with errors_as(TypeError, f"{type(self).__name__}: "):
            options = valid_keys({**first, **named, **spelled}, ("metric_name", "threshold"))
        if options.get("metric_name"):
            self.metric_name = str(options["metric_name"])
        if options.get("threshold") is not None:
            self.threshold = _number(options["threshold"], type(self).__name__)

    @property
    def metric(self) -> HeldMetric:
        """Name, threshold, and criterion."""
        criterion = self._criterion or SimpleNamespace(threshold=self.threshold)
        return HeldMetric(self.metric_name or type(self).__name__, self.threshold, criterion)

    @abstractmethod
    def evaluate_invocations(
        self, actual_invocations: list[Invocation], expected_invocations: Any, /
    ) -> EvaluationResult | Mapping[str, Any] | Awaitable[EvaluationResult | Mapping[str, Any]]:
        """Return the scores. May be async. A mapping has the keys of an EvaluationResult.

        `expected_invocations` is as long as `actual_invocations`, or None for a simulated conversation.
        """

    @classmethod
    def get_metric_info(cls) -> MetricInfo | Mapping[str, Any]:
        """Return the metric's metadata. A mapping has the keys of a MetricInfo."""
        return MetricInfo(
            metric_name=cls.metric_name or cls.__name__,
            description=inspect.getdoc(cls) or "",
            default_threshold=cls.threshold,
        )


def with_criterion(evaluator: Evaluator, threshold: float, written: Mapping[str, Any]) -> Evaluator:
    """Set the criterion on an evaluator that was created for one conversation."""
    evaluator.threshold = threshold
    evaluator._criterion = SimpleNamespace(**deepcopy(dict(written)))
    return evaluator


def chosen_threshold(evaluator: Evaluator) -> float | None:
    """Return the threshold that the user created the evaluator with; None for the default of its class."""
    return evaluator.threshold if evaluator._made_with else None


Code = type[Evaluator] | Evaluator | Callable[..., Any]
"""Code of a metric: an Evaluator, its class, or a function `(metric, actual, expected, scenario)`."""


def first_argument_keys(argument: float | Mapping[str, Any] | EvalMetric | None) -> dict[str, Any]:
    """Return the first argument of an evaluator as keys: a threshold, or a whole metric."""
    if isinstance(argument, EvalMetric):
        return {"metric_name": argument.metric_name, "threshold": argument.threshold}
    return dict(argument) if isinstance(argument, Mapping) else {"threshold": argument}


def _number(value: Any, evaluator: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{evaluator}: the threshold must be a number, found {safe_repr(value)}")
    return float(value)


_STATUS = {Status.PASSED: EvalStatus.PASSED, Status.FAILED: EvalStatus.FAILED}


@dataclass(frozen=True, slots=True)
class EvalMetricResult:
    """A metric's score and status. `score` is None if the metric could not be scored."""

    metric_name: str
    threshold: float | None  # None if the score does not affect the status
    score: float | None
    eval_status: EvalStatus
    reason: str = ""  # why the score is what it is, or why there is none


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
    creation_timestamp: float = 0.0  # seconds since 1970


EvalResult = EvalSetResult  # ADK-TS's name of the class


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
    verdicts = metric_verdicts(scenario.averages, scenario.thresholds, exact=scenario.case is not None)
    decided = [_metric_result(each, _overall_reason(each.name, scenario)) for each in verdicts]
    reasons = {name: _overall_reason(name, scenario) for name in scenario.information}
    return decided + [
        EvalMetricResult(name, None, scenario.averages.get(name), EvalStatus.INFORMATIONAL, reason)
        for name, reason in reasons.items()
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
    for at, result in unknown[:1] or sorted(scored, key=lambda pair: pair[1].number or 0.0)[:1]:
        return f"{turn_name(at)}: {_why(result)}" if len(of_turns) > 1 and _why(result) else _why(result)
    of_whole = (conversation.metrics.get(name) for conversation in scenario.conversations)
    reason = next((_why(result) for result in of_whole if result is not None), "")
    return reason or sentences(scenario.verdict.reasons)


def _metric_result(verdict: MetricVerdict, reason: str) -> EvalMetricResult:
    status = eval_status(verdict.status)
    return EvalMetricResult(verdict.name, verdict.threshold, verdict.score, status, reason)


def _why(result: MetricResult) -> str:
    if isinstance(result, Score):
        return result.reason
    return result.why if isinstance(result, Skipped) else result.error
