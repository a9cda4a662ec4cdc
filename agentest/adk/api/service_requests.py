"""What `LocalEvalService` is asked for: values, or mappings with ADK's keys in either spelling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentest.adk.api.in_process import (
    CriteriaLike,
    Evaluators,
    as_eval_set,
    plain_name,
    validated,
)
from agentest.adk.formats.model import EVAL_CASE, EvalCase, EvalSet, Invocation
from agentest.adk.formats.problems import Names
from agentest.adk.metrics.own import EvalMetric
from agentest.domain.transcript import Conversation
from agentest.support.errors import UsageError
from agentest.support.json_text import safe_repr
from agentest.support.spelling import did_you_mean, snake_keys


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """Which cases to hold: of a set, all or some."""

    eval_set: EvalSet
    eval_case_ids: Sequence[str] = ()

    def selected(self) -> EvalSet:
        """The set with the chosen cases alone, in the order asked for. Raises UsageError."""
        known = {case.eval_id: case for case in self.eval_set.eval_cases}
        for eval_id in self.eval_case_ids:
            if eval_id not in known:
                raise UsageError(f"there is no case {eval_id!r}; {did_you_mean(eval_id, known)}")
        if not self.eval_case_ids:
            return self.eval_set
        return replace(self.eval_set, eval_cases=tuple(known[eval_id] for eval_id in self.eval_case_ids))


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """A conversation that was held. `inferences` is None where it came to no end."""

    eval_set_id: str
    eval_case_id: str
    inferences: Sequence[Invocation] | None
    session_id: str
    case: EvalCase
    error_message: str | None = None
    conversation: Conversation | None = None


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """What to evaluate, and by which criteria: as `AgentEvaluator.evaluate_eval_set` takes them."""

    inference_results: Sequence[InferenceResult]
    criteria: CriteriaLike
    evaluators: Evaluators = ()


def inference_request(request: InferenceRequest | Mapping[str, Any]) -> InferenceRequest:
    """A request as a value. Raises UsageError."""
    if isinstance(request, InferenceRequest):
        return request
    known = ("app_name", "eval_set", "eval_set_id", "eval_cases", "eval_case_ids", "inference_config")
    keys = _keys(request, known, "the request")
    ids = tuple(_list(keys, "eval_case_ids"))
    if "eval_set" in keys:
        return InferenceRequest(as_eval_set(keys["eval_set"]), ids)
    cases = tuple(case for item in _list(keys, "eval_cases") for case in _cases(item))
    return InferenceRequest(EvalSet(str(keys.get("eval_set_id") or "eval-set"), cases), ids)


def evaluate_request(request: EvaluateRequest | Mapping[str, Any]) -> EvaluateRequest:
    """A request as a value. Raises UsageError."""
    if isinstance(request, EvaluateRequest):
        return request
    keys = _keys(request, ("inference_results", "evaluate_config", "criteria", "evaluators"), "the request")
    if "inference_results" not in keys or not keys.keys() & {"criteria", "evaluate_config"}:
        raise UsageError("the request needs inference_results, and criteria or evaluate_config")
    criteria = keys.get("criteria")
    if criteria is None:
        config = _keys(keys.get("evaluate_config"), ("eval_metrics", "parallelism"), "evaluate_config")
        criteria = _criteria(_list(config, "eval_metrics"))
    results = _list(keys, "inference_results")
    for result in results:
        if not isinstance(result, InferenceResult):
            raise UsageError(f"inference_results: {safe_repr(result)} is no result of perform_inference")
    return EvaluateRequest(results, criteria, keys.get("evaluators") or ())


def _keys(value: Any, known: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{what}: expected a mapping, found {safe_repr(value)}")
    try:
        keys = snake_keys(value, known)
    except ValueError as error:
        raise UsageError(f"{what}: {error}") from None
    for key in keys:
        if key not in known:
            raise UsageError(f"{what}: unknown key {key!r}; {did_you_mean(str(key), known)}")
    return keys


def _list(keys: Mapping[str, Any], name: str) -> Sequence[Any]:
    items = keys.get(name, ())
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | Mapping):
        return tuple(items)
    raise UsageError(f"{name}: expected a list, found {safe_repr(items)}")


def _cases(item: Any) -> Sequence[EvalCase]:
    """ADK-TS hands over whole sets as `evalCases`."""
    if isinstance(item, EvalSet):
        return item.eval_cases
    if isinstance(item, EvalCase):
        return (item,)
    if isinstance(item, Mapping) and item.keys() & {"eval_cases", "evalCases"}:
        return as_eval_set(item).eval_cases
    return (validated(EVAL_CASE, EvalCase, item, Names()),)


def _criteria(metrics: Sequence[Any]) -> dict[str, Any]:
    """`eval_metrics` as criteria. Raises UsageError, also for a metric that is named twice."""
    criteria: dict[str, Any] = {}
    for name, criterion in map(_criterion, metrics):
        if name in criteria:
            raise UsageError(f"eval_metrics: `{name}` is named twice; evaluate once with each")
        criteria[name] = criterion
    return criteria


def _criterion(metric: Any) -> tuple[str, Any]:
    if isinstance(metric, EvalMetric):
        keys: dict[str, Any] = {"metric_name": metric.metric_name, "threshold": metric.threshold}
        keys["criterion"] = dict(vars(metric.criterion))
    else:
        keys = _keys(metric, ("metric_name", "threshold", "criterion", "judge_model_options"), "eval_metrics")
    name = plain_name(keys.pop("metric_name", None))
    if not isinstance(name, str):
        raise UsageError(f"eval_metrics: a metric has no metric_name: {safe_repr(metric)}")
    criterion = keys.pop("criterion", None) or {}
    return name, {**{key: value for key, value in keys.items() if value is not None}, **criterion}
