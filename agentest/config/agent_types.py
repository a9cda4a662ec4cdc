"""The table of agent types: settings, client and probe of each protocol.

To add a protocol, add a package in `agentest/agents` and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, GetCoreSchemaHandler, PlainValidator, Tag

from agentest.config.agents.base import GATEWAY_PAGE, AnyAgent
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
    name: AgentType(
        settings=settings,
        client=client,
        probe=f"agentest.plugins.authoring.detect.protocol_probes:{probe}" if probe else None,
    )
    for name, settings, client, probe in (
        (
            "chat_completions",
            "agentest.config.agents.chat_completions:ChatCompletionsAgent",
            "agentest.agents.chat_completions",
            "probe_chat_completions",
        ),
        (
            "asgi",
            "agentest.config.agents.chat_completions:AsgiAgent",
            "agentest.agents.chat_completions",
            None,
        ),
        (
            "adk",
            "agentest.plugins.protocols.adk_server.settings:AdkAgent",
            "agentest.plugins.protocols.adk_server.client",
            "probe_adk_server",
        ),
        (
            "adk_module",
            "agentest.config.agents.in_process:AdkModuleAgent",
            "agentest.plugins.frameworks.google_adk",
            None,
        ),
        ("custom", "agentest.config.agents.in_process:CustomAgent", "agentest.agents.python_agent", None),
        (
            "http",
            "agentest.config.agents.http:HttpTemplateAgent",
            "agentest.agents.http.client",
            "probe_http",
        ),
        (
            "responses",
            "agentest.plugins.protocols.responses.settings:ResponsesAgent",
            "agentest.plugins.protocols.responses.client",
            "probe_responses",
        ),
        (
            "ag_ui",
            "agentest.plugins.protocols.ag_ui.settings:AgUiAgent",
            "agentest.plugins.protocols.ag_ui.client",
            "probe_ag_ui",
        ),
        (
            "langgraph",
            "agentest.plugins.protocols.langgraph.settings:LangGraphAgent",
            "agentest.plugins.protocols.langgraph.client",
            "probe_langgraph",
        ),
        (
            "a2a",
            "agentest.plugins.protocols.a2a.settings:A2aAgent",
            "agentest.plugins.protocols.a2a.client",
            "probe_a2a",
        ),
        (
            "ai_sdk",
            "agentest.plugins.protocols.ai_sdk.settings:AiSdkAgent",
            "agentest.plugins.protocols.ai_sdk.client",
            "probe_ai_sdk",
        ),
        (
            "websocket",
            "agentest.plugins.protocols.websocket.settings:WebSocketAgent",
            "agentest.plugins.protocols.websocket.client",
            "probe_websocket",
        ),
        (
            "anthropic_messages",
            "agentest.plugins.protocols.anthropic_messages.settings:AnthropicMessagesAgent",
            "agentest.plugins.protocols.anthropic_messages.client",
            "probe_anthropic_messages",
        ),
        (
            "grpc",
            "agentest.plugins.protocols.grpc.settings:GrpcAgent",
            "agentest.plugins.protocols.grpc.client",
            None,
        ),
        (
            "assistants",
            "agentest.plugins.protocols.assistants.settings:AssistantsAgent",
            "agentest.plugins.protocols.assistants.client",
            None,
        ),
        (
            "realtime",
            "agentest.plugins.protocols.realtime.settings:RealtimeAgent",
            "agentest.plugins.protocols.realtime.client",
            None,
        ),
        (
            "command",
            "agentest.plugins.protocols.command.settings:CommandAgent",
            "agentest.plugins.protocols.command.client",
            None,
        ),
    )
}


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


def agent_keys() -> frozenset[str]:
    """Return the keys of all types."""
    return frozenset(name for kind in AGENT_TYPES.values() for name in kind.settings_class.model_fields)


def _type_name(value: Any) -> str:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return DEFAULT_TYPE if name is None else str(name)


class _AgentTypeUnion:
    """Validates settings with the class for their `type`, and imports no other."""

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(name: str, value: Any) -> AnyAgent:
            return AGENT_TYPES[name].settings_class.model_validate(value)

        members = tuple(
            Annotated[AnyAgent, PlainValidator(partial(validate, name)), Tag(name)] for name in AGENT_TYPES
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
    "openaiassistants azureaifoundry foundry azureagents": "assistants",
    "openai": "chat_completions or responses for OpenAI's APIs, custom or http for its Agents SDK",
    "googleadk": "adk for its server, a2a behind to_a2a, adk_module or custom for an agent in Python",
    "langchain langgraphserver langgraphplatform": f"langgraph (its server), or {_PYTHON_OBJECT}",
    "vercel vercelai vercelaisdk usechat nextjs": "ai_sdk",
    "copilotkit": "ag_ui",
    "anthropic claude": "anthropic_messages",
    "ollama vllm litellm": "chat_completions",
    "ws socket": "websocket",
    "cli shell process program": "command",
    "python function handler": "custom",
    "mcp mcpserver": "the protocol between user and agent; MCP is between the agent and its tools",
}
"""Names in lower case without punctuation → suggested types."""
_TYPES_BY_NAME = {name: types for names, types in _TYPES_BY_NAMES.items() for name in names.split()}


def unknown_type_message(name: str) -> str:
    """Return the error message for an unknown type."""
    types = _TYPES_BY_NAME.get(re.sub(r"[\W_]", "", name).lower())
    if types is None:
        return f"there is no agent type {name!r}; {did_you_mean(name, AGENT_TYPES)}"
    return f"there is no agent type {name!r}. The type is the protocol that the agent speaks: {types}"


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
    "if its tools are behind MCP or HTTP, set mcp_mock: true or rest_mock: {openapi: FILE} "
    "(agentest docs mock-servers)"
)
_SEND_TRACES = "have it send its traces here (traces: true)"
_SET_RETURNED = "set tool_visibility: returned, if it does hand its calls to the caller"


def advice_for_unseen_calls(name: str, agent: AnyAgent) -> str:
    """Return the message for a check on calls of an agent whose calls are not visible."""
    ways = list(agent.ways_to_see)
    if agent.natural_visibility is ToolVisibility.RETURNED:
        ways.insert(0, _SET_RETURNED)
    elif agent.natural_visibility is ToolVisibility.REPORTED:
        ways.insert(0, "leave out tool_visibility: unseen, as its type reports them")
    if agent.type == "custom":
        ways.append("have its handler make them with ctx.resolve_tool, or report them with ctx.record_tool")
    if agent.has_own_process:
        ways.append(agent.gateway_advice)
    ways.append(_SEND_TRACES)
    return (
        f"{cannot_be_seen(name)} (tool_visibility: unseen). To see them, "
        f"{' or '.join(ways[:_MAX_ALTERNATIVES])}: {GATEWAY_PAGE}"
    )


def partial_visibility_advice(name: str, agent: AnyAgent) -> str:
    """Return the message for a check whose result calls outside the mock servers could change."""
    servers = _mock_servers(agent)
    where = f"those at {servers} are seen" if servers else "some are seen"
    problem = f"{cannot_be_seen(name)} (tool_visibility: partial): {where}, and it may have made others"
    return f"{problem}. To judge this, {_ways_to_see_the_rest(agent, servers)}"


def unreported_calls_advice(name: str, agent: AnyAgent) -> str:
    """Return the message for an agent that reported none of the calls that its mock servers answered."""
    servers = _mock_servers(agent)
    problem = (
        f"{cannot_be_seen(name)}: it reported none of its calls to {servers}, so it may have made others"
    )
    return f"{problem}. To judge this, {_ways_to_see_the_rest(agent, servers)}"


def _mock_servers(agent: AnyAgent) -> str:
    return " and ".join(f"`{key}`" for key in agent.beside if key != "traces")


def _ways_to_see_the_rest(agent: AnyAgent, servers: str) -> str:
    ways = [] if agent.traces else [_SEND_TRACES]
    if agent.mcp_mock and agent.mcp_mock.tools is None:
        ways = [
            "name the file with the MCP server's tools (mcp_mock.tools), which proves that they are its own"
        ]
    if servers:
        ways.append(f"if all of its tools are behind {servers}, say so (tool_visibility: reported)")
    return "; or ".join(ways)


def ways_to_mock(agent: AnyAgent) -> list[str]:
    """Return ways to let mocks reach the agent's tools, the one that fits most agents first."""
    resolve = "let its handler make" if agent.type == "custom" else "let a handler (type: custom) make"
    others = ", ".join(name for name in _CLIENT_TOOL_TYPES if name != agent.type)
    gateway = f"{agent.gateway_advice} ({GATEWAY_PAGE})"
    if agent.model_gateway:
        gateway = "leave `mocks: false` out of model_gateway"
    return [
        *([gateway] if agent.has_own_process else []),
        *([_SET_RETURNED] if agent.natural_visibility is ToolVisibility.RETURNED else []),
        *agent.ways_to_mock,
        _USE_MOCK_SERVER,
        _USE_AGENT_OBJECT,
        f"{resolve} its calls by ctx.resolve_tool",
        *([_USE_MOCK_TOOLS] if agent.in_process else []),
        f"reach it by a protocol that hands calls to the caller (type: {others})",
    ]
