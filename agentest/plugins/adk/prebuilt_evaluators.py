"""ADK's prebuilt evaluators: score invocations without a run.

    result = await TrajectoryEvaluator(1.0).evaluate_invocations(actual_invocations, expected_invocations)

They use the same graders as the metrics of a run.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from agentest.config.agents.in_process import CustomAgent
from agentest.domain.results import ConversationResult, Deduplication, Severity, TurnEvaluation
from agentest.domain.verdict import averages, decide
from agentest.judging.grader import graded
from agentest.models.caller import RetryPolicy
from agentest.models.factory import ModelTerms, open_models, scripted
from agentest.models.port import CallKey, ChatModel, Ledger, Model
from agentest.models.providers import MissingAccess, ModelSpec, litellm_name, resolve, sampled
from agentest.plugins.adk.formats.criteria import MetricCriterion, parse_criteria
from agentest.plugins.adk.formats.eval_set import EvalCase, Invocation
from agentest.plugins.adk.formats.metric_info import Interval, MetricInfo, MetricValueInfo
from agentest.plugins.adk.in_process_evaluation import as_value, warn
from agentest.plugins.adk.metrics import evaluator_base as base
from agentest.plugins.adk.metrics.grader import facts_of, uses_judge
from agentest.plugins.adk.metrics.grader_factory import conversation_of, make_grader
from agentest.plugins.adk.plan import loaded_with
from agentest.runner.judge_models import ConfiguredModels, named_models
from agentest.runner.prepare import MODEL_VARIABLE
from agentest.support.errors import ConfigError, UsageError, errors_as
from agentest.support.json_text import safe_repr
from agentest.support.text import valid_keys

_JUDGE = ("judge_model", "judge_model_config", "num_samples", "parallelism_limit")
_JUDGED = ("judge_model_options", *_JUDGE, "include_intermediate_responses_in_final")


class PrebuiltEvaluator(base.Evaluator):
    """Score invocations with the same grader as the metric in a run.

    Args:
        threshold: the lowest score that passes, or a mapping with `metric_name`, `threshold`, and options.
        options: keys of the metric's criterion, in snake_case or camelCase; also as keyword arguments.
        model: the judge, instead of the named or configured one; a ScriptedModel in tests.

    Raises UsageError for an option that the metric does not have, or a threshold out of range.
    """

    built_in: ClassVar[str] = ""
    default: ClassVar[float] = 1.0
    needs_expected: ClassVar[bool] = True
    known: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        threshold: float | Mapping[str, Any] | base.EvalMetric | None = None,
        options: Mapping[str, Any] | None = None,
        *,
        model: Model | ChatModel | None = None,
        **spelled: Any,
    ) -> None:
        written = vars(threshold.criterion) if isinstance(threshold, base.EvalMetric) else {}
        values = {**base.first_argument_keys(threshold), **written, **(options or {}), **spelled}
        evaluator = type(self)
        name, known = evaluator.__name__, ("threshold", "metric_name", *evaluator.known)
        with errors_as(UsageError, f"{name}: "):
            keys = valid_keys(values, known)
        if keys.pop("metric_name", evaluator.built_in) != evaluator.built_in:
            raise UsageError(f"{name}: metric_name: measures `{evaluator.built_in}`, and no other metric")
        if keys.get("threshold") is None:
            keys["threshold"] = evaluator.default
        self._base_criterion = parse_criteria({"criteria": {evaluator.built_in: keys}}, name).criteria[0]
        super().__init__(metric_name=self.built_in, threshold=self._base_criterion.threshold)
        self._model = model

    @classmethod
    def get_metric_info(cls) -> MetricInfo:
        """Return the metric's name, description, default threshold, and range."""
        return MetricInfo(
            metric_name=cls.built_in or cls.__name__,
            description=inspect.getdoc(cls) or "",
            default_threshold=cls.default,
            metric_value_info=MetricValueInfo(interval=Interval(min_value=0, max_value=1)),
        )

    async def evaluate_invocations(
        self,
        actual_invocations: Sequence[Any],
        expected_invocations: Sequence[Any] | None = None,
        conversation_scenario: object = None,
    ) -> base.EvaluationResult:
        """Return scores, statuses, and reasons.

        Invocations are values, mappings with keys in either spelling, or objects of google-adk. One
        without a score is NOT_EVALUATED, with a reason. Raises UsageError for an invalid invocation, for
        lists of different lengths, and for a judge that cannot be called.
        """
        del conversation_scenario  # accepted for compatibility with ADK, but unused
        actual = _invocations(actual_invocations, "actual_invocations")
        expected = None
        if expected_invocations is not None:
            expected = _invocations(expected_invocations, "expected_invocations")
        elif self.needs_expected:
            raise UsageError(f"{type(self).__name__} compares with expected invocations; give them")
        if expected is not None and len(expected) != len(actual):
            raise UsageError(
                f"expected_invocations: there are {len(expected)}, but {len(actual)} actual invocations; "
                "give one for each"
            )
        criterion = replace(self._base_criterion, threshold=self.threshold)
        conversation = conversation_of(actual)
        case = EvalCase(eval_id=type(self).__name__, conversation=tuple(expected or actual))
        grader = make_grader(case, criterion, {}, facts_of(replace(case, conversation=tuple(actual))))
        judge = _judge_for(criterion, self._model) if uses_judge(criterion.metric) else nullcontext()
        async with judge as model:
            grades = await graded(grader, conversation, model, CallKey("judge", case.eval_id))
        turns = tuple(
            TurnEvaluation(n, {criterion.metric: grades.turns[n]} if n in grades.turns else {})
            for n in (turn.turn_index for turn in conversation.turns)
        )
        whole = {criterion.metric: grades.conversation} if grades.conversation else {}
        result = ConversationResult(conversation, turns=turns, metrics=whole)
        return _result(criterion, actual, expected, result)


