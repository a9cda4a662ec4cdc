"""ADK's evaluation sets: its formats in, its results out, everything between through our own runner.

    from agentest.adk import AgentEvaluator, EvaluationFailed, Evaluator, LocalEvalService

The names are loaded when they are first used, so that `agentest --help` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.adk.api.agent_evaluator import AgentEvaluator as AgentEvaluator
    from agentest.adk.api.agent_evaluator import EvaluationFailed as EvaluationFailed
    from agentest.adk.api.agent_evaluator import MigrationNotes as MigrationNotes
    from agentest.adk.api.evaluation_results import EvalCaseResult as EvalCaseResult
    from agentest.adk.api.evaluation_results import EvalMetricResult as EvalMetricResult
    from agentest.adk.api.evaluation_results import (
        EvalMetricResultPerInvocation as EvalMetricResultPerInvocation,
    )
    from agentest.adk.api.local_eval_service import LocalEvalService as LocalEvalService
    from agentest.adk.api.prebuilt_evaluators import (
        FinalResponseMatchV2Evaluator as FinalResponseMatchV2Evaluator,
    )
    from agentest.adk.api.prebuilt_evaluators import RougeEvaluator as RougeEvaluator
    from agentest.adk.api.prebuilt_evaluators import SafetyEvaluatorV1 as SafetyEvaluatorV1
    from agentest.adk.api.prebuilt_evaluators import TrajectoryEvaluator as TrajectoryEvaluator
    from agentest.adk.api.service_requests import EvaluateRequest as EvaluateRequest
    from agentest.adk.api.service_requests import InferenceRequest as InferenceRequest
    from agentest.adk.api.service_requests import InferenceResult as InferenceResult
    from agentest.adk.formats.metric_info import Interval as Interval
    from agentest.adk.formats.metric_info import MetricInfo as MetricInfo
    from agentest.adk.formats.metric_info import MetricValueInfo as MetricValueInfo
    from agentest.adk.formats.model import Blob as Blob
    from agentest.adk.formats.model import Content as Content
    from agentest.adk.formats.model import ConversationScenario as ConversationScenario
    from agentest.adk.formats.model import EvalCase as EvalCase
    from agentest.adk.formats.model import EvalSet as EvalSet
    from agentest.adk.formats.model import FileData as FileData
    from agentest.adk.formats.model import FunctionCall as FunctionCall
    from agentest.adk.formats.model import FunctionResponse as FunctionResponse
    from agentest.adk.formats.model import IntermediateData as IntermediateData
    from agentest.adk.formats.model import Invocation as Invocation
    from agentest.adk.formats.model import Part as Part
    from agentest.adk.formats.model import Rubric as Rubric
    from agentest.adk.formats.model import RubricContent as RubricContent
    from agentest.adk.formats.model import SessionInput as SessionInput
    from agentest.adk.formats.personas import UserBehavior as UserBehavior
    from agentest.adk.formats.personas import UserPersona as UserPersona
    from agentest.adk.metrics.own import EvalMetric as EvalMetric
    from agentest.adk.metrics.own import EvalStatus as EvalStatus
    from agentest.adk.metrics.own import EvaluationResult as EvaluationResult
    from agentest.adk.metrics.own import Evaluator as Evaluator
    from agentest.adk.metrics.own import HeldMetric as HeldMetric
    from agentest.adk.metrics.own import PerInvocationResult as PerInvocationResult
    from agentest.adk.prebuilt import PrebuiltMetrics as PrebuiltMetrics

_HOME = {
    "AgentEvaluator": "api.agent_evaluator",
    "Blob": "formats.model",
    "Content": "formats.model",
    "ConversationScenario": "formats.model",
    "EvalCase": "formats.model",
    "EvalCaseResult": "api.evaluation_results",
    "EvalMetric": "metrics.own",
    "EvalMetricResult": "api.evaluation_results",
    "EvalMetricResultPerInvocation": "api.evaluation_results",
    "EvalSet": "formats.model",
    "EvalStatus": "metrics.own",
    "EvaluateRequest": "api.service_requests",
    "EvaluationFailed": "api.agent_evaluator",
    "EvaluationResult": "metrics.own",
    "Evaluator": "metrics.own",
    "FileData": "formats.model",
    "FinalResponseMatchV2Evaluator": "api.prebuilt_evaluators",
    "FunctionCall": "formats.model",
    "HeldMetric": "metrics.own",
    "FunctionResponse": "formats.model",
    "InferenceRequest": "api.service_requests",
    "InferenceResult": "api.service_requests",
    "IntermediateData": "formats.model",
    "Interval": "formats.metric_info",
    "Invocation": "formats.model",
    "LocalEvalService": "api.local_eval_service",
    "MetricInfo": "formats.metric_info",
    "MetricValueInfo": "formats.metric_info",
    "MigrationNotes": "api.agent_evaluator",
    "Part": "formats.model",
    "PerInvocationResult": "metrics.own",
    "PrebuiltMetrics": "prebuilt",
    "RougeEvaluator": "api.prebuilt_evaluators",
    "Rubric": "formats.model",
    "RubricContent": "formats.model",
    "SafetyEvaluatorV1": "api.prebuilt_evaluators",
    "SessionInput": "formats.model",
    "TrajectoryEvaluator": "api.prebuilt_evaluators",
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
