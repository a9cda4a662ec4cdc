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
    from agentest.endings import Ending as Ending
    from agentest.errors import AgentestError as AgentestError
    from agentest.errors import ConfigError as ConfigError
    from agentest.errors import MockError as MockError
    from agentest.errors import ModelError as ModelError
    from agentest.errors import ScenarioError as ScenarioError
    from agentest.errors import ToolError as ToolError
    from agentest.errors import UsageError as UsageError
    from agentest.evaluate.custom import ConversationMetric as ConversationMetric
    from agentest.evaluate.custom import Metric as Metric
    from agentest.evaluate.custom import MetricModel as MetricModel
    from agentest.evaluate.custom import QualitativeMetric as QualitativeMetric
    from agentest.evaluate.custom import QuantitativeMetric as QuantitativeMetric
    from agentest.evaluate.inputs import ConversationInput as ConversationInput
    from agentest.evaluate.inputs import TurnInput as TurnInput
    from agentest.matchers.comparison import Matcher as Matcher
    from agentest.matchers.instances import instance as instance
    from agentest.matchers.quantities import approx as approx
    from agentest.matchers.quantities import number as number
    from agentest.matchers.texts import text as text
    from agentest.matchers.values import absent as absent
    from agentest.matchers.values import each as each
    from agentest.matchers.values import one_of as one_of
    from agentest.matchers.values import optional as optional
    from agentest.mocks.answering import MockContext as MockContext
    from agentest.mocks.binding import MockSequence as MockSequence
    from agentest.mocks.http_response import HttpResponse as HttpResponse
    from agentest.results import CheckResult as CheckResult
    from agentest.results import ConversationResult as ConversationResult
    from agentest.results import CriterionOutcome as CriterionOutcome
    from agentest.results import CriterionResult as CriterionResult
    from agentest.results import ErrorGroup as ErrorGroup
    from agentest.results import Evidence as Evidence
    from agentest.results import GoalOutcome as GoalOutcome
    from agentest.results import LabelledFailure as LabelledFailure
    from agentest.results import ModelUsage as ModelUsage
    from agentest.results import Reason as Reason
    from agentest.results import ReasonKind as ReasonKind
    from agentest.results import RunResult as RunResult
    from agentest.results import RunWarning as RunWarning
    from agentest.results import ScenarioResult as ScenarioResult
    from agentest.results import Score as Score
    from agentest.results import Severity as Severity
    from agentest.results import Skipped as Skipped
    from agentest.results import SlowTurn as SlowTurn
    from agentest.results import Status as Status
    from agentest.results import Totals as Totals
    from agentest.results import TrajectoryResult as TrajectoryResult
    from agentest.results import TrajectoryScore as TrajectoryScore
    from agentest.results import TurnEvaluation as TurnEvaluation
    from agentest.results import Unscored as Unscored
    from agentest.results import Verdict as Verdict
    from agentest.results import VerdictWarning as VerdictWarning
    from agentest.results import WarningCode as WarningCode
    from agentest.scenarios.calls import AnyOf as AnyOf
    from agentest.scenarios.calls import CallOrder as CallOrder
    from agentest.scenarios.calls import ExpectedCall as ExpectedCall
    from agentest.scenarios.criteria import Criterion as Criterion
    from agentest.scenarios.definition import scenario as scenario
    from agentest.scenarios.definition import sequence as sequence
    from agentest.scenarios.model import Scenario as Scenario
    from agentest.scenarios.model import ScriptedTurn as ScriptedTurn
    from agentest.scenarios.session import Session as Session
    from agentest.scenarios.trajectory import Trajectory as Trajectory
    from agentest.scenarios.words import any_of as any_of
    from agentest.scenarios.words import before as before
    from agentest.scenarios.words import call as call
    from agentest.scenarios.words import exactly as exactly
    from agentest.scenarios.words import never_after as never_after
    from agentest.transcript import Conversation as Conversation
    from agentest.transcript import Failure as Failure
    from agentest.transcript import TimeSpent as TimeSpent
    from agentest.transcript import ToolCall as ToolCall
    from agentest.transcript import Turn as Turn
    from agentest.transcript import Usage as Usage

