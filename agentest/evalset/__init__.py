"""ADK's evaluation sets: its formats in, its results out, everything between through our own runner.

    from agentest.evalset import AgentEvaluator, EvaluationFailed, Evaluator, LocalEvalService

The names are loaded when they are first used, so that `agentest --help` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.evalset.agent_evaluator import AgentEvaluator as AgentEvaluator
    from agentest.evalset.agent_evaluator import EvaluationFailed as EvaluationFailed
    from agentest.evalset.evaluators import EvalMetric as EvalMetric
    from agentest.evalset.evaluators import EvalStatus as EvalStatus
    from agentest.evalset.evaluators import EvaluationResult as EvaluationResult
    from agentest.evalset.evaluators import Evaluator as Evaluator
    from agentest.evalset.evaluators import Interval as Interval
    from agentest.evalset.evaluators import MetricInfo as MetricInfo
    from agentest.evalset.evaluators import PerInvocationResult as PerInvocationResult
    from agentest.evalset.local_eval_service import EvalCaseResult as EvalCaseResult
    from agentest.evalset.local_eval_service import EvalMetricResult as EvalMetricResult
    from agentest.evalset.local_eval_service import (
        EvalMetricResultPerInvocation as EvalMetricResultPerInvocation,
    )
    from agentest.evalset.local_eval_service import LocalEvalService as LocalEvalService
    from agentest.evalset.model import Content as Content
    from agentest.evalset.model import ConversationScenario as ConversationScenario
    from agentest.evalset.model import EvalCase as EvalCase
    from agentest.evalset.model import EvalSet as EvalSet
    from agentest.evalset.model import FunctionCall as FunctionCall
    from agentest.evalset.model import FunctionResponse as FunctionResponse
    from agentest.evalset.model import IntermediateData as IntermediateData
    from agentest.evalset.model import Invocation as Invocation
    from agentest.evalset.model import Part as Part
    from agentest.evalset.model import Rubric as Rubric
    from agentest.evalset.model import RubricContent as RubricContent
    from agentest.evalset.model import SessionInput as SessionInput
    from agentest.evalset.service_requests import EvaluateRequest as EvaluateRequest
    from agentest.evalset.service_requests import InferenceRequest as InferenceRequest
    from agentest.evalset.service_requests import InferenceResult as InferenceResult

_HOME = {
    "AgentEvaluator": "agent_evaluator",
    "Content": "model",
    "ConversationScenario": "model",
    "EvalCase": "model",
    "EvalCaseResult": "local_eval_service",
    "EvalMetric": "evaluators",
    "EvalMetricResult": "local_eval_service",
    "EvalMetricResultPerInvocation": "local_eval_service",
    "EvalSet": "model",
    "EvalStatus": "evaluators",
    "EvaluateRequest": "service_requests",
    "EvaluationFailed": "agent_evaluator",
    "EvaluationResult": "evaluators",
    "Evaluator": "evaluators",
    "FunctionCall": "model",
    "FunctionResponse": "model",
    "InferenceRequest": "service_requests",
    "InferenceResult": "service_requests",
    "IntermediateData": "model",
    "Interval": "evaluators",
    "Invocation": "model",
    "LocalEvalService": "local_eval_service",
    "MetricInfo": "evaluators",
    "Part": "model",
    "PerInvocationResult": "evaluators",
    "Rubric": "model",
    "RubricContent": "model",
    "SessionInput": "model",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
