"""Scripted agents and models, and running from Python, to test scenarios, metrics and Agentest itself.

    with ScriptedAgent([tool_call("check_availability", date="friday"), "Friday at 9 is free."]) as agent:
        result = run_scenarios([my_scenario], agent=agent, model=ScriptedModel(scores={"helpfulness": 4}))
    result.check()

Scripted agents and models do not call a real model or leave the machine.
"""

from agentest.config.agents.base import AnyAgent as AnyAgent
from agentest.domain.events import ConversationFinished as ConversationFinished
from agentest.domain.events import ConversationHeld as ConversationHeld
from agentest.domain.events import ConversationStarted as ConversationStarted
from agentest.domain.events import Event as Event
from agentest.domain.events import ExplorationProgressed as ExplorationProgressed
from agentest.domain.events import Noted as Noted
from agentest.domain.events import RunFinished as RunFinished
from agentest.domain.events import RunStarted as RunStarted
from agentest.domain.events import ScenarioAmended as ScenarioAmended
from agentest.domain.events import ScenarioFinished as ScenarioFinished
from agentest.domain.events import ScenarioStarted as ScenarioStarted
from agentest.domain.events import TimePassed as TimePassed
from agentest.domain.events import TurnFinished as TurnFinished
from agentest.domain.results import RunResult as RunResult
from agentest.domain.results import RunWarning as RunWarning
from agentest.domain.tool_visibility import ToolVisibility as ToolVisibility
from agentest.models.port import CallKey as CallKey
from agentest.models.port import ChatModel as ChatModel
from agentest.models.port import ChatReply as ChatReply
from agentest.models.port import ChatRequest as ChatRequest
from agentest.runner.plan import Options as Options
from agentest.runner.session import Stop as Stop
from agentest.testing.run import AgentLike as AgentLike
from agentest.testing.run import CheckedRun as CheckedRun
from agentest.testing.run import Runner as Runner
from agentest.testing.run import RunnerArguments as RunnerArguments
from agentest.testing.run import ScenarioErrored as ScenarioErrored
from agentest.testing.run import ScenarioFailed as ScenarioFailed
from agentest.testing.run import arun_scenarios as arun_scenarios
from agentest.testing.run import run_scenarios as run_scenarios
from agentest.testing.scripted import STOP as STOP
from agentest.testing.scripted import AgentAnswer as AgentAnswer
from agentest.testing.scripted import Raw as Raw
from agentest.testing.scripted import ScriptedAgent as ScriptedAgent
from agentest.testing.scripted import ScriptedModel as ScriptedModel
from agentest.testing.scripted import tool_call as tool_call
