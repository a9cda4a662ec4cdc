"""Grade conversations with custom evaluators: call the code, validate its result, and explain failures."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from pydantic import TypeAdapter

from agentest.adk.formats.eval_set import Invocation
from agentest.adk.formats.metric_info import Interval
from agentest.adk.metrics.custom_metrics import CustomMetricCode, evaluator_for_conversation
from agentest.adk.metrics.evaluator_base import (
    EvalMetric,
    EvalStatus,
    EvaluationResult,
    Evaluator,
    PerInvocationResult,
)
from agentest.adk.metrics.grader import CriterionGrader
from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import Conversation
from agentest.judging.grader import GraderResult
from agentest.models.port import CallKey, Model
from agentest.store.adk_results import turn_invocation
from agentest.support.calling import ends_the_run, message_of_error, result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.json_text import copied, safe_repr
from agentest.support.spelling import did_you_mean, snake_keys

_INVOCATION = TypeAdapter(Invocation)
_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class CustomGrader(CriterionGrader):
    """Grade by custom code."""

    own: CustomMetricCode

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        """Score each invocation. If the code raises, the conversation is Unscored."""
        del model, key  # custom code calls its own models
        actual, limit = actual_invocations(conversation), TimeLimit(_TIMEOUT_S)
        try:
            returned = await result_of(self._evaluate, actual, limit=limit)
            return parse_result(returned, ResultConstraints(len(actual), self._threshold, self.own.interval))
        except BaseException as error:
            if ends_the_run(error):
                raise
            return GraderResult(whole=Unscored(self._failure_text(error, limit)))

    @property
    def _threshold(self) -> float:
        """Return the threshold that the code uses for its statuses."""
        code = self.own.code
        return code.threshold if isinstance(code, Evaluator) else self.criterion.threshold

    def _evaluate(self, actual: list[Invocation]) -> Any:
        turns = self.case.conversation
        # All runs share the expected invocations.
        expected = None if turns is None else deepcopy(list(turns[: len(actual)]))
        scenario = self.case.conversation_scenario
        threshold, written = self.criterion.threshold, self.criterion.written
        if isinstance(self.own.code, Evaluator | type):
            evaluator = evaluator_for_conversation(self.own.code, threshold, written)
            return _call(evaluator.evaluate_invocations, actual, expected, scenario)
        metric = EvalMetric(self.criterion.metric, None, SimpleNamespace(**deepcopy(dict(written))))
        return _call(self.own.code, metric, actual, expected, scenario)

    def _failure_text(self, error: BaseException, limit: TimeLimit) -> str:
        """Describe the failure, with the evaluator and the case."""
        who = f"{self.own.name}, case {self.case.eval_id!r}"
        if isinstance(error, NoResult):
            return f"{error} ({who})"
        if isinstance(error, TimeoutError) and limit.expired:
            return f"the evaluator gave no result within {_TIMEOUT_S:g} s ({who})"
        where = _line_in(self.own.code, error)
        return f"the evaluator raised {type(error).__name__}: {message_of_error(error)} ({who}{where})"


def actual_invocations(conversation: Conversation) -> list[Invocation]:
    """Return the turns of a conversation as invocations."""
    return [
        _INVOCATION.validate_python(
            copied(turn_invocation(turn, f"{conversation.conversation_id}-{turn.turn_index}"))
        )
        for turn in conversation.turns
    ]


def _call(function: Callable[..., Any], *args: object) -> Any:
    """Call with as many arguments as the function takes, because ADK added some over time."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*args)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return function(*args[: len(positional)])


def _line_in(code: Any, error: BaseException) -> str:
    """Return the line in the evaluator's file that raised the error; "" if unknown."""
    try:
        file = inspect.getsourcefile(
            code if inspect.isroutine(code) or isinstance(code, type) else type(code)
        )
    except TypeError:
        return ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f", {Path(file).name} line {lines[-1]}" if file and lines else ""


_T = TypeVar("_T", EvaluationResult, PerInvocationResult)


class NoResult(ValueError):
    """The evaluator returned an invalid result."""


@dataclass(frozen=True, slots=True)
class ResultConstraints:
    """The constraints of a result.

    Attributes:
        invocations: number of invocations that the evaluator received.
        threshold: the threshold that it used for its statuses.
        interval: the range of its scores; None for any number.
    """

    invocations: int
    threshold: float
    interval: Interval | None = None


