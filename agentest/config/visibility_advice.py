"""Advice for agents whose tool calls are not visible, or whose tools mocks cannot reach.

To add a source of calls that works for agents of any type, add it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentest.config.agent_types import AGENT_TYPES
from agentest.config.agents.base import AnyAgent
from agentest.domain.tool_visibility import Sight, cannot_be_seen

_MAX_ALTERNATIVES = 2
"""Messages offer at most two alternatives."""
TELLING = ("responses", "ag_ui", "ai_sdk", "langgraph", "adk")
"""Types whose protocol reports the calls that the agent makes itself."""
_CLIENT_TOOL_TYPES = ("chat_completions", "responses", "anthropic_messages", "ag_ui", "ai_sdk")
"""Types whose protocol sends tool calls to the client."""
_USE_AGENT_OBJECT = (
    "name the agent object itself, where it is one of pydantic-ai, the OpenAI Agents SDK, LangGraph or "
    "google-adk (handler: pkg.module:agent, type: custom)"
)
"""For Python agents: needs no code, calls are visible and mocks answer."""
_USE_MOCK_TOOLS = (
    "lead the tools of its framework to the mocks by one line in the application (agentest.mocks.langchain, "
    "openai_agents, pydantic_ai, adk), and set tool_visibility: returned"
)
_USE_MOCK_SERVER = (
    "where its tools are behind MCP or HTTP, let them be answered by a server of ours (mcp_mock: true, or "
    "rest_mock: {openapi: FILE})"
)
_SEND_TRACES = "have it send its traces here (traces: true)"
_SET_RETURNED = "set tool_visibility: returned, if it does hand its calls to the caller"


def advice_for_unseen_calls(name: str, agent: AnyAgent) -> str:
    """Return the message for a check on calls of an agent whose calls are not visible."""
    ways = [*_ways_in_settings(agent), *agent.ways_to_see, *_ways_of_any_agent(agent)][:_MAX_ALTERNATIVES]
    return (
        f"{cannot_be_seen(name)} (tool_visibility: unseen). To see them, {'; or '.join(ways)}; otherwise "
        "remove what judges calls"
    )


def partial_visibility_advice(name: str, agent: AnyAgent) -> str:
    """Return the message for a check whose result calls outside the mock servers could change."""
    servers = _mock_servers(agent)
    where = f"those at {servers} are seen" if servers else "some are seen"
    return (
        f"{cannot_be_seen(name)} (tool_visibility: partial): {where}, and it may have made others. "
        f"To judge this, {'; or '.join(_ways_to_see_the_rest(agent, servers))}"
    )


def unreported_calls_advice(name: str, agent: AnyAgent) -> str:
    """Return the message for an agent that reported none of the calls that its mock servers answered."""
    servers = _mock_servers(agent)
    return (
        f"{cannot_be_seen(name)}: it reported none of its calls to {servers}, so it may have made others. "
        f"To judge this, {'; or '.join(_ways_to_see_the_rest(agent, servers))}"
    )


def _mock_servers(agent: AnyAgent) -> str:
    return " and ".join(f"`{key}`" for key in agent.beside if key != "traces")


def _ways_to_see_the_rest(agent: AnyAgent, servers: str) -> list[str]:
    ways = [] if agent.traces else [_SEND_TRACES]
    if agent.mcp_mock and agent.mcp_mock.tools is None:
        ways = [
            "name the file with the MCP server's tools (mcp_mock.tools), which proves that they are its own"
        ]
    if servers:
        ways.append(f"if all of its tools are behind {servers}, say so (tool_visibility: reported)")
    return ways


def ways_to_mock(agent: AnyAgent) -> list[str]:
    """Return ways to let mocks reach the agent's tools."""
    ways = [*([_SET_RETURNED] if agent.natural_sight is Sight.RETURNED else []), *agent.ways_to_mock]
    own = "let its handler make" if agent.type == "custom" else "let a handler (type: custom) make"
    ways.append(_USE_MOCK_SERVER)
    ways.append(_USE_AGENT_OBJECT)
    ways.append(f"{own} its calls by ctx.resolve_tool")
    if agent.in_process:
        ways.append(_USE_MOCK_TOOLS)
    if others := _other_types(_CLIENT_TOOL_TYPES, agent):
        ways.append(f"reach it by a protocol that hands calls to the caller (type: {others})")
    return ways


def _ways_in_settings(agent: AnyAgent) -> Iterator[str]:
    """Yield changes to settings that hide calls."""
    if agent.natural_sight is Sight.RETURNED:
        yield _SET_RETURNED
    elif agent.natural_sight is Sight.REPORTED:
        yield "leave out tool_visibility: unseen, as its type tells of them"


def _ways_of_any_agent(agent: AnyAgent) -> Iterator[str]:
    if agent.type == "custom":
        yield "let its handler make them by ctx.resolve_tool, or tell of them by ctx.record_tool"
    yield _SEND_TRACES
    yield _USE_MOCK_SERVER


def _other_types(types: Sequence[str], agent: AnyAgent) -> str:
    """Return the available types, except the agent's own."""
    return ", ".join(name for name in types if name in AGENT_TYPES and name != agent.type)
