"""Agents and models that do as they are told, to test scenarios, metrics and Agentest itself.

    with ScriptedAgent([tool_call("check_availability", date="friday"), "Friday at 9 is free."]) as agent:
        result = run_scenarios([my_scenario], agent=agent, model=ScriptedModel(scores={"helpfulness": 4}))
    assert result.scenarios[0].verdict.passed

Nothing here asks a real model or leaves the machine.
"""

from agentest.testing.agent import AgentAnswer as AgentAnswer
from agentest.testing.agent import Raw as Raw
from agentest.testing.agent import ScriptedAgent as ScriptedAgent
from agentest.testing.agent import tool_call as tool_call
from agentest.testing.model import STOP as STOP
from agentest.testing.model import ScriptedModel as ScriptedModel
from agentest.testing.run import arun_scenarios as arun_scenarios
from agentest.testing.run import run_scenarios as run_scenarios
