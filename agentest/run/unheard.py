"""Bans that held perhaps for no better reason than that nobody would have seen the calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from agentest.config.agent_types import AgentConfig
from agentest.run.plan import Plan, Unit
from agentest.scenarios.names import ToolName, name_matches, name_text
from agentest.sight import Sight
from agentest.support.patterns import PatternTimeout
from agentest.tool_servers.registry import Group

_SHOWN = 3


def unheard_bans(plan: Plan, group: Group) -> Iterator[str]:
    """What to say of tools that are forbidden or limited, and that no mock server of the group has.

    An agent may have tools of its own besides. Where its mock servers alone tell of calls, nobody sees those.
    """
    for name in group.agents:
        agent = plan.agents[name]
        if not _seen_at_mock_servers_alone(agent):
            continue
        units = [unit for unit in plan.units if unit.agent == name]
        banned = {tool for unit in units for tool in _banned(unit)}
        unheard = [tool for tool in banned if not _is_served(tool, group.tools)]
        for tool in sorted(unheard, key=name_text):
            yield _note(name, agent, tool, [unit for unit in units if tool in _banned(unit)])


def _seen_at_mock_servers_alone(agent: AgentConfig) -> bool:
    blind = agent.natural_sight is Sight.UNSEEN and agent.tool_visibility is None
    return bool(blind and agent.mock_servers and not agent.traces)


def _banned(unit: Unit) -> frozenset[ToolName]:
    return frozenset(tool for each in unit.scenario.trajectories for tool in each.banned_tools)


def _is_served(tool: ToolName, served: Iterable[str]) -> bool:
    """Whether a tool is among those served, or one that a glob or a pattern stands for."""
    try:
        return any(name_matches(tool, name) for name in served)
    except PatternTimeout:
        return False


def _note(name: str, agent: AgentConfig, tool: ToolName, units: list[Unit]) -> str:
    shown = ", ".join(f"{u.scenario.name!r} ({u.file}:{u.scenario.line})" for u in units[:_SHOWN])
    more = f" and {len(units) - _SHOWN} more" if len(units) > _SHOWN else ""
    servers = " and ".join(f"`{key}`" for key in agent.beside)
    return (
        f"{shown}{more}: {name_text(tool)!r} is forbidden, limited or put in order, and {servers} of agent "
        f"{name!r} has no such tool, "
        "so its calls are seen by nobody if the agent has it elsewhere. If it is a tool of that server, give "
        "it a mock; if it is the agent's own, `traces: true` shows its calls"
    )
