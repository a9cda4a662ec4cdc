"""Tools that are declared to the agent, so that it hands their calls over to mocks; and when it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from agentest.agents.ag_ui.run import TOLD
from agentest.agents.own_tools import OwnTools, named_tools
from agentest.agents.port import TurnContext
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.config.agents.tools import AgentTool
from agentest.domain.messages import ToolSpec
from agentest.mocks.schemas import any_tool

_TOO_MANY = re.compile(r"(?i)\bconcurren|\btoo many (?:runs|requests|sessions|executions)")


def own_tools(agent: str) -> OwnTools:
    """What an agent behind AG-UI was seen to run itself."""
    return OwnTools(
        agent,
        handed_over="have the agent hand the call over (take the tool from its own; ag-ui-adk: AGUIToolset; "
        "LangGraph: bind the tools of the state)",
        left_out=" and its name in `client_tools`",
    )


def declared_tools(ctx: TurnContext, config: AgUiAgent) -> tuple[ToolSpec, ...]:
    """The tools to declare: those that `client_tools` names; else the scenario's mocks, but none where mock
    servers answer in the place of the agent's own tools: two of one name are a conflict.

    What the configuration tells of a tool (`tools`) counts more than what its mock does.
    """
    known = {spec.name: spec for spec in ctx.tools}
    told = {tool.name: tool for tool in config.tools or ()}
    by_default = () if config.mock_servers else tuple(known)
    names = by_default if config.client_tools is None else config.client_tools
    return tuple(_told(known.get(name) or any_tool(name), told.get(name)) for name in names)


def _told(spec: ToolSpec, told: AgentTool | None) -> ToolSpec:
    if told is None:
        return spec
    parameters = spec.parameters if told.parameters is None else told.parameters
    return replace(spec, description=told.description or spec.description, parameters=parameters)


def conflict(problem: str, declared: Sequence[ToolSpec]) -> str:
    """What to say, in addition, of a run that was refused at once, with tools declared for it.

    A refusal that names some of them is about these; one that tells of an error alone may be, but for one
    of too many runs at once.
    """
    named = [spec.name for spec in declared if re.search(rf"(?<!\w){re.escape(spec.name)}(?!\w)", problem)]
    if named:
        others = [spec.name for spec in declared if spec.name not in named]
        return (
            f"; {named_tools(named)}: declared to the agent since the scenario mocks it. If the agent has it "
            f"itself: take it from the agent, or set `client_tools: {json.dumps(others)}` and leave the mock "
            "out (the agent's own tool then runs)"
        )
    if _TOO_MANY.search(problem):
        return "; it takes no more at once: lower `concurrency` (--concurrency)"
    if declared and TOLD in problem:
        return (
            f"; declared to it: {named_tools([spec.name for spec in declared])}. If it has one of that name "
            "itself, `client_tools` says which to declare"
        )
    return ""
