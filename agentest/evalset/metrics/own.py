"""Evaluators of the user's own: a class or a function that scores a whole conversation's invocations."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import IntEnum
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from pydantic import TypeAdapter

from agentest.errors import ConfigError
from agentest.evalset.formats.model import Invocation
from agentest.evalset.metrics.base import CriterionGrader
from agentest.evaluate.grading import Graded
from agentest.llm.port import CallKey, Model
from agentest.results import MetricResult, Score, Skipped
from agentest.store.invocations import turn_invocation
from agentest.support.calling import result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.importing import import_object
from agentest.support.json_text import copied, safe_repr
from agentest.transcript import Conversation

_INVOCATION = TypeAdapter(Invocation)
_TIMEOUT_S = 300.0


class EvalStatus(IntEnum):
    """What became of a metric, a case or an invocation; numbered as in google-adk."""

    PASSED = 1
    FAILED = 2
    NOT_EVALUATED = 3


@dataclass(frozen=True, slots=True)
class PerInvocationResult:
    """An evaluator's score of one invocation; None where it has none."""

    actual_invocation: Invocation
    expected_invocation: Invocation | None = None
    score: float | None = None
    eval_status: EvalStatus = EvalStatus.NOT_EVALUATED


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The result of an evaluator. Without results by invocation, the overall score counts as the case's."""

    overall_score: float | None = None
    overall_eval_status: EvalStatus = EvalStatus.NOT_EVALUATED
    per_invocation_results: Sequence[PerInvocationResult] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """A range of scores."""

    min_value: float = 0.0
    max_value: float = 1.0
    open_at_min: bool = False
    open_at_max: bool = False


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """What an evaluator measures."""

    metric_name: str
    description: str = ""
    interval: Interval = Interval()


@dataclass(frozen=True, slots=True)
class EvalMetric:
    """The metric that a function of the user's own receives.

    The threshold is the criterion's: google-adk gives such functions no other.
    """

    metric_name: str
    threshold: float | None = None
    criterion: SimpleNamespace = field(default_factory=SimpleNamespace)
    """The keys of the criterion as attributes: `criterion.threshold`."""


class Evaluator(ABC):
    """Base of custom evaluators. `threshold` is the criterion's, or the class's own default."""

    metric_name: ClassVar[str] = ""
    threshold: float = 1.0

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None:
            self.threshold = threshold

    @abstractmethod
    def evaluate_invocations(
        self, actual: Sequence[Invocation], expected: Sequence[Invocation] | None
    ) -> EvaluationResult | Awaitable[EvaluationResult]:
        """The scores; plain or async. `expected` is None for a simulated conversation."""

    @classmethod
    def get_metric_info(cls) -> MetricInfo:
        """What the evaluator measures."""
        return MetricInfo(cls.metric_name or cls.__name__, inspect.getdoc(cls) or "")


Code = type[Evaluator] | Evaluator | Callable[..., Any]
"""What scores a metric: an Evaluator, its class, or a function `(metric, actual, expected, scenario)`."""


@dataclass(frozen=True, slots=True)
class CustomGrader(CriterionGrader):
    """Grades by code of the user's own."""

    code: Code

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> Graded:
        """The scores by invocation. Whatever the code raises is the caller's to keep."""
        del model, key  # such code has ways of its own
        actual, limit = actual_invocations(conversation), TimeLimit(_TIMEOUT_S)
        try:
            evaluation = await result_of(self._evaluate, actual, limit=limit)
        except TimeoutError:
            if limit.expired:
                raise TimeoutError(f"the evaluator gave no result within {_TIMEOUT_S:g} s") from None
            raise
        return _graded(evaluation, len(actual), self.criterion.threshold)

    def _evaluate(self, actual: list[Invocation]) -> Any:
        turns = self.case.conversation
        expected = None if turns is None else deepcopy(list(turns[: len(actual)]))  # it belongs to all runs
        scenario = self.case.conversation_scenario
        if isinstance(self.code, Evaluator | type):
            evaluator = self.code(self.criterion.threshold) if isinstance(self.code, type) else self.code
            return _call(evaluator.evaluate_invocations, actual, expected, scenario)
        criterion = SimpleNamespace(**deepcopy(dict(self.criterion.written)))
        metric = EvalMetric(self.criterion.metric, None, criterion)
        return _call(self.code, metric, actual, expected, scenario)


