"""What a run knows of a unit's agent from its settings: how it is seen, and what judges are told of it."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.config.agent_types import sight_of
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.over_http import HttpAgent
from agentest.config.ways_to_see import TELLING, ways_to_see, ways_to_see_all, ways_to_see_untold
from agentest.domain.tool_visibility import Sight
from agentest.runner.known_tools import ServedBeside, ToolsOfAgent

EITHER_SIDE = ("responses", "ag_ui", "ai_sdk", "langgraph", "a2a")
"""Types whose protocol lets tools be the caller's or the agent's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutAgent:
    """What evaluation and order of a run have to know of an agent."""

    sight: Sight = Sight.RETURNED
    """How its tool calls come to be known."""
    blind: str | None = None
    """Why its calls, or some of them, cannot be seen, and how they could be; None: all can."""
    untold: str | None = None
    """The same where a mock server answered calls, and the agent reported none."""
    told_counts: bool = True
    """Whether answers that tell of calls make it seen. Not where the configuration says that it is unseen:
    it may tell of some of its calls alone."""
    line: str | None = None
    """The line in which its conversations wait, as one alone may be under way; None: they need not."""
    mock_servers: tuple[str, ...] = ()
    """The keys of its mock servers."""
    served: bool = False
    """Whether servers of ours stand beside it, for its tools or its traces."""
    mocks_inside: bool = False
    """Whether it is said to run in this process with tools that our mocks answer there."""
    tools_on_either_side: bool = False
    """Whether its protocol lets it hand a call over or make it itself: only a run can find out which."""
    spans_count: bool = False
    """Whether its traces tell of calls that its protocol does not."""
    seen_by_spans_alone: bool = False
    """Whether nothing else does, mock servers neither."""
    instructions: str = ""
    """What it was told to do, for judges; "": that is not known."""
    tools: ToolsOfAgent = ToolsOfAgent()  # noqa: RUF009 - it holds nothing that could change
    """What is known of its tools, for judges."""
    tool_names: frozenset[str] = frozenset()
    """The names of those that the configuration names."""
    unstreamed: str = ""
    """Why the time to the first token of a reply is not known, where it is not."""


def about_agent(name: str, agent: AnyAgent, beside: ServedBeside | None = None) -> AboutAgent:
    """What the settings of an agent say.

    Args:
        beside: its mock servers, of whose tools judges are told.
    """
    sight = sight_of(agent)
    return AboutAgent(
        sight=sight,
        blind=_why_hidden(name, agent),
        untold=_why_untold(name, agent),
        told_counts=agent.tool_visibility is None,
        line=_line(name, agent) if agent.exclusive else None,
        mock_servers=tuple(key for key in agent.beside if key != "traces"),
        served=bool(agent.beside),
        mocks_inside=agent.in_process and agent.tool_visibility is Sight.RETURNED,
        tools_on_either_side=agent.type in EITHER_SIDE,
        spans_count=_spans_count(agent),
        seen_by_spans_alone=_spans_count(agent) and not agent.mock_servers,
        instructions=told_instructions(agent),
        tools=tools_of(agent, beside),
        tool_names=frozenset(tool.name for tool in agent.tools or ()),
        unstreamed=_unstreamed(agent),
    )


def _why_hidden(name: str, agent: AnyAgent) -> str | None:
    match sight_of(agent):
        case Sight.UNSEEN:
            return ways_to_see(name, agent)
        case Sight.PARTIAL:
            return ways_to_see_all(name, agent)
    return None


def _why_untold(name: str, agent: AnyAgent) -> str | None:
    """None where the configuration says how calls are seen, or nothing could show that some are not."""
    if not agent.mock_servers or agent.tool_visibility is not None or sight_of(agent) is Sight.UNSEEN:
        return None
    if agent.type == "custom" and agent.tells_own_calls:
        return None  # the calls of an agent object come to us, not those that its clients send
    return ways_to_see_untold(name, agent)


def told_instructions(agent: AnyAgent) -> str:
    """What the agent was told: by the configuration for judges, else by what its requests bring."""
    return (agent.instructions or agent.sent_instructions).strip()


def tools_of(agent: AnyAgent, beside: ServedBeside | None = None) -> ToolsOfAgent:
    """What the settings of an agent tell of its tools."""
    configured = None if agent.tools is None else tuple(agent.tools)
    return ToolsOfAgent(configured=configured, sent=agent.sent_tools, beside=beside or ServedBeside())


def _spans_count(agent: AnyAgent) -> bool:
    """Also where calls could be handed to us, unless the configuration says that they are: an agent that runs
    its own tools behind such a protocol hands over none."""
    tells = agent.natural_sight is Sight.REPORTED or agent.type in TELLING
    return bool(agent.traces and not tells and agent.tool_visibility is not Sight.RETURNED)


def _line(name: str, agent: AnyAgent) -> str:
    """Agents at one address, as an override of `compare` is, share a line: what cannot hold two conversations
    at once is what answers there. A free port says not which server answers: it counts, too."""
    if not isinstance(agent, HttpAgent):
        return name
    return f"{agent.address} {agent.server}" if agent.server and agent.server.awaits_port else agent.address


def _unstreamed(agent: AnyAgent) -> str:
    if agent.streams is None:
        return f"replies of agents of type {agent.type} are not streamed"
    return (
        "it streams, but this reply came without text in pieces"
        if agent.streams
        else "it does not stream its replies; set streaming: true in its configuration"
    )
