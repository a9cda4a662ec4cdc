"""Google ADK's evaluation sets: formats, metrics and Python classes."""

from agentest.plugin import Plugin

plugin = Plugin("adk")
for section, name, path, help in (
    ("ADK evaluation sets", "eval", "evaluate", "Run evaluation sets against the agent."),
    ("ADK evaluation sets", "eval-set", "eval_set", "Create evaluation sets, and add cases."),
    ("ADK evaluation sets", "migrate", "migrate", "Convert an old evaluation set."),
):
    plugin.command(name, f"agentest.plugins.adk.command:{path}", section=section, help=help)
plugin.hook(
    "judge prompts of evaluation sets",
    "agentest.plugins.adk.metrics.grader_factory:PROMPTS",
    prompts="evaluation sets",
)
plugin.hook("fixture agentest.eval", "agentest.plugins.adk.in_process_evaluation:evaluate_files")

_PUBLIC_NAMES = {
    "agent_evaluator": "AgentEvaluator EvaluationFailed MigrationNotes find_config_for_test_file",
    "formats.eval_set": "Blob Content ConversationScenario EvalCase EvalSet FileData FunctionCall "
    "FunctionResponse IntermediateData Invocation Part Rubric RubricContent SessionInput",
    "formats.criteria": "JudgeModelOptions",
    "formats.metric_info": "Interval MetricInfo MetricValueInfo",
    "formats.personas": "UserBehavior UserPersona",
    "in_process_evaluation": "PrebuiltMetrics",
    "local_eval_service": "EvaluateConfig EvaluateRequest InferenceRequest InferenceResult LocalEvalService",
    "metrics.evaluator_base": "EvalCaseResult EvalMetric EvalMetricResult EvalMetricResultPerInvocation "
    "EvalResult EvalSetResult EvalStatus EvaluationResult Evaluator HeldMetric PerInvocationResult",
    "prebuilt_evaluators": "FinalResponseMatchV2Evaluator RougeEvaluator SafetyEvaluatorV1 "
    "TrajectoryEvaluator",
}
"""Module → what it gives to `agentest.adk`; `agentest/adk.pyi` has the same for type checkers."""
for module, names in _PUBLIC_NAMES.items():
    for name in names.split():
        plugin.hook(f"agentest.adk.{name}", f"agentest.plugins.adk.{module}:{name}")
for module in ("agent_evaluator", "local_eval_service"):  # google-adk's modules of these names
    plugin.hook(f"agentest.adk.{module}", f"agentest.plugins.adk.{module}")
