"""Prepare custom metrics before a run: import their code, read its metadata, and find its threshold."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from numbers import Real
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar

from agentest.domain.results import MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import Conversation
from agentest.judging.grader import GraderResult
from agentest.models.port import CallKey, Model
from agentest.plugins.adk.formats.criteria import Criteria, CustomMetric, MetricCriterion
from agentest.plugins.adk.formats.eval_set import INVOCATION, Invocation
from agentest.plugins.adk.formats.metric_info import Interval, MetricInfo, metric_info_of
from agentest.plugins.adk.metrics import evaluator_base as base
from agentest.plugins.adk.metrics.grader import CriterionGrader
from agentest.store.adk_results import turn_invocation
from agentest.support.calling import FunctionTimeout, ends_the_run, message_of_error, result_of
from agentest.support.deadlines import FUNCTION_S, TimeLimit
from agentest.support.errors import ConfigError, UsageError, errors_as
from agentest.support.importing import import_object, raised_at
from agentest.support.json_text import copied, safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import snake_case, valid_keys

_GRADE_METHOD = "evaluate_invocations"
_INFO_METHOD = "get_metric_info"


@dataclass(frozen=True, slots=True)
class CustomMetricCode:
    """The code of a custom metric, and its metadata.

    Attributes:
        name: name of the code.
        threshold: default threshold of a criterion; None if there is none.
        interval: the range of its scores; None for any number.
        experimental: True if it declares itself experimental.
    """

    code: base.Code
    name: str
    threshold: float | None = None
    interval: Interval | None = None
    experimental: bool = False


_DECIDES_NOTHING = 1.0
"""The threshold that code receives if nobody names one, because the score is informational."""


def prepare_custom_metrics(
    criteria: Criteria, root: Path, evaluators: Mapping[str, base.Code] = MappingProxyType({})
) -> tuple[Criteria, dict[str, CustomMetricCode]]:
    """Return the criteria with all thresholds, and the code of the custom metrics.

    Args:
        evaluators: metric → code to use instead of importing it.

    Raises UsageError, which names the metric, if its code cannot grade.
    """
    thresholds = {c.metric: c.threshold for c in criteria.criteria if c.has_threshold}
    source = str(criteria.source or "criteria")
    with errors_as(ConfigError, f"{source}: " if criteria.source else "", ConfigError):
        metrics = {
            n: _custom_metric_code(
                n, metric, evaluators.get(n) or _import_code(n, metric, root), thresholds.get(n)
            )
            for n, metric in criteria.custom.items()
        }
    completed = tuple(
        _with_threshold(criterion, metrics[criterion.metric], source)
        if criterion.metric in metrics
        else criterion
        for criterion in criteria.criteria
    )
    return replace(criteria, criteria=completed), metrics


def experimental_notes(metrics: Mapping[str, CustomMetricCode]) -> list[str]:
    """Return a note on each metric that declares itself experimental."""
    return [
        f"`{n}` is experimental, says {metric.name}" for n, metric in metrics.items() if metric.experimental
    ]


def metric_name(code: base.Code) -> str:
    """Return the name of the metric that the code declares. Raises ConfigError."""
    name = getattr(code, "metric_name", "")
    if name and isinstance(name, str):
        return name
    if isinstance(code, type) and issubclass(code, base.Evaluator):
        check_code(code.__name__, code)
        info = _metric_info(code.__name__, code) if _has_metric_info(code) else None
        return info.metric_name if info else _make_evaluator(code, 1.0).metric.metric_name
    if isinstance(code, base.Evaluator):
        info = _metric_info(type(code).__name__, code)
        return info.metric_name if info else type(code).__name__
    return str(getattr(code, "__name__", repr(code)))


def check_code(name: str, code: Any) -> base.Code:
    """Return the class or function if it can grade. Raises ConfigError."""
    where = f"custom_metrics.{name}"
    if isinstance(code, type):
        _check_class(where, code)
    elif not callable(code) and not isinstance(code, base.Evaluator):
        raise ConfigError(f"{where}: {code!r} is neither a function nor an Evaluator")
    built_in = vars(code if isinstance(code, type) else type(code)).get("built_in")
    if built_in:
        raise ConfigError(
            f"{where}: this evaluator is there to be used alone; in a run, name the metric `{built_in}`"
        )
    checked: base.Code = code
    return checked


def _check_class(where: str, code: type[Any]) -> None:
    if not issubclass(code, base.Evaluator):
        raise ConfigError(f"{where}: {code.__name__} is not an Evaluator; subclass agentest.adk.Evaluator")
    method = getattr(code, _GRADE_METHOD, None)
    if getattr(method, "__isabstractmethod__", False) or not callable(method):
        other = _in_camel_case(code, _GRADE_METHOD)
        raise ConfigError(
            f"{where}: {code.__name__} has no method `{_GRADE_METHOD}`; define "
            f"`def {_GRADE_METHOD}(self, actual_invocations, expected_invocations)`"
            + (f" (its `{other}` is the spelling of ADK-TS)" if other else "")
        )
    if not _has_metric_info(code) and (misspelled := _in_camel_case(code, _INFO_METHOD)):
        raise ConfigError(
            f"{where}: {code.__name__}.{misspelled} is the spelling of ADK-TS; call it `{_INFO_METHOD}`"
        )


def _in_camel_case(code: type[Any], method: str) -> str:
    return next((name for name in dir(code) if name != method and snake_case(name) == method), "")


def _import_code(name: str, metric: CustomMetric, root: Path) -> base.Code:
    module, _, attribute = metric.path.rpartition("." if ":" not in metric.path else ":")
    with errors_as(ConfigError, f"custom_metrics.{name}: "):
        code = import_object(f"{module}:{attribute}", root)
    return check_code(name, code)


def _custom_metric_code(
    name: str, metric: CustomMetric, code: base.Code, threshold: float | None
) -> CustomMetricCode:
    """Read the code's metadata. Raises ConfigError if it cannot be created, or if its metadata is invalid."""
    written = metric.info
    called = code.__name__ if isinstance(code, type) else getattr(code, "__name__", type(code).__name__)
    info = _metric_info(name, code)
    return CustomMetricCode(
        code=code,
        name=called,
        threshold=_default_threshold(name, code, info, written.get("default_threshold"), threshold),
        interval=metric.interval or (info.interval if info else None),
        experimental=bool(written.get("experimental", info and info.experimental)),
    )


