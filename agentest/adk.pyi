"""The names of `agentest.adk`, for type checkers."""

from agentest.plugins.adk import agent_evaluator as agent_evaluator
from agentest.plugins.adk import local_eval_service as local_eval_service
from agentest.plugins.adk.agent_evaluator import AgentEvaluator as AgentEvaluator
from agentest.plugins.adk.agent_evaluator import EvaluationFailed as EvaluationFailed
from agentest.plugins.adk.agent_evaluator import MigrationNotes as MigrationNotes
from agentest.plugins.adk.agent_evaluator import find_config_for_test_file as find_config_for_test_file
from agentest.plugins.adk.formats.criteria import JudgeModelOptions as JudgeModelOptions
from agentest.plugins.adk.formats.eval_set import Blob as Blob
from agentest.plugins.adk.formats.eval_set import Content as Content
from agentest.plugins.adk.formats.eval_set import ConversationScenario as ConversationScenario
from agentest.plugins.adk.formats.eval_set import EvalCase as EvalCase
from agentest.plugins.adk.formats.eval_set import EvalSet as EvalSet
from agentest.plugins.adk.formats.eval_set import FileData as FileData
from agentest.plugins.adk.formats.eval_set import FunctionCall as FunctionCall
from agentest.plugins.adk.formats.eval_set import FunctionResponse as FunctionResponse
from agentest.plugins.adk.formats.eval_set import IntermediateData as IntermediateData
from agentest.plugins.adk.formats.eval_set import Invocation as Invocation
from agentest.plugins.adk.formats.eval_set import Part as Part
from agentest.plugins.adk.formats.eval_set import Rubric as Rubric
from agentest.plugins.adk.formats.eval_set import RubricContent as RubricContent
from agentest.plugins.adk.formats.eval_set import SessionInput as SessionInput
from agentest.plugins.adk.formats.metric_info import Interval as Interval
from agentest.plugins.adk.formats.metric_info import MetricInfo as MetricInfo
from agentest.plugins.adk.formats.metric_info import MetricValueInfo as MetricValueInfo
from agentest.plugins.adk.formats.personas import UserBehavior as UserBehavior
from agentest.plugins.adk.formats.personas import UserPersona as UserPersona
from agentest.plugins.adk.in_process_evaluation import PrebuiltMetrics as PrebuiltMetrics
from agentest.plugins.adk.local_eval_service import EvaluateConfig as EvaluateConfig
from agentest.plugins.adk.local_eval_service import EvaluateRequest as EvaluateRequest
from agentest.plugins.adk.local_eval_service import InferenceRequest as InferenceRequest
from agentest.plugins.adk.local_eval_service import InferenceResult as InferenceResult
from agentest.plugins.adk.local_eval_service import LocalEvalService as LocalEvalService
from agentest.plugins.adk.metrics.evaluator_base import EvalCaseResult as EvalCaseResult
from agentest.plugins.adk.metrics.evaluator_base import EvalMetric as EvalMetric
from agentest.plugins.adk.metrics.evaluator_base import EvalMetricResult as EvalMetricResult
from agentest.plugins.adk.metrics.evaluator_base import (
    EvalMetricResultPerInvocation as EvalMetricResultPerInvocation,
)
from agentest.plugins.adk.metrics.evaluator_base import EvalResult as EvalResult
from agentest.plugins.adk.metrics.evaluator_base import EvalSetResult as EvalSetResult
from agentest.plugins.adk.metrics.evaluator_base import EvalStatus as EvalStatus
from agentest.plugins.adk.metrics.evaluator_base import EvaluationResult as EvaluationResult
from agentest.plugins.adk.metrics.evaluator_base import Evaluator as Evaluator
from agentest.plugins.adk.metrics.evaluator_base import HeldMetric as HeldMetric
from agentest.plugins.adk.metrics.evaluator_base import PerInvocationResult as PerInvocationResult
from agentest.plugins.adk.prebuilt_evaluators import (
    FinalResponseMatchV2Evaluator as FinalResponseMatchV2Evaluator,
)
from agentest.plugins.adk.prebuilt_evaluators import RougeEvaluator as RougeEvaluator
from agentest.plugins.adk.prebuilt_evaluators import SafetyEvaluatorV1 as SafetyEvaluatorV1
from agentest.plugins.adk.prebuilt_evaluators import TrajectoryEvaluator as TrajectoryEvaluator