_HOME = {
    "AgentTool": "agentest.config.agents.tools",
    "AgentestError": "agentest.errors",
    "AnyOf": "agentest.scenarios.calls",
    "CallOrder": "agentest.scenarios.calls",
    "CheckResult": "agentest.results",
    "Config": "agentest.config.config",
    "ConfigError": "agentest.errors",
    "Conversation": "agentest.transcript",
    "ConversationInput": "agentest.evaluate.inputs",
    "ConversationMetric": "agentest.evaluate.custom",
    "ConversationResult": "agentest.results",
    "Criterion": "agentest.scenarios.criteria",
    "CriterionOutcome": "agentest.results",
    "CriterionResult": "agentest.results",
    "Ending": "agentest.endings",
    "ErrorGroup": "agentest.results",
    "Evidence": "agentest.results",
    "ExpectedCall": "agentest.scenarios.calls",
    "Failure": "agentest.transcript",
    "GoalOutcome": "agentest.results",
    "HttpResponse": "agentest.mocks.http_response",
    "LabelledFailure": "agentest.results",
    "Matcher": "agentest.matchers.comparison",
    "Metric": "agentest.evaluate.custom",
    "MetricModel": "agentest.evaluate.custom",
    "MockContext": "agentest.mocks.answering",
    "MockSequence": "agentest.mocks.binding",
    "MockError": "agentest.errors",
    "ModelError": "agentest.errors",
    "ModelUsage": "agentest.results",
    "QualitativeMetric": "agentest.evaluate.custom",
    "QuantitativeMetric": "agentest.evaluate.custom",
    "Reason": "agentest.results",
    "ReasonKind": "agentest.results",
    "RunResult": "agentest.results",
    "RunWarning": "agentest.results",
    "Scenario": "agentest.scenarios.model",
    "ScenarioError": "agentest.errors",
    "ScenarioResult": "agentest.results",
    "Score": "agentest.results",
    "ScriptedTurn": "agentest.scenarios.model",
    "Session": "agentest.scenarios.session",
    "Severity": "agentest.results",
    "Skipped": "agentest.results",
    "SlowTurn": "agentest.results",
    "Status": "agentest.results",
    "TimeSpent": "agentest.transcript",
    "ToolCall": "agentest.transcript",
    "ToolError": "agentest.errors",
    "Totals": "agentest.results",
    "Trajectory": "agentest.scenarios.trajectory",
    "TrajectoryResult": "agentest.results",
    "TrajectoryScore": "agentest.results",
    "Turn": "agentest.transcript",
    "TurnContext": "agentest.agents.port",
    "TurnEvaluation": "agentest.results",
    "TurnInput": "agentest.evaluate.inputs",
    "Unscored": "agentest.results",
    "Usage": "agentest.transcript",
    "UsageError": "agentest.errors",
    "Verdict": "agentest.results",
    "VerdictWarning": "agentest.results",
    "WarningCode": "agentest.results",
    "absent": "agentest.matchers.values",
    "any_of": "agentest.scenarios.words",
    "approx": "agentest.matchers.quantities",
    "before": "agentest.scenarios.words",
    "call": "agentest.scenarios.words",
    "each": "agentest.matchers.values",
    "exactly": "agentest.scenarios.words",
    "instance": "agentest.matchers.instances",
    "never_after": "agentest.scenarios.words",
    "number": "agentest.matchers.quantities",
    "one_of": "agentest.matchers.values",
    "optional": "agentest.matchers.values",
    "scenario": "agentest.scenarios.definition",
    "sequence": "agentest.scenarios.definition",
    "text": "agentest.matchers.texts",
}
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "mocks":  # one line for tools of frameworks: agentest.mocks.langchain(tools)
        return import_module("agentest.mocks")
    if name not in _HOME:
        raise AttributeError(f"module 'agentest' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value
