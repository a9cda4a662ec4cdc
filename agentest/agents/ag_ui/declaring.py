"""Tools that are declared to the agent, so that it hands their calls over to mocks; and when it does not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from agentest.agents.ag_ui.run import TOLD
from agentest.agents.port import TurnContext
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.config.agents.tools import AgentTool
from agentest.messages import ToolSpec
from agentest.mocks.schemas import any_tool

_WAY = "\n  - "


def declared_tools(ctx: TurnContext, config: AgUiAgent) -> tuple[ToolSpec, ...]:
    """The tools to declare: the scenario's mocks, or those that `client_tools` names.

    What the configuration tells of a tool (`tools`) counts more than what its mock does.
    """
    known = {spec.name: spec for spec in ctx.tools}
    told = {tool.name: tool for tool in config.tools or ()}
    names = tuple(known) if config.client_tools is None else config.client_tools
    return tuple(_told(known.get(name) or any_tool(name), told.get(name)) for name in names)


def _told(spec: ToolSpec, told: AgentTool | None) -> ToolSpec:
    if told is None:
        return spec
    parameters = spec.parameters if told.parameters is None else told.parameters
    return replace(spec, description=told.description or spec.description, parameters=parameters)


def conflict(problem: str, declared: Sequence[ToolSpec]) -> str:
    """What to say, in addition, of a run that was refused at once, with tools declared for it.

    A refusal that names some of them is about these; one that tells of an error alone may be.
    """
    named = [spec.name for spec in declared if re.search(rf"(?<!\w){re.escape(spec.name)}(?!\w)", problem)]
    if named:
        others = [spec.name for spec in declared if spec.name not in named]
        return (
            f"; {_tools(named)}: declared to the agent since the scenario mocks it. If the agent has it "
            f"itself: take it from the agent, or set `client_tools: {json.dumps(others)}` and leave the mock "
            "out (the agent's own tool then runs)"
        )
    if declared and TOLD in problem:
        return (
            f"; declared to it: {_tools([spec.name for spec in declared])}. If it has one of that name "
            "itself, `client_tools` says which to declare"
        )
    return ""


def bypassed(agent: str, names: Iterable[str]) -> str:
    """What is wrong where the agent has run tools of its own that the scenario mocks."""
    tools = _tools(list(dict.fromkeys(names)))
    ways = (
        "if the real tool may run: leave its mock out (`tools`, --mocks) and its name out of `client_tools`",
        "if it must not: have the agent hand the call over (take the tool from its own; ag-ui-adk: "
        "AGUIToolset; LangGraph: bind the tools of the state)",
        "if none of its tools can be mocked: tool_visibility: reported says so before a run begins",
    )
    return (
        f"agent {agent!r} ran {tools} itself: the scenario's mock was ignored, and the real tool ran. Ways "
        f"out:{''.join(f'{_WAY}{way}' for way in ways)}"
    )


def not_begun(agent: str, names: Sequence[str]) -> str:
    """Why a conversation was not begun, after another one has shown that mocks are ignored."""
    return (
        f"this conversation was not begun: in another one agent {agent!r} ran {_tools(names)} itself, which "
        "the scenario mocks, and the real tool would run again. That conversation says what can be done "
        "(`client_tools`)"
    )


def _tools(names: Sequence[str]) -> str:
    return f"tool{'' if len(names) == 1 else 's'} {', '.join(map(repr, names))}"
