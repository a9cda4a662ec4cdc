"""`LocalEvalService`: run conversations first and evaluate them later, as ADK's eval service does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentest.domain.end_reason import Ending
from agentest.domain.results import ScenarioResult
from agentest.domain.transcript import Blame, Conversation, Failure
from agentest.plugins.adk.cases import CaseSet, unchecked_notes
from agentest.plugins.adk.formats.criteria import Criteria
from agentest.plugins.adk.formats.eval_set import EvalCase, EvalSet, Invocation
from agentest.plugins.adk.formats.set_reader import select
from agentest.plugins.adk.in_process_evaluation import (
    AgentLike,
    CriteriaLike,
    Evaluators,
    as_eval_set,
    as_value,
    configuration,
    mocks,
    parse_given_criteria,
    plain_name,
    read_set,
    stream_results,
)
from agentest.plugins.adk.metrics.custom_metrics import actual_invocations
from agentest.plugins.adk.metrics.evaluator_base import (
    EvalCaseResult,
    EvalMetric,
    EvalMetricResultPerInvocation,
    eval_status,
    overall_results,
    turn_result,
)
from agentest.plugins.adk.plan import eval_plan
from agentest.runner.prepare import RunRequest, prepared_for
from agentest.support.errors import UsageError, errors_as
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import valid_keys


class LocalEvalService:
    """Run the conversations of a set, and evaluate them later, as often as needed.

    Requests are `InferenceRequest` and `EvaluateRequest`, or mappings with ADK's keys in either spelling.
    """

    def __init__(self, agent: AgentLike, *, tools: Mapping[str, Any] | None = None) -> None:
        self._root = Path.cwd()
        self._loaded, self._name = configuration(agent, self._root)
        self._tools = mocks(tools)

    async def perform_inference(
        self, request: InferenceRequest | Mapping[str, Any]
    ) -> AsyncIterator[InferenceResult]:
        """Run every case's conversation once, and yield each as it finishes, in any order.

        Leaving the loop early cancels the conversations that are still running.
        """
        wanted = inference_request(request)
        read = select(read_set(wanted.eval_set), wanted.eval_case_ids)
        eval_set, chosen = read.eval_set, CaseSet(read, Criteria(()), self._tools, graded=False)
        cases = {case.eval_id: case for case in eval_set.eval_cases}
        async with aclosing(self._results([chosen])) as results:
            async for scenario in results:
                case = cases[scenario.case.eval_id if scenario.case else ""]
                yield _inference(scenario, eval_set.eval_set_id, case)

    async def evaluate(self, request: EvaluateRequest | Mapping[str, Any]) -> AsyncIterator[EvalCaseResult]:
        """Evaluate finished conversations, and yield each result as it is ready."""
        results, criteria_document, evaluators = evaluate_request(request)
        criteria, codes = parse_given_criteria(criteria_document, evaluators, self._root)
        # A case that ran several times has the same id each time: a unique path keeps them apart.
        inferences = {f"inference-{n}": inference for n, inference in enumerate(results, start=1)}
        sets, finished = [], {}
        for path, inference in inferences.items():
            read = read_set(EvalSet(inference.eval_set_id, (inference.case,)), Path(path))
            sets.append(CaseSet(read, criteria, {}, codes))
            # A conversation that never took place is empty, with a failure.
            failure = Failure(Blame.INTERNAL, inference.error_message or "no conversation was held")
            finished[path] = inference.conversation or Conversation(
                inference.session_id, (), Ending.ERROR, failure
            )
        async with aclosing(self._results(sets, finished)) as scenarios:
            async for scenario in scenarios:
                yield _case_result(scenario, inferences[scenario.file])

    def _results(
        self, sets: Sequence[CaseSet], conversations: Mapping[str, Conversation] | None = None
    ) -> AsyncGenerator[ScenarioResult]:
        plan = eval_plan(sets, self._loaded.config, self._name, 1, self._root, self._loaded.redact)
        finished = None
        if conversations is not None:
            finished = {unit.scope: [conversations[unit.file]] for unit in plan.units}
        return stream_results(
            prepared_for(RunRequest(self._root), self._loaded, plan, _notes(sets)), finished
        )


def _notes(sets: Sequence[CaseSet]) -> list[str]:
    if not sets:
        return []
    cases = {case.eval_id: case for chosen in sets for case in chosen.read.eval_set.eval_cases}
    all_cases = EvalSet(sets[0].read.eval_set.eval_set_id, tuple(cases.values()))
    return list(unchecked_notes(replace(sets[0], read=read_set(all_cases))))


def _inference(scenario: ScenarioResult, eval_set_id: str, case: EvalCase) -> InferenceResult:
    if not scenario.conversations:
        problem = scenario.verdict.reasons[0].message
        return InferenceResult(eval_set_id, case.eval_id, None, "", case, problem)
    conversation = scenario.conversations[0].conversation
    return InferenceResult(
        eval_set_id,
        case.eval_id,
        None if conversation.failure else actual_invocations(conversation),
        conversation.conversation_id,
        case,
        conversation.failure.message if conversation.failure else None,
        conversation,
    )


def _case_result(scenario: ScenarioResult, inference: InferenceResult) -> EvalCaseResult:
    expected = inference.case.conversation or ()
    thresholds = {**scenario.thresholds, **dict.fromkeys(scenario.information)}
    invocations = []
    for conversation in scenario.conversations:
        metrics = {turn.turn_index: turn.metrics for turn in conversation.turns}
        for n, actual in enumerate(actual_invocations(conversation.conversation)):
            found = (metrics.get(n, {}), conversation.metrics)
            results = [turn_result(name, threshold, found) for name, threshold in thresholds.items()]
            wanted = expected[n] if n < len(expected) else None
            invocations.append(EvalMetricResultPerInvocation(actual, wanted, results))
    return EvalCaseResult(
        eval_set_id=inference.eval_set_id,
        eval_id=inference.eval_case_id,
        final_eval_status=eval_status(scenario.verdict.status),
        overall_eval_metric_results=overall_results(scenario),
        eval_metric_result_per_invocation=invocations,
        session_id=inference.session_id,
        scenario=scenario,
    )


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """A request to run cases of a set: some, or all if `eval_case_ids` is empty."""

    eval_set: EvalSet
    eval_case_ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class InferenceResult:
    """A conversation that ran. `inferences` is None if it failed."""

    eval_set_id: str
    eval_case_id: str
    inferences: Sequence[Invocation] | None
    session_id: str
    case: EvalCase
    error_message: str | None = None
    conversation: Conversation | None = None


@dataclass(frozen=True, slots=True)
class EvaluateConfig:
    """The metrics to evaluate."""

    eval_metrics: Sequence[EvalMetric | Mapping[str, Any]]
    parallelism: int | None = None
    """Accepted for ADK's sake. The configuration limits model calls."""


