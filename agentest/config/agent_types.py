"""The table of agent types: settings, client and probe of each protocol.

To add a protocol, add a package in `agentest/agents` and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, GetCoreSchemaHandler, PlainValidator, Tag

from agentest.config.agents.base import AnyAgent
from agentest.domain.tool_visibility import ToolVisibility, cannot_be_seen
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class AgentType:
    """One type of agent. Its modules are imported when an agent has the type."""

    settings: str
    """The class of its settings: `module:class`."""
    client: str
    """The module in `agentest/agents` with the client. Its `open_agent` is an `agents.port.OpenAgent`."""
    probe: str | None = None
    """Detects the protocol at an endpoint: `module:function` of an `async def probe(look)`."""

    @property
    def settings_class(self) -> type[AnyAgent]:
        module, _, name = self.settings.partition(":")
        settings: type[AnyAgent] = getattr(import_module(module), name)
        return settings


DEFAULT_TYPE = "chat_completions"

AGENT_TYPES: dict[str, AgentType] = {
    "chat_completions": AgentType(
        settings="agentest.config.agents.chat_completions:ChatCompletionsAgent",
        client="agentest.agents.chat_completions",
        probe="agentest.agents.protocol_probes:probe_chat_completions",
    ),
    "asgi": AgentType(
        settings="agentest.config.agents.chat_completions:AsgiAgent",
        client="agentest.agents.chat_completions",
    ),
    "adk": AgentType(
        settings="agentest.config.agents.adk:AdkAgent",
        client="agentest.agents.adk_server.client",
        probe="agentest.agents.protocol_probes:probe_adk_server",
    ),
    "adk_module": AgentType(
        settings="agentest.config.agents.adk:AdkModuleAgent",
        client="agentest.agents.in_process.google_adk",
    ),
    "custom": AgentType(
        settings="agentest.config.agents.custom:CustomAgent",
        client="agentest.agents.python_agent",
    ),
    "http": AgentType(
        settings="agentest.config.agents.http:HttpTemplateAgent",
        client="agentest.agents.http.client",
        probe="agentest.agents.protocol_probes:probe_http",
    ),
    "responses": AgentType(
        settings="agentest.config.agents.responses:ResponsesAgent",
        client="agentest.agents.responses.client",
        probe="agentest.agents.protocol_probes:probe_responses",
    ),
    "ag_ui": AgentType(
        settings="agentest.config.agents.ag_ui:AgUiAgent",
        client="agentest.agents.ag_ui.client",
        probe="agentest.agents.protocol_probes:probe_ag_ui",
    ),
    "langgraph": AgentType(
        settings="agentest.config.agents.langgraph:LangGraphAgent",
        client="agentest.agents.langgraph.client",
        probe="agentest.agents.protocol_probes:probe_langgraph",
    ),
    "a2a": AgentType(
        settings="agentest.config.agents.a2a:A2aAgent",
        client="agentest.agents.a2a.client",
        probe="agentest.agents.protocol_probes:probe_a2a",
    ),
    "ai_sdk": AgentType(
        settings="agentest.config.agents.ai_sdk:AiSdkAgent",
        client="agentest.agents.ai_sdk.client",
        probe="agentest.agents.protocol_probes:probe_ai_sdk",
    ),
    "websocket": AgentType(
        settings="agentest.config.agents.websocket:WebSocketAgent",
        client="agentest.agents.websocket",
        probe="agentest.agents.protocol_probes:probe_websocket",
    ),
    "anthropic_messages": AgentType(
        settings="agentest.config.agents.anthropic_messages:AnthropicMessagesAgent",
        client="agentest.agents.anthropic_messages.client",
        probe="agentest.agents.protocol_probes:probe_anthropic_messages",
    ),
    "command": AgentType(
        settings="agentest.config.agents.command:CommandAgent",
        client="agentest.agents.command",
    ),
}


def type_of(agent: AnyAgent) -> AgentType:
    """Return the agent's entry in the table."""
    return AGENT_TYPES[agent.type]


def visibility_of_agent(agent: AnyAgent) -> ToolVisibility:
    """Return how the agent's tool calls become visible."""
    if agent.tool_visibility is not None:
        return agent.tool_visibility
    if agent.model_gateway or (agent.natural_visibility is ToolVisibility.UNSEEN and agent.traces):
        return ToolVisibility.REPORTED
    # Mock servers do not see tool calls that an agent makes without them.
    if agent.mock_servers and not agent.traces and not agent.reports_own_calls:
        return ToolVisibility.PARTIAL
    return agent.natural_visibility