def _default_threshold(
    name: str, code: base.Code, info: MetricInfo | None, written: float | None, threshold: float | None
) -> float | None:
    """Return the default threshold: the file's, a deliberate one, the metric's, or the code's."""
    metric_default = info.default_threshold if info else None
    first = written if written is not None else metric_default
    if isinstance(code, type):
        evaluator = _make_evaluator(
            code, threshold if threshold is not None else first, f"custom_metrics.{name}"
        )
        return evaluator.threshold if first is None else first
    if not isinstance(code, base.Evaluator):
        return written
    candidates = (written, base.chosen_threshold(code), metric_default, code.threshold)
    return next(value for value in candidates if value is not None)


def _make_evaluator(
    code: type[base.Evaluator], threshold: float | None, where: str = "custom_metrics"
) -> base.Evaluator:
    """Create an evaluator, with its own threshold if none is given. Raises ConfigError."""
    arguments = _arguments(code, threshold, where)
    try:
        return code(**arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        problem = f"{type(error).__name__}: {message_of_error(error)}"
        raise ConfigError(f"{where}: {code.__name__}() raised {problem}") from None


def _arguments(code: type[base.Evaluator], threshold: float | None, where: str) -> dict[str, Any]:
    parameters = list(inspect.signature(code.__init__).parameters.values())[1:]
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    arguments: dict[str, Any] = {}
    for name in (p.name for p in parameters if threshold is not None or p.name in required):
        if name == "threshold" and threshold is not None:
            arguments[name] = threshold
        elif name in ("eval_metric", "metric"):
            arguments[name] = base.EvalMetric(code.metric_name or code.__name__, threshold)
    missing = [name for name in required if name not in arguments]
    if missing == ["threshold"]:
        raise ConfigError(f"{where}: {code.__name__} has no threshold of its own; give one in the criterion")
    if missing:
        raise ConfigError(
            f"{where}: {code.__name__}() needs {', '.join(missing)}, which Agentest does not know; "
            "give each a default, or hand over an instance with `evaluators=`"
        )
    return arguments


def _has_metric_info(code: type[base.Evaluator]) -> bool:
    return inspect.getattr_static(code, "get_metric_info") is not vars(base.Evaluator)["get_metric_info"]


def _metric_info(name: str, code: base.Code) -> MetricInfo | None:
    cls = code if isinstance(code, type) else type(code)
    if not issubclass(cls, base.Evaluator) or not _has_metric_info(cls):
        return None
    plain = inspect.isfunction(inspect.getattr_static(cls, "get_metric_info"))
    where = f"custom_metrics.{name}: {cls.__name__}.get_metric_info()"
    evaluator: Any = (
        _make_evaluator(cls, 1.0, f"custom_metrics.{name}") if plain and isinstance(code, type) else code
    )
    try:
        info = evaluator.get_metric_info()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        raise ConfigError(f"{where} raised {type(error).__name__}: {message_of_error(error)}") from None
    if inspect.iscoroutine(info):
        info.close()
        raise ConfigError(f"{where}: is async; make it a plain method")
    with errors_as(ConfigError, f"{where}: "):
        return metric_info_of(info)


def _with_threshold(criterion: MetricCriterion, metric: CustomMetricCode, source: str) -> MetricCriterion:
    """Add the metric's default threshold to a criterion without one. Raises UsageError."""
    where = f"{source}: criteria.{criterion.metric}.threshold"
    if not criterion.has_threshold:
        least = _DECIDES_NOTHING if metric.threshold is None and criterion.information else metric.threshold
        if least is None:
            raise UsageError(f"{where}: is missing, and {metric.name} has no default; give one")
        criterion = replace(criterion, threshold=least, written={**criterion.written, "threshold": least})
        if criterion.information:
            return criterion
    if metric.interval and criterion.threshold not in metric.interval:
        raise UsageError(f"{where}: must be {metric.interval}, found {criterion.threshold!r}")
    return criterion


_TIMEOUT_S = 5 * FUNCTION_S


@dataclass(frozen=True, slots=True)
class CustomGrader(CriterionGrader):
    """Grade by custom code."""

    own: CustomMetricCode

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        """Score each invocation. If the code raises, the conversation is Unscored."""
        del model, key  # custom code calls its own models
        actual, limit = actual_invocations(conversation), TimeLimit(_TIMEOUT_S)
        try:
            returned = await result_of(self._evaluate, actual, limit=limit, source=self.own)
            # Statuses are by the threshold that the code uses.
            code, threshold = self.own.code, self.criterion.threshold
            threshold = code.threshold if isinstance(code, base.Evaluator) else threshold
            return parse_result(returned, len(actual), threshold, self.own.interval)
        except BaseException as error:
            if ends_the_run(error):
                raise
            return GraderResult(conversation=Unscored(self._failure_text(error)))

    def _evaluate(self, actual: list[Invocation]) -> Any:
        turns = self.case.conversation
        # All runs share the expected invocations.
        expected = None if turns is None else deepcopy(list(turns[: len(actual)]))
        scenario = self.case.conversation_scenario
        threshold, written = self.criterion.threshold, self.criterion.written
        if isinstance(self.own.code, base.Evaluator | type):
            evaluator = self.own.code
            if isinstance(evaluator, type):  # an instance belongs to the user, and is used unchanged
                evaluator = base.with_criterion(_make_evaluator(evaluator, threshold), threshold, written)
            return _call(evaluator.evaluate_invocations, actual, expected, scenario)
        metric = base.EvalMetric(self.criterion.metric, None, SimpleNamespace(**deepcopy(dict(written))))
        return _call(self.own.code, metric, actual, expected, scenario)

    def _failure_text(self, error: BaseException) -> str:
        who = f"{self.own.name}, case {self.case.eval_id!r}"
        if isinstance(error, NoResult):
            return f"{error} ({who})"
        if isinstance(error, FunctionTimeout):
            return f"the evaluator {error} ({who})"
        where = ", ".join(filter(None, (who, raised_at(error, self.own.code))))
        return f"the evaluator raised {type(error).__name__}: {message_of_error(error)} ({where})"


def actual_invocations(conversation: Conversation) -> list[Invocation]:
    """Return the turns of a conversation as invocations."""
    return [
        INVOCATION.validate_python(
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


_T = TypeVar("_T", base.EvaluationResult, base.PerInvocationResult)


class NoResult(ValueError):
    """The evaluator returned an invalid result."""


def parse_result(
    returned: Any, invocations: int, threshold: float, interval: Interval | None = None
) -> GraderResult:
    """Convert an EvaluationResult, a mapping with its keys, or ADK's own result to scores.

    Raises NoResult for any other value, and for a result that contradicts the threshold.

    Args:
        invocations: number of invocations that the evaluator received.
        threshold: the threshold that it used for its statuses.
        interval: the range of its scores; None for any number.
    """

    def scored(value: float, reason: Any) -> MetricResult:
        if interval and value not in interval:
            return Unscored(f"the evaluator gave the score {value:g}, but its range is {interval}")
        return Score(value, str(reason or ""))

    result = _as_result(base.EvaluationResult, returned)
    items = [_as_result(base.PerInvocationResult, item) for item in _list(result.per_invocation_results)]
    if items and len(items) != invocations:
        raise NoResult(f"the evaluator gave {len(items)} results for {invocations} invocations")
    overall = _number(result.overall_score)
    scores = {index: _number(item.score) for index, item in enumerate(items)}
    known = {index: score for index, score in scores.items() if score is not None}
    if known:
        _check_direction([(score, items[n].eval_status) for n, score in known.items()], threshold)
        mean, aside = math.fsum(known.values()) / len(known), ""
        if overall is not None and not math.isclose(overall, mean, abs_tol=1e-9):
            # It is not used, because several runs are pooled by turns.
            aside = (
                f"the evaluator's overall score is {overall:g}; the mean of the invocations counts, {mean:g}"
            )
        return GraderResult({n: scored(score, items[n].reason or aside) for n, score in known.items()})
    if overall is None:
        reasons = [str(reason) for reason in (result.reason, *(item.reason for item in items)) if reason]
        why = f": {reasons[0]}" if reasons else ""
        return GraderResult(conversation=Skipped(f"the evaluator gave no score{why}"))
    _check_direction([(overall, result.overall_eval_status)], threshold)
    return GraderResult(conversation=scored(overall, result.reason))


def _as_result(shape: type[_T], returned: Any) -> _T:
    names = [field.name for field in fields(shape)]
    if isinstance(returned, shape):
        return returned
    article = "an" if shape is base.EvaluationResult else "a"
    other = NoResult(f"expected {article} {shape.__name__}, but the evaluator gave {safe_repr(returned)}")
    if not isinstance(returned, Mapping):
        if not hasattr(returned, "overall_score" if shape is base.EvaluationResult else "score"):
            raise other
        attributes: dict[str, Any] = {name: getattr(returned, name, None) for name in names}
        return shape(**attributes)
    with errors_as(NoResult, f"{shape.__name__}: "):
        values = valid_keys(returned, names)
    if not values.keys() & {"overall_score", "per_invocation_results", "score", "eval_status"}:
        raise other
    return shape(**({"actual_invocation": None, **values} if shape is base.PerInvocationResult else values))


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


def _check_direction(statuses: Sequence[tuple[float, Any]], threshold: float) -> None:
    """Raise NoResult if every status contradicts its score, as for a metric where less is better."""
    known = [
        (score, name == "PASSED")
        for score, name in [(score, _status_name(status)) for score, status in statuses]
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
    names = {str(member.value): member.name for member in base.EvalStatus}
    name = names.get(str(status), str(status).upper())
    if name not in base.EvalStatus.__members__:
        raise NoResult(
            f"expected {', '.join(base.EvalStatus.__members__)} as eval_status, "
            f"but the evaluator gave {safe_repr(status)}"
        )
    return name
