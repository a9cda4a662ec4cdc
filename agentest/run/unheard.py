"""Bans that held perhaps for no better reason than that nobody would have seen the calls."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.config.agent_types import AgentConfig
from agentest.run.plan import Plan, Unit
from agentest.sight import Sight
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
        for tool in sorted(banned - group.tools):
            yield _note(name, agent, tool, [unit for unit in units if tool in _banned(unit)])


def _seen_at_mock_servers_alone(agent: AgentConfig) -> bool:
    blind = agent.natural_sight is Sight.UNSEEN and agent.tool_visibility is None
    return bool(blind and agent.mock_servers and not agent.traces)


def _banned(unit: Unit) -> frozenset[str]:
    return frozenset().union(*(each.banned_tools for each in unit.scenario.trajectories))


def _note(name: str, agent: AgentConfig, tool: str, units: list[Unit]) -> str:
    shown = ", ".join(f"{u.scenario.name!r} ({u.file}:{u.scenario.line})" for u in units[:_SHOWN])
    more = f" and {len(units) - _SHOWN} more" if len(units) > _SHOWN else ""
    servers = " and ".join(f"`{key}`" for key in agent.beside)
    return (
        f"{shown}{more}: {tool!r} is forbidden or limited, and {servers} of agent {name!r} has no such tool, "
        "so its calls are seen by nobody if the agent has it elsewhere. If it is a tool of that server, give "
        "it a mock; if it is the agent's own, `traces: true` shows its calls"
    )