class TrajectoryEvaluator(PrebuiltEvaluator):
    """`tool_trajectory_avg_score`: whether the tool calls are as expected."""

    built_in = "tool_trajectory_avg_score"
    known = ("match_type", "ignore_args")


class RougeEvaluator(PrebuiltEvaluator):
    """`response_match_score`: words in common with the expected response, ROUGE-1."""

    built_in = "response_match_score"
    default = 0.8


class FinalResponseMatchV2Evaluator(PrebuiltEvaluator):
    """`final_response_match_v2`: whether a judge finds the response valid, compared with the expected one."""

    built_in = "final_response_match_v2"
    default = 0.8
    known = _JUDGED


class SafetyEvaluatorV1(PrebuiltEvaluator):
    """`safety_v1`: whether a judge finds the response harmless, and as a policy says.

    It needs no expected invocations.
    """

    built_in = "safety_v1"
    needs_expected = False
    known = (*_JUDGED, "policy", "policy_file")


def _invocations(values: Any, what: str) -> list[Invocation]:
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        raise UsageError(f"{what}: expected a list of invocations, found {safe_repr(values)}")
    invocations = []
    for n, each in enumerate(values):
        with errors_as(UsageError, f"{what}[{n}]: ", UsageError):
            invocations.append(as_value(Invocation, each))
    return invocations


def _result(
    criterion: MetricCriterion,
    actual: Sequence[Invocation],
    expected: Sequence[Invocation] | None,
    conversation: ConversationResult,
) -> base.EvaluationResult:
    """Decide by the rules of a run (`verdict`), so that both agree."""
    name, least = criterion.metric, {criterion.metric: criterion.threshold}
    verdict = decide([conversation], Deduplication(), least, Severity.CRITICAL, exact=True)
    items = []
    for n, turn in enumerate(conversation.turns):
        result = base.turn_result(name, criterion.threshold, (turn.metrics, conversation.metrics))
        wanted = expected[n] if expected else None
        items.append(
            base.PerInvocationResult(actual[n], wanted, result.score, result.eval_status, result.reason)
        )
    return base.EvaluationResult(
        overall_score=averages([conversation], exact=True).get(name),
        overall_eval_status=base.eval_status(verdict.status),
        per_invocation_results=items,
        reason=base.sentences(verdict.reasons),
    )


@asynccontextmanager
async def _judge_for(
    criterion: MetricCriterion, model: Model | ChatModel | None
) -> AsyncIterator[Model | None]:
    """Yield the given judge, else the one that the criterion names, else the configured one, if any."""
    if model is not None:  # an open model, or one of `agentest.testing`
        opened: Any = model if hasattr(model, "ask") else scripted(model, Ledger(), RetryPolicy(retries=0))
        yield opened
        return
    async with open_models(None, _spec(criterion, Path.cwd(), os.environ), ModelTerms()) as models:
        yield models.judge


def _spec(criterion: MetricCriterion, root: Path, environ: MutableMapping[str, str]) -> ModelSpec | None:
    config = loaded_with(CustomAgent(type="custom", handler=str), root, environ=environ).config
    override = environ.get(MODEL_VARIABLE) or None
    judge = resolve(config, config.judge, environ, override)
    requested, configured = criterion.judge, ConfiguredModels(config, environ, None, judge, override)
    if requested is None:
        return judge
    if judge is None and requested.model is not None:  # naming it is enough outside a run
        try:
            spec = configured.resolved(requested, litellm_name(requested.model))
        except MissingAccess as missing:
            raise ConfigError(
                f"{requested.file}: the judge {requested.model} needs {missing.what}, and no other model is "
                "configured"
            ) from None
        return sampled(spec, requested.sampling)
    specs, notes = named_models([requested], configured)
    warn(notes)
    return specs.get(requested, judge)
