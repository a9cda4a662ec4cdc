"""Agents and models that follow a script, to test scenarios, metrics and Agentest itself.

    with ScriptedAgent([tool_call("check_availability", date="friday"), "Friday at 9 is free."]) as agent:
        result = run_scenarios([my_scenario], agent=agent, model=ScriptedModel(scores={"helpfulness": 4}))
    result.check()

Nothing here asks a real model or leaves the machine.
"""

from agentest.config.agents.base import AnyAgent as AnyAgent
from agentest.events import ConversationFinished as ConversationFinished
from agentest.events import ConversationHeld as ConversationHeld
from agentest.events import ConversationStarted as ConversationStarted
from agentest.events import Event as Event
from agentest.events import Noted as Noted
from agentest.events import RunFinished as RunFinished
from agentest.events import RunStarted as RunStarted
from agentest.events import ScenarioAmended as ScenarioAmended
from agentest.events import ScenarioFinished as ScenarioFinished
from agentest.events import ScenarioStarted as ScenarioStarted
from agentest.events import TimePassed as TimePassed
from agentest.events import TurnFinished as TurnFinished
from agentest.llm.port import CallKey as CallKey
from agentest.llm.port import ChatModel as ChatModel
from agentest.llm.port import ChatReply as ChatReply
from agentest.llm.port import ChatRequest as ChatRequest
from agentest.results import RunResult as RunResult
from agentest.results import RunWarning as RunWarning
from agentest.run.plan import Options as Options
from agentest.run.stop import Stop as Stop
from agentest.sight import Sight as Sight
from agentest.testing.agent import AgentAnswer as AgentAnswer
from agentest.testing.agent import Raw as Raw
from agentest.testing.agent import ScriptedAgent as ScriptedAgent
from agentest.testing.agent import tool_call as tool_call
from agentest.testing.checked import CheckedRun as CheckedRun
from agentest.testing.checked import ScenarioErrored as ScenarioErrored
from agentest.testing.checked import ScenarioFailed as ScenarioFailed
from agentest.testing.model import STOP as STOP
from agentest.testing.model import ScriptedModel as ScriptedModel
from agentest.testing.run import AgentLike as AgentLike
from agentest.testing.run import arun_scenarios as arun_scenarios
from agentest.testing.run import run_scenarios as run_scenarios