def actual_invocations(conversation: Conversation) -> list[Invocation]:
    """The conversation's turns as invocations."""
    return [
        _INVOCATION.validate_python(
            copied(turn_invocation(turn, f"{conversation.conversation_id}-{turn.turn_index}"))
        )
        for turn in conversation.turns
    ]


def _call(function: Callable[..., Any], *args: object) -> Any:
    """Call with as many arguments as the function takes: later ones were added to ADK over time."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*args)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return function(*args[: len(positional)])


def _graded(evaluation: Any, invocations: int, threshold: float) -> Graded:
    """Reads our EvaluationResult, or ADK's own, which has the same attributes.

    Raises TypeError or ValueError for what is no result, or one that contradicts the threshold.
    """
    if not hasattr(evaluation, "overall_score"):
        raise TypeError(f"expected an EvaluationResult, but the evaluator gave {safe_repr(evaluation)}")
    results = list(getattr(evaluation, "per_invocation_results", None) or ())
    if results and len(results) != invocations:
        raise ValueError(f"the evaluator gave {len(results)} results for {invocations} invocations")
    turns: dict[int, MetricResult] = {
        index: _score(result.score) for index, result in enumerate(results) if result.score is not None
    }
    if turns:
        statuses = [(r.score, getattr(r, "eval_status", None)) for r in results if r.score is not None]
        _check_direction(statuses, threshold)
        return Graded(turns)
    if evaluation.overall_score is None:
        return Graded(whole=Skipped("the evaluator gave no score"))
    whole = _score(evaluation.overall_score)
    _check_direction(
        [(evaluation.overall_score, getattr(evaluation, "overall_eval_status", None))], threshold
    )
    return Graded(whole=whole)


def _check_direction(statuses: Sequence[tuple[float, Any]], threshold: float) -> None:
    """Raises ValueError when every status says the opposite of its score: less is better.

    google-adk then turns the comparison round. Here a score passes from its threshold on, always, so that
    such a metric would pass where it should fail.
    """
    names = [(score, getattr(status, "name", None)) for score, status in statuses if score != threshold]
    known = [(score, name == "PASSED") for score, name in names if name in ("PASSED", "FAILED")]
    if known and all((score > threshold) != passed for score, passed in known):
        score, passed = known[0]
        raise ValueError(
            f"the evaluator says {'PASSED' if passed else 'FAILED'} for the score {score:g} with the "
            f"threshold {threshold:g}, but a score passes from its threshold on; give scores of which more "
            "is better, and statuses by the criterion's threshold or none"
        )


def _score(value: Any) -> Score:
    if not isinstance(value, Real) or not math.isfinite(value):
        raise TypeError(f"expected a finite number as score, but the evaluator gave {safe_repr(value)}")
    return Score(float(value), "")


def load_code(name: str, path: str, root: Path) -> Code:
    """The evaluator or function at an import path, `pkg.mod.name` or `pkg.mod:name`. Raises ConfigError."""
    module, _, attribute = path.rpartition("." if ":" not in path else ":")
    try:
        code = import_object(f"{module}:{attribute}", root)
    except ValueError as error:
        raise ConfigError(f"custom_metrics.{name}: {error}") from None
    return check_code(name, code)


def check_code(name: str, code: Any) -> Code:
    """The class or function, if it can grade. Raises ConfigError."""
    if isinstance(code, type) and not issubclass(code, Evaluator):
        raise ConfigError(
            f"custom_metrics.{name}: {code.__name__} is no Evaluator; subclass agentest.evalset.Evaluator"
        )
    if not callable(code) and not isinstance(code, Evaluator):
        raise ConfigError(f"custom_metrics.{name}: {code!r} is neither a function nor an Evaluator")
    checked: Code = code
    return checked
