"""What to do where tool calls of an agent cannot be seen, or mocks cannot reach its tools.

Each way is one that exists today. A further source of calls, for agents of any type, is one more line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentest.config.agent_types import AGENT_TYPES
from agentest.config.agents.base import AnyAgent
from agentest.domain.tool_visibility import Sight, cannot_be_seen

_SHOWN_WAYS = 2
"""More alternatives in one message help nobody."""
TELLING = ("responses", "ag_ui", "ai_sdk", "langgraph", "adk")
"""Types whose protocol tells of the calls that the agent makes itself."""
_HANDING = ("chat_completions", "responses", "anthropic_messages", "ag_ui", "ai_sdk")
"""Types whose protocol hands calls to the caller."""
_IN_PROCESS = (
    "name the agent object itself, where it is one of pydantic-ai, the OpenAI Agents SDK, LangGraph or "
    "google-adk (handler: pkg.module:agent, type: custom)"
)
"""For agents in Python: no code is needed, calls are seen and mocks answer."""
_ONE_LINE = (
    "lead the tools of its framework to the mocks by one line in the application (agentest.mocks.langchain, "
    "openai_agents, pydantic_ai, adk), and set tool_visibility: returned"
)
_SERVED = (
    "where its tools are behind MCP or HTTP, let them be answered by a server of ours (mcp_mock: true, or "
    "rest_mock: {openapi: FILE})"
)
_TRACED = "have it send its traces here (traces: true)"
_RETURNED = "set tool_visibility: returned, if it does hand its calls to the caller"


def ways_to_see(name: str, agent: AnyAgent) -> str:
    """What to say where something that an agent whose calls are unseen did should have been judged."""
    ways = [*_by_its_settings(agent), *agent.ways_to_see, *_by_any_agent(agent)][:_SHOWN_WAYS]
    return (
        f"{cannot_be_seen(name)} (tool_visibility: unseen). To see them, {'; or '.join(ways)}; otherwise "
        "remove what judges calls"
    )


def ways_to_see_all(name: str, agent: AnyAgent) -> str:
    """What to say where calls that an agent may have made unseen could change what is judged."""
    servers = _mock_servers(agent)
    where = f"those at {servers} are seen" if servers else "some are seen"
    return (
        f"{cannot_be_seen(name)} (tool_visibility: partial): {where}, and it may have made others. "
        f"To judge this, {'; or '.join(_ways_beside(agent, servers))}"
    )


def ways_to_see_untold(name: str, agent: AnyAgent) -> str:
    """The same of an agent that reported none of the calls that its mock servers answered."""
    servers = _mock_servers(agent)
    return (
        f"{cannot_be_seen(name)}: it reported none of its calls to {servers}, so it may have made others. "
        f"To judge this, {'; or '.join(_ways_beside(agent, servers))}"
    )


def _mock_servers(agent: AnyAgent) -> str:
    return " and ".join(f"`{key}`" for key in agent.beside if key != "traces")


def _ways_beside(agent: AnyAgent, servers: str) -> list[str]:
    ways = [] if agent.traces else [_TRACED]
    if agent.mcp_mock and agent.mcp_mock.tools is None:
        ways = [
            "name the file with the MCP server's tools (mcp_mock.tools), which proves that they are its own"
        ]
    if servers:
        ways.append(f"if all of its tools are behind {servers}, say so (tool_visibility: reported)")
    return ways


def ways_to_mock(agent: AnyAgent) -> list[str]:
    """How mocks could reach the tools of an agent that they do not reach, each in words."""
    ways = [*([_RETURNED] if agent.natural_sight is Sight.RETURNED else []), *agent.ways_to_mock]
    own = "let its handler make" if agent.type == "custom" else "let a handler (type: custom) make"
    ways.append(_SERVED)
    ways.append(_IN_PROCESS)
    ways.append(f"{own} its calls by ctx.resolve_tool")
    if agent.in_process:
        ways.append(_ONE_LINE)
    if others := _others(_HANDING, agent):
        ways.append(f"reach it by a protocol that hands calls to the caller (type: {others})")
    return ways


def _by_its_settings(agent: AnyAgent) -> Iterator[str]:
    """What the configuration itself hides."""
    if agent.natural_sight is Sight.RETURNED:
        yield _RETURNED
    elif agent.natural_sight is Sight.REPORTED:
        yield "leave out tool_visibility: unseen, as its type tells of them"


def _by_any_agent(agent: AnyAgent) -> Iterator[str]:
    if agent.type == "custom":
        yield "let its handler make them by ctx.resolve_tool, or tell of them by ctx.record_tool"
    yield _TRACED
    yield _SERVED


def _others(types: Sequence[str], agent: AnyAgent) -> str:
    """Those of the types that there are, but for the agent's own."""
    return ", ".join(name for name in types if name in AGENT_TYPES and name != agent.type)
