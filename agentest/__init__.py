"""Agentest: a test runner for AI agents, black-box over HTTP.

    from agentest import scenario, sequence, call

The types that annotations in mocks, metrics, handlers and tests need are here too.
The names are loaded when they are first used, so that `agentest --help` costs next to nothing.
PYTEST_DONT_REWRITE: a program that has imported us may run pytest without being warned of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentest.version import __version__ as __version__

if TYPE_CHECKING:
    from agentest import mocks as mocks
    from agentest.agents.port import TurnContext as TurnContext
    from agentest.config.agents.tools import AgentTool as AgentTool
    from agentest.config.config import Config as Config
    from agentest.config.definition import ConfigSettings as ConfigSettings
    from agentest.config.definition import RunSettings as RunSettings
    from agentest.config.definition import define_config as define_config
    from agentest.conversation.simulated_user import SimulatedUser as SimulatedUser
    from agentest.conversation.user import NextMessage as NextMessage
    from agentest.domain.attacks import Attack as Attack
    from agentest.domain.attacks import attack as attack
    from agentest.domain.end_reason import Ending as Ending
    from agentest.domain.events import Reporter as Reporter
    from agentest.domain.faults import ChangedAnswers as ChangedAnswers
    from agentest.domain.faults import Fault as Fault
    from agentest.domain.faults import fault as fault
    from agentest.domain.injections import Injection as Injection
    from agentest.domain.injections import injection as injection
    from agentest.domain.messages import Session as Session
    from agentest.domain.results import CheckResult as CheckResult
    from agentest.domain.results import ConversationResult as ConversationResult
    from agentest.domain.results import CriterionOutcome as CriterionOutcome
    from agentest.domain.results import CriterionResult as CriterionResult
    from agentest.domain.results import Evidence as Evidence
    from agentest.domain.results import GoalOutcome as GoalOutcome
    from agentest.domain.results import LabelledFailure as LabelledFailure
    from agentest.domain.results import ModelUsage as ModelUsage
    from agentest.domain.results import Reason as Reason
    from agentest.domain.results import ReasonKind as ReasonKind
    from agentest.domain.results import RunResult as RunResult
    from agentest.domain.results import RunWarning as RunWarning
    from agentest.domain.results import ScenarioResult as ScenarioResult
    from agentest.domain.results import Score as Score
    from agentest.domain.results import Severity as Severity
    from agentest.domain.results import Skipped as Skipped
    from agentest.domain.results import SlowTurn as SlowTurn
    from agentest.domain.results import Status as Status
    from agentest.domain.results import Totals as Totals
    from agentest.domain.results import TrajectoryResult as TrajectoryResult
    from agentest.domain.results import TrajectoryScore as TrajectoryScore
    from agentest.domain.results import TurnEvaluation as TurnEvaluation
    from agentest.domain.results import UniqueError as UniqueError
    from agentest.domain.results import Unscored as Unscored
    from agentest.domain.results import Verdict as Verdict
    from agentest.domain.results import VerdictWarning as VerdictWarning
    from agentest.domain.results import WarningCode as WarningCode
    from agentest.domain.transcript import Conversation as Conversation
    from agentest.domain.transcript import Failure as Failure
    from agentest.domain.transcript import TimeSpent as TimeSpent
    from agentest.domain.transcript import ToolCall as ToolCall
    from agentest.domain.transcript import Turn as Turn
    from agentest.domain.transcript import Usage as Usage
    from agentest.judging.custom_metrics import ConversationInput as ConversationInput
    from agentest.judging.custom_metrics import ConversationMetric as ConversationMetric
    from agentest.judging.custom_metrics import Metric as Metric
    from agentest.judging.custom_metrics import MetricModel as MetricModel
    from agentest.judging.custom_metrics import QualitativeMetric as QualitativeMetric
    from agentest.judging.custom_metrics import QuantitativeMetric as QuantitativeMetric
    from agentest.judging.custom_metrics import ScoreInput as ScoreInput
    from agentest.mocks.answering import MockContext as MockContext
    from agentest.mocks.binding import MockSequence as MockSequence
    from agentest.mocks.calls import HttpResponse as HttpResponse
    from agentest.mocks.resolver import MockResolver as MockResolver
    from agentest.plugins.explore.claims import claims_of_success as claims_of_success
    from agentest.report.console.reporter import ConsoleReporter as ConsoleReporter
    from agentest.report.github import GitHubActionsReporter as GitHubActionsReporter
    from agentest.report.json import JsonReporter as JsonReporter
    from agentest.scenarios.calls import AnyOf as AnyOf
    from agentest.scenarios.calls import CallOrder as CallOrder
    from agentest.scenarios.calls import ExpectedCall as ExpectedCall
    from agentest.scenarios.definition import scenario as scenario
    from agentest.scenarios.definition import sequence as sequence
    from agentest.scenarios.matchers.comparison import Matcher as Matcher
    from agentest.scenarios.matchers.numbers import approx as approx
    from agentest.scenarios.matchers.numbers import number as number
    from agentest.scenarios.matchers.values import absent as absent
    from agentest.scenarios.matchers.values import each as each
    from agentest.scenarios.matchers.values import instance as instance
    from agentest.scenarios.matchers.values import one_of as one_of
    from agentest.scenarios.matchers.values import optional as optional
    from agentest.scenarios.matchers.values import text as text
    from agentest.scenarios.model import Criterion as Criterion
    from agentest.scenarios.model import Persona as Persona
    from agentest.scenarios.model import Scenario as Scenario
    from agentest.scenarios.model import ScriptedTurn as ScriptedTurn
    from agentest.scenarios.personas import persona as persona
    from agentest.scenarios.trajectory import Trajectory as Trajectory
    from agentest.scenarios.trajectory_parser import any_of as any_of
    from agentest.scenarios.trajectory_parser import before as before
    from agentest.scenarios.trajectory_parser import call as call
    from agentest.scenarios.trajectory_parser import exactly as exactly
    from agentest.scenarios.trajectory_parser import never_after as never_after
    from agentest.support.errors import AgentestError as AgentestError
    from agentest.support.errors import ConfigError as ConfigError
    from agentest.support.errors import MockError as MockError
    from agentest.support.errors import ModelError as ModelError
    from agentest.support.errors import ScenarioError as ScenarioError
    from agentest.support.errors import ToolError as ToolError
    from agentest.support.errors import UsageError as UsageError
    from agentest.testing.run import Runner as Runner
    from agentest.trajectory.matcher import TrajectoryMatcher as TrajectoryMatcher

_HOME = {
    "AgentTool": "agentest.config.agents.tools",
    "AgentestError": "agentest.support.errors",
    "Attack": "agentest.domain.attacks",
    "attack": "agentest.domain.attacks",
    "AnyOf": "agentest.scenarios.calls",
    "CallOrder": "agentest.scenarios.calls",
    "ChangedAnswers": "agentest.domain.faults",
    "CheckResult": "agentest.domain.results",
    "Config": "agentest.config.config",
    "ConfigError": "agentest.support.errors",
    "ConfigSettings": "agentest.config.definition",
    "ConsoleReporter": "agentest.report.console.reporter",
    "Conversation": "agentest.domain.transcript",
    "ConversationInput": "agentest.judging.custom_metrics",
    "ConversationMetric": "agentest.judging.custom_metrics",
    "ConversationResult": "agentest.domain.results",
    "Criterion": "agentest.scenarios.model",
    "CriterionOutcome": "agentest.domain.results",
    "CriterionResult": "agentest.domain.results",
    "Ending": "agentest.domain.end_reason",
    "Evidence": "agentest.domain.results",
    "ExpectedCall": "agentest.scenarios.calls",
    "Failure": "agentest.domain.transcript",
    "Fault": "agentest.domain.faults",
    "GitHubActionsReporter": "agentest.report.github",
    "GoalOutcome": "agentest.domain.results",
    "HttpResponse": "agentest.mocks.calls",
    "Injection": "agentest.domain.injections",
    "JsonReporter": "agentest.report.json",
    "Persona": "agentest.scenarios.model",
    "persona": "agentest.scenarios.personas",
    "LabelledFailure": "agentest.domain.results",
    "Matcher": "agentest.scenarios.matchers.comparison",
    "Metric": "agentest.judging.custom_metrics",
    "MetricModel": "agentest.judging.custom_metrics",
    "MockContext": "agentest.mocks.answering",
    "MockError": "agentest.support.errors",
    "MockResolver": "agentest.mocks.resolver",
    "MockSequence": "agentest.mocks.binding",
    "ModelError": "agentest.support.errors",
    "ModelUsage": "agentest.domain.results",
    "NextMessage": "agentest.conversation.user",
    "QualitativeMetric": "agentest.judging.custom_metrics",
    "QuantitativeMetric": "agentest.judging.custom_metrics",
    "Reason": "agentest.domain.results",
    "ReasonKind": "agentest.domain.results",
    "Reporter": "agentest.domain.events",
    "RunResult": "agentest.domain.results",
    "RunSettings": "agentest.config.definition",
    "RunWarning": "agentest.domain.results",
    "Runner": "agentest.testing.run",
    "Scenario": "agentest.scenarios.model",
    "ScenarioError": "agentest.support.errors",
    "ScenarioResult": "agentest.domain.results",
    "Score": "agentest.domain.results",
    "ScoreInput": "agentest.judging.custom_metrics",
    "ScriptedTurn": "agentest.scenarios.model",
    "Session": "agentest.domain.messages",
    "Severity": "agentest.domain.results",
    "SimulatedUser": "agentest.conversation.simulated_user",
    "Skipped": "agentest.domain.results",
    "SlowTurn": "agentest.domain.results",
    "Status": "agentest.domain.results",
    "TimeSpent": "agentest.domain.transcript",
    "ToolCall": "agentest.domain.transcript",
    "ToolError": "agentest.support.errors",
    "Totals": "agentest.domain.results",
    "Trajectory": "agentest.scenarios.trajectory",
    "TrajectoryMatcher": "agentest.trajectory.matcher",
    "TrajectoryResult": "agentest.domain.results",
    "TrajectoryScore": "agentest.domain.results",
    "Turn": "agentest.domain.transcript",
    "TurnContext": "agentest.agents.port",
    "TurnEvaluation": "agentest.domain.results",
    "UniqueError": "agentest.domain.results",
    "Unscored": "agentest.domain.results",
    "Usage": "agentest.domain.transcript",
    "UsageError": "agentest.support.errors",
    "Verdict": "agentest.domain.results",
    "VerdictWarning": "agentest.domain.results",
    "WarningCode": "agentest.domain.results",
    "absent": "agentest.scenarios.matchers.values",
    "any_of": "agentest.scenarios.trajectory_parser",
    "approx": "agentest.scenarios.matchers.numbers",
    "before": "agentest.scenarios.trajectory_parser",
    "call": "agentest.scenarios.trajectory_parser",
    "claims_of_success": "agentest.plugins.explore.claims",
    "define_config": "agentest.config.definition",
    "each": "agentest.scenarios.matchers.values",
    "exactly": "agentest.scenarios.trajectory_parser",
    "fault": "agentest.domain.faults",
    "injection": "agentest.domain.injections",
    "instance": "agentest.scenarios.matchers.values",
    "never_after": "agentest.scenarios.trajectory_parser",
    "number": "agentest.scenarios.matchers.numbers",
    "one_of": "agentest.scenarios.matchers.values",
    "optional": "agentest.scenarios.matchers.values",
    "scenario": "agentest.scenarios.definition",
    "sequence": "agentest.scenarios.definition",
    "text": "agentest.scenarios.matchers.values",
}
_RENAMED = {"ErrorGroup": "UniqueError", "TurnInput": "ScoreInput"}
"""Maps a former name to the current one; it works with a warning until the next version."""
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "mocks":  # one line for tools of frameworks: agentest.mocks.langchain(tools)
        return import_module("agentest.mocks")
    if name in _RENAMED:
        from warnings import warn

        warn(f"agentest.{name} is now agentest.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return getattr(import_module("agentest"), _RENAMED[name])
    if name not in _HOME:
        raise AttributeError(f"module 'agentest' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