def parse_result(returned: Any, terms: ResultConstraints) -> GraderResult:
    """Convert an EvaluationResult, a mapping with its keys, or ADK's own result to scores.

    Raises NoResult for any other value, and for a result that contradicts the threshold.
    """
    result = _as_result(EvaluationResult, returned)
    items = [_as_result(PerInvocationResult, item) for item in _list(result.per_invocation_results)]
    if items and len(items) != terms.invocations:
        raise NoResult(f"the evaluator gave {len(items)} results for {terms.invocations} invocations")
    overall = _number(result.overall_score)
    scores = {index: _number(item.score) for index, item in enumerate(items)}
    known = {index: score for index, score in scores.items() if score is not None}
    if known:
        _check_direction([(score, items[n].eval_status) for n, score in known.items()], terms.threshold)
        aside = _note_about_overall(overall, list(known.values()))
        return GraderResult({n: _score(score, items[n].reason or aside, terms) for n, score in known.items()})
    if overall is None:
        return GraderResult(whole=Skipped(_nothing(result, items)))
    _check_direction([(overall, result.overall_eval_status)], terms.threshold)
    return GraderResult(whole=_score(overall, result.reason, terms))


def _as_result(shape: type[_T], returned: Any) -> _T:
    """Convert a result, a mapping in either spelling, or an object with the same attributes."""
    names = [field.name for field in fields(shape)]
    if isinstance(returned, shape):
        return returned
    if isinstance(returned, Mapping):
        return shape(**_keys(returned, shape, names))
    if not hasattr(returned, "overall_score" if shape is EvaluationResult else "score"):
        raise NoResult(f"expected {_article(shape)}, but the evaluator gave {safe_repr(returned)}")
    values: dict[str, Any] = {name: getattr(returned, name, None) for name in names}
    return shape(**values)


def _keys(returned: Mapping[Any, Any], shape: type[_T], names: Sequence[str]) -> dict[str, Any]:
    try:
        values = snake_keys(returned, names)
    except ValueError as error:
        raise NoResult(f"{shape.__name__}: {error}") from None
    for key in values:
        if key not in names:
            raise NoResult(f"{shape.__name__}: unknown key {key!r}; {did_you_mean(str(key), names)}")
    if not values.keys() & {"overall_score", "per_invocation_results", "score", "eval_status"}:
        raise NoResult(f"expected {_article(shape)}, but the evaluator gave {safe_repr(returned)}")
    return {"actual_invocation": None, **values} if shape is PerInvocationResult else values


def _article(shape: type[Any]) -> str:
    return f"an {shape.__name__}" if shape is EvaluationResult else f"a {shape.__name__}"


def _list(items: Any) -> list[Any]:
    if items is None:
        return []
    if isinstance(items, Sequence) and not isinstance(items, str | bytes):
        return list(items)
    raise NoResult(f"expected a list as per_invocation_results, but the evaluator gave {safe_repr(items)}")


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, Real) or not math.isfinite(value):
        raise NoResult(f"expected a finite number as score, but the evaluator gave {safe_repr(value)}")
    return float(value)


def _score(value: float, reason: Any, terms: ResultConstraints) -> MetricResult:
    if terms.interval and value not in terms.interval:
        return Unscored(f"the evaluator gave the score {value:g}, but its range is {terms.interval}")
    return Score(value, str(reason or ""))


def _note_about_overall(overall: float | None, scores: Sequence[float]) -> str:
    """Describe an overall score that is not used: several runs are pooled by turns."""
    mean = math.fsum(scores) / len(scores)
    if overall is None or math.isclose(overall, mean, abs_tol=1e-9):
        return ""
    return f"the evaluator's overall score is {overall:g}; the mean of the invocations counts, {mean:g}"


def _nothing(result: EvaluationResult, items: Sequence[PerInvocationResult]) -> str:
    reasons = [str(told) for told in (result.reason, *(item.reason for item in items)) if told]
    return "the evaluator gave no score" + (f": {reasons[0]}" if reasons else "")


def _check_direction(statuses: Sequence[tuple[float, Any]], threshold: float) -> None:
    """Raise NoResult if every status contradicts its score, as for a metric where less is better.

    google-adk reverses the comparison for such a metric. In Agentest, a score always passes from its
    threshold upward, so the metric would pass where it should fail.
    """
    told = [(score, _status_name(status)) for score, status in statuses]
    known = [
        (score, name == "PASSED")
        for score, name in told
        if score != threshold and name in ("PASSED", "FAILED")
    ]
    if known and all((score > threshold) != passed for score, passed in known):
        score, passed = known[0]
        raise NoResult(
            f"the evaluator says {'PASSED' if passed else 'FAILED'} for the score {score:g} with the "
            f"threshold {threshold:g}, but a score passes from its threshold on; give scores of which more "
            "is better, and statuses by the criterion's threshold or none"
        )


def _status_name(status: Any) -> str | None:
    """Return a status's name from ours, google-adk's, a name, or a number. Raises NoResult."""
    if status is None or hasattr(status, "name"):
        return getattr(status, "name", None)
    names = {str(member.value): member.name for member in EvalStatus}
    name = names.get(str(status), str(status).upper())
    if name not in EvalStatus.__members__:
        raise NoResult(
            f"expected {', '.join(EvalStatus.__members__)} as eval_status, "
            f"but the evaluator gave {safe_repr(status)}"
        )
    return name
