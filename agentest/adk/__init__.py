"""Google ADK's evaluation: file formats, metrics, and Python classes, on top of Agentest's runner.

    from agentest.adk import AgentEvaluator, EvaluationFailed, Evaluator, LocalEvalService

Names are imported when they are first used, so that `agentest --help` stays fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.adk.agent_evaluator import AgentEvaluator as AgentEvaluator
    from agentest.adk.agent_evaluator import EvaluationFailed as EvaluationFailed
    from agentest.adk.agent_evaluator import MigrationNotes as MigrationNotes
    from agentest.adk.eval_result import EvalCaseResult as EvalCaseResult
    from agentest.adk.eval_result import EvalMetricResult as EvalMetricResult
    from agentest.adk.eval_result import (
        EvalMetricResultPerInvocation as EvalMetricResultPerInvocation,
    )
    from agentest.adk.formats.eval_set import Blob as Blob
    from agentest.adk.formats.eval_set import Content as Content
    from agentest.adk.formats.eval_set import ConversationScenario as ConversationScenario
    from agentest.adk.formats.eval_set import EvalCase as EvalCase
    from agentest.adk.formats.eval_set import EvalSet as EvalSet
    from agentest.adk.formats.eval_set import FileData as FileData
    from agentest.adk.formats.eval_set import FunctionCall as FunctionCall
    from agentest.adk.formats.eval_set import FunctionResponse as FunctionResponse
    from agentest.adk.formats.eval_set import IntermediateData as IntermediateData
    from agentest.adk.formats.eval_set import Invocation as Invocation
    from agentest.adk.formats.eval_set import Part as Part
    from agentest.adk.formats.eval_set import Rubric as Rubric
    from agentest.adk.formats.eval_set import RubricContent as RubricContent
    from agentest.adk.formats.eval_set import SessionInput as SessionInput
    from agentest.adk.formats.metric_info import Interval as Interval
    from agentest.adk.formats.metric_info import MetricInfo as MetricInfo
    from agentest.adk.formats.metric_info import MetricValueInfo as MetricValueInfo
    from agentest.adk.formats.personas import UserBehavior as UserBehavior
    from agentest.adk.formats.personas import UserPersona as UserPersona
    from agentest.adk.in_process_evaluation import PrebuiltMetrics as PrebuiltMetrics
    from agentest.adk.local_eval_service import EvaluateRequest as EvaluateRequest
    from agentest.adk.local_eval_service import InferenceRequest as InferenceRequest
    from agentest.adk.local_eval_service import InferenceResult as InferenceResult
    from agentest.adk.local_eval_service import LocalEvalService as LocalEvalService
    from agentest.adk.metrics.evaluator_base import EvalMetric as EvalMetric
    from agentest.adk.metrics.evaluator_base import EvalStatus as EvalStatus
    from agentest.adk.metrics.evaluator_base import EvaluationResult as EvaluationResult
    from agentest.adk.metrics.evaluator_base import Evaluator as Evaluator
    from agentest.adk.metrics.evaluator_base import HeldMetric as HeldMetric
    from agentest.adk.metrics.evaluator_base import PerInvocationResult as PerInvocationResult
    from agentest.adk.prebuilt_evaluators import (
        FinalResponseMatchV2Evaluator as FinalResponseMatchV2Evaluator,
    )
    from agentest.adk.prebuilt_evaluators import RougeEvaluator as RougeEvaluator
    from agentest.adk.prebuilt_evaluators import SafetyEvaluatorV1 as SafetyEvaluatorV1
    from agentest.adk.prebuilt_evaluators import TrajectoryEvaluator as TrajectoryEvaluator

_HOME = {
    "AgentEvaluator": "agent_evaluator",
    "Blob": "formats.eval_set",
    "Content": "formats.eval_set",
    "ConversationScenario": "formats.eval_set",
    "EvalCase": "formats.eval_set",
    "EvalCaseResult": "eval_result",
    "EvalMetric": "metrics.evaluator_base",
    "EvalMetricResult": "eval_result",
    "EvalMetricResultPerInvocation": "eval_result",
    "EvalSet": "formats.eval_set",
    "EvalStatus": "metrics.evaluator_base",
    "EvaluateRequest": "local_eval_service",
    "EvaluationFailed": "agent_evaluator",
    "EvaluationResult": "metrics.evaluator_base",
    "Evaluator": "metrics.evaluator_base",
    "FileData": "formats.eval_set",
    "FinalResponseMatchV2Evaluator": "prebuilt_evaluators",
    "FunctionCall": "formats.eval_set",
    "HeldMetric": "metrics.evaluator_base",
    "FunctionResponse": "formats.eval_set",
    "InferenceRequest": "local_eval_service",
    "InferenceResult": "local_eval_service",
    "IntermediateData": "formats.eval_set",
    "Interval": "formats.metric_info",
    "Invocation": "formats.eval_set",
    "LocalEvalService": "local_eval_service",
    "MetricInfo": "formats.metric_info",
    "MetricValueInfo": "formats.metric_info",
    "MigrationNotes": "agent_evaluator",
    "Part": "formats.eval_set",
    "PerInvocationResult": "metrics.evaluator_base",
    "PrebuiltMetrics": "in_process_evaluation",
    "RougeEvaluator": "prebuilt_evaluators",
    "Rubric": "formats.eval_set",
    "RubricContent": "formats.eval_set",
    "SafetyEvaluatorV1": "prebuilt_evaluators",
    "SessionInput": "formats.eval_set",
    "TrajectoryEvaluator": "prebuilt_evaluators",
    "UserBehavior": "formats.personas",
    "UserPersona": "formats.personas",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
