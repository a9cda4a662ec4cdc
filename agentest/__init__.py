"""Agentest: a test runner for AI agents, black-box over HTTP.

    from agentest import scenario, sequence, call

The types that annotations in mocks, metrics, handlers and tests need are here too.
The names are loaded when they are first used, so that `agentest --help` costs next to nothing.
PYTEST_DONT_REWRITE: a program that has imported us may run pytest without being warned of that.
"""

from __future__ import annotations

from agentest.version import __version__ as __version__

_NAMES = {
    "agents.port": "TurnContext",
    "config.agents.tools": "AgentTool",
    "config.config": "Config",
    "config.file": "ConfigSettings RunSettings define_config",
    "conversation.simulated_user": "SimulatedUser",
    "conversation.user": "NextMessage",
    "domain.changes": "Attack ChangedAnswers Fault Injection attack fault injection",
    "domain.end_reason": "Ending",
    "domain.events": "Reporter",
    "domain.messages": "Session",
    "domain.results": (
        "CheckResult ConversationResult CriterionOutcome CriterionResult Evidence GoalOutcome "
        "LabelledFailure ModelUsage Reason ReasonKind RunResult RunWarning ScenarioResult Score Severity "
        "Skipped SlowTurn Status Totals TrajectoryResult TrajectoryScore TurnEvaluation UniqueError "
        "Unscored Verdict VerdictWarning WarningCode"
    ),
    "domain.tool_visibility": "ToolOutcome",
    "domain.transcript": "Conversation Failure TimeSpent ToolCall Turn UnfinishedTurn Usage",
    "judging.custom_metrics": (
        "ConversationInput ConversationMetric Metric MetricModel QualitativeMetric QuantitativeMetric "
        "ScoreInput"
    ),
    "mocks.answering": "MockContext",
    "mocks.binding": "MockSequence",
    "mocks.calls": "HttpResponse",
    "mocks.resolver": "MockResolver",
    "report.console.reporter": "ConsoleReporter",
    "report.github": "GitHubActionsReporter",
    "report.json": "JsonReporter",
    "scenarios.definition": "scenario sequence",
    "scenarios.matchers.comparison": "Matcher",
    "scenarios.matchers.numbers": "approx number",
    "scenarios.matchers.values": "absent each instance one_of optional text",
    "scenarios.model": "Criterion Persona Scenario ScriptedTurn",
    "scenarios.options": "persona",
    "scenarios.trajectory": "AnyOf CallOrder ExpectedCall Trajectory",
    "scenarios.trajectory_parser": "any_of before call exactly never_after",
    "support.errors": "AgentestError ConfigError MockError ModelError ScenarioError ToolError UsageError",
    "testing.run": "Runner",
    "trajectory.matcher": "TrajectoryMatcher",
}
"""Module → the names of it that are public. `__init__.pyi` has them for type checkers."""
_HOME = {name: f"agentest.{module}" for module, names in _NAMES.items() for name in names.split()}

_ELSEWHERE = {
    "KnowledgeItem": 'write `knowledge` as texts, or as {"content": text}',
    "AgentBuilder": 'describe the agent in the configuration: `define_config(agent={"endpoint": URL})`',
    "InMemoryRunner": "run scenarios with `Runner`",
    "ToolCallRecord": "tool calls of a conversation are values of `ToolCall`",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name == "mocks":  # one line for tools of frameworks: agentest.mocks.langchain(tools)
        return import_module("agentest.mocks")
    if name in _HOME:
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value
    from agentest.plugin import public_name

    value = public_name(__name__, name, "explore", **_ELSEWHERE)
    return sorted([*_HOME, *value, "__version__"]) if name == "__all__" else value