@dataclass(frozen=True, slots=True)
class EvaluateRequest:
    """A request to evaluate conversations by criteria, or by the metrics of a configuration.

    The criteria are as in `AgentEvaluator.evaluate_eval_set`.
    """

    inference_results: Sequence[InferenceResult]
    criteria: CriteriaLike | None = None
    evaluators: Evaluators = ()
    evaluate_config: EvaluateConfig | Mapping[str, Any] | None = None


def inference_request(request: InferenceRequest | Mapping[str, Any]) -> InferenceRequest:
    """Parse a request. Raises UsageError."""
    if isinstance(request, InferenceRequest):
        return request
    known = ("app_name", "eval_set", "eval_set_id", "eval_cases", "eval_case_ids", "inference_config")
    keys = _keys(request, known, "the request")
    ids = tuple(_list(keys, "eval_case_ids"))
    if "eval_set" in keys:
        return InferenceRequest(as_eval_set(keys["eval_set"]), ids)
    cases = tuple(case for item in _list(keys, "eval_cases") for case in _cases(item))
    return InferenceRequest(EvalSet(str(keys.get("eval_set_id") or "eval-set"), cases), ids)


def evaluate_request(
    request: EvaluateRequest | Mapping[str, Any],
) -> tuple[Sequence[InferenceResult], CriteriaLike, Evaluators]:
    """Return the results to evaluate, the criteria and the evaluators. Raises UsageError."""
    names = ("inference_results", "criteria", "evaluators", "evaluate_config")
    keys = _keys(request, names, "the request")
    if "inference_results" not in keys or not keys.keys() & {"criteria", "evaluate_config"}:
        raise UsageError("the request needs inference_results, and criteria or evaluate_config")
    criteria = keys.get("criteria")
    if criteria is None:
        config = _keys(keys.get("evaluate_config"), ("eval_metrics", "parallelism"), "evaluate_config")
        criteria = _criteria(_list(config, "eval_metrics"))
    results = _list(keys, "inference_results")
    for result in results:
        if not isinstance(result, InferenceResult):
            raise UsageError(f"inference_results: {safe_repr(result)} is not a result of perform_inference")
    return results, criteria, keys.get("evaluators") or ()


def _keys(value: Any, known: tuple[str, ...], what: str) -> dict[str, Any]:
    if isinstance(value, EvaluateRequest | EvaluateConfig):
        return {name: field for name in known if (field := getattr(value, name)) is not None}
    if not isinstance(value, Mapping):
        raise UsageError(f"{what}: expected a mapping, found {safe_repr(value)}")
    with errors_as(UsageError, f"{what}: "):
        return valid_keys(value, known)


def _list(keys: Mapping[str, Any], name: str) -> Sequence[Any]:
    items = keys.get(name, ())
    if isinstance(items, Iterable) and not isinstance(items, str | bytes | Mapping):
        return tuple(items)
    raise UsageError(f"{name}: expected a list, found {safe_repr(items)}")


def _cases(item: Any) -> Sequence[EvalCase]:
    if isinstance(item, EvalSet):
        return item.eval_cases
    if isinstance(item, Mapping) and item.keys() & {"eval_cases", "evalCases"}:
        return as_eval_set(item).eval_cases
    return (as_value(EvalCase, item),)


def _criteria(metrics: Sequence[Any]) -> dict[str, Any]:
    """Turn `eval_metrics` into criteria. Raises UsageError, also for a duplicate metric."""
    known = ("metric_name", "threshold", "criterion", "judge_model_options")
    criteria: dict[str, Any] = {}
    for metric in metrics:
        if isinstance(metric, EvalMetric):
            keys: dict[str, Any] = {"metric_name": metric.metric_name, "threshold": metric.threshold}
            criterion = vars(metric.criterion)
        else:
            keys = _keys(metric, known, "eval_metrics")
            criterion = keys.pop("criterion", None) or {}
        name = plain_name(keys.pop("metric_name", None))
        if not isinstance(name, str):
            raise UsageError(f"eval_metrics: a metric has no metric_name: {safe_repr(metric)}")
        if name in criteria:
            raise UsageError(f"eval_metrics: `{name}` is named twice; evaluate once with each")
        criteria[name] = {**{key: value for key, value in keys.items() if value is not None}, **criterion}
    return criteria
