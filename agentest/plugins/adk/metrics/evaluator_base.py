"""Custom evaluators: their base class, and the classes of their results."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, Self

from agentest.plugins.adk.formats.eval_set import Invocation
from agentest.plugins.adk.formats.metric_info import MetricInfo
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import valid_keys


class EvalStatus(IntEnum):
    """The status of a metric, a case, or an invocation, numbered as in google-adk."""

    PASSED = 1
    FAILED = 2
    NOT_EVALUATED = 3
    INFORMATIONAL = 4
    """The score, if any, does not affect the verdict."""


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
        try:
            options = valid_keys({**first, **named, **spelled}, ("metric_name", "threshold"))
        except ValueError as error:
            raise TypeError(f"{type(self).__name__}: {error}") from None
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