def returns_calls(agent: AnyAgent) -> bool:
    """Return True if the agent sends some or all tool calls to its client."""
    visibility = visibility_of_agent(agent)
    return visibility is ToolVisibility.RETURNED or (
        visibility is ToolVisibility.PARTIAL and agent.natural_visibility is ToolVisibility.RETURNED
    )


def secrets_of_agent(agent: AnyAgent) -> list[str]:
    """Return the secrets in an agent's settings."""
    return agent.secrets


def agent_keys() -> frozenset[str]:
    """Return the keys of all types."""
    return frozenset(name for kind in AGENT_TYPES.values() for name in kind.settings_class.model_fields)


def _type_name(value: Any) -> str:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return DEFAULT_TYPE if name is None else str(name)


def _validate_as(name: str, value: Any) -> AnyAgent:
    return AGENT_TYPES[name].settings_class.model_validate(value)


class _AgentTypeUnion:
    """Validates settings with the class for their `type`, and imports no other."""

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        members = tuple(
            Annotated[AnyAgent, PlainValidator(partial(_validate_as, name)), Tag(name)]
            for name in AGENT_TYPES
        )
        union = Union[members]  # type: ignore[valid-type]  # noqa: UP007 - its members are in the table
        return handler.generate_schema(Annotated[union, Discriminator(_type_name)])


AgentConfig = Annotated[AnyAgent, _AgentTypeUnion()]
"""The settings of an agent of any type."""


_HTTP = "http (an API of its own)"
_PYTHON_OBJECT = "custom (the agent object in Python)"
_TYPES_BY_NAMES = {
    "fastapi flask django express node nodejs go golang java spring rest restapi api json sse webhook": _HTTP,
    "pydanticai": f"{_PYTHON_OBJECT}, or behind a server ag_ui, ai_sdk or a2a",
    "openaiagents openaiagentssdk": f"{_PYTHON_OBJECT}, or behind a server http",
    "openai": "chat_completions, or responses; for an agent of its Agents SDK custom or http",
    "googleadk": "adk, or in Python adk_module or custom; behind to_a2a a2a",
    "langchain langgraphserver langgraphplatform": f"langgraph (its server), or {_PYTHON_OBJECT}",
    "vercel vercelai vercelaisdk usechat nextjs": "ai_sdk",
    "copilotkit": "ag_ui",
    "anthropic claude": "anthropic_messages",
    "ollama vllm litellm": "chat_completions",
    "ws socket": "websocket",
    "cli shell process program": "command",
    "python function handler": "custom",
    "mcp mcpserver": "that which the agent itself speaks; MCP is between it and its tools",
}
"""Names in lower case without punctuation → suggested types."""
_TYPES_BY_NAME = {name: types for names, types in _TYPES_BY_NAMES.items() for name in names.split()}


def unknown_type_message(name: str) -> str:
    """Return the error message for an unknown type."""
    types = _TYPES_BY_NAME.get(re.sub(r"[\W_]", "", name).lower())
    if types is None:
        return f"there is no agent type {name!r}; {did_you_mean(name, AGENT_TYPES)}"
    return f"there is no agent type {name!r}: a type is the protocol that the agent speaks. Here: {types}"


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
    ways = [
        *([_SET_RETURNED] if agent.natural_visibility is ToolVisibility.RETURNED else []),
        *agent.ways_to_mock,
    ]
    resolve = "let its handler make" if agent.type == "custom" else "let a handler (type: custom) make"
    ways.append(_USE_MOCK_SERVER)
    ways.append(_USE_AGENT_OBJECT)
    ways.append(f"{resolve} its calls by ctx.resolve_tool")
    if agent.in_process:
        ways.append(_USE_MOCK_TOOLS)
    if others := _other_types(_CLIENT_TOOL_TYPES, agent):
        ways.append(f"reach it by a protocol that hands calls to the caller (type: {others})")
    return ways


def _ways_in_settings(agent: AnyAgent) -> Iterator[str]:
    """Yield changes to settings that hide calls."""
    if agent.natural_visibility is ToolVisibility.RETURNED:
        yield _SET_RETURNED
    elif agent.natural_visibility is ToolVisibility.REPORTED:
        yield "leave out tool_visibility: unseen, as its type tells of them"


def _ways_of_any_agent(agent: AnyAgent) -> Iterator[str]:
    if agent.type == "custom":
        yield "let its handler make them by ctx.resolve_tool, or tell of them by ctx.record_tool"
    yield _SEND_TRACES
    yield _USE_MOCK_SERVER


def _other_types(types: Sequence[str], agent: AnyAgent) -> str:
    """Return the available types, except the agent's own."""
    return ", ".join(name for name in types if name in AGENT_TYPES and name != agent.type)
