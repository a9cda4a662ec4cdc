"""The table of agent types: settings, client and probe of each protocol.

To add a protocol, add a package in `agentest/agents` and a line here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Union

from pydantic import Discriminator, GetCoreSchemaHandler, Tag

from agentest.config.agents.a2a import A2aAgent
from agentest.config.agents.adk import AdkAgent, AdkModuleAgent
from agentest.config.agents.ag_ui import AgUiAgent
from agentest.config.agents.ai_sdk import AiSdkAgent
from agentest.config.agents.anthropic_messages import AnthropicMessagesAgent
from agentest.config.agents.base import AnyAgent
from agentest.config.agents.chat_completions import AsgiAgent, ChatCompletionsAgent
from agentest.config.agents.command import CommandAgent
from agentest.config.agents.custom import CustomAgent
from agentest.config.agents.http import HttpTemplateAgent
from agentest.config.agents.langgraph import LangGraphAgent
from agentest.config.agents.responses import ResponsesAgent
from agentest.config.agents.websocket import WebSocketAgent
from agentest.domain.tool_visibility import Sight
from agentest.support.spelling import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentType:
    """One type of agent."""

    settings: type[AnyAgent]
    """The settings of such an agent."""
    client: str
    """The module in `agentest/agents` with the client. Its `open_agent` is an `agents.port.OpenAgent`."""
    probe: str | None = None
    """Detects the protocol at an endpoint: `module:function` of an `async def probe(look)`."""


DEFAULT_TYPE = "chat_completions"

AGENT_TYPES: dict[str, AgentType] = {
    "chat_completions": AgentType(
        settings=ChatCompletionsAgent,
        client="agentest.agents.chat_completions",
        probe="agentest.agents.protocol_probes:probe_chat_completions",
    ),
    "asgi": AgentType(settings=AsgiAgent, client="agentest.agents.chat_completions"),
    "adk": AgentType(
        settings=AdkAgent,
        client="agentest.agents.adk_server.client",
        probe="agentest.agents.protocol_probes:probe_adk_server",
    ),
    "adk_module": AgentType(settings=AdkModuleAgent, client="agentest.agents.adk_module"),
    "custom": AgentType(settings=CustomAgent, client="agentest.agents.python_agent"),
    "http": AgentType(
        settings=HttpTemplateAgent,
        client="agentest.agents.http.client",
        probe="agentest.agents.protocol_probes:probe_http",
    ),
    "responses": AgentType(
        settings=ResponsesAgent,
        client="agentest.agents.responses.client",
        probe="agentest.agents.protocol_probes:probe_responses",
    ),
    "ag_ui": AgentType(
        settings=AgUiAgent,
        client="agentest.agents.ag_ui.client",
        probe="agentest.agents.protocol_probes:probe_ag_ui",
    ),
    "langgraph": AgentType(
        settings=LangGraphAgent,
        client="agentest.agents.langgraph.client",
        probe="agentest.agents.protocol_probes:probe_langgraph",
    ),
    "a2a": AgentType(
        settings=A2aAgent,
        client="agentest.agents.a2a.client",
        probe="agentest.agents.protocol_probes:probe_a2a",
    ),
    "ai_sdk": AgentType(
        settings=AiSdkAgent,
        client="agentest.agents.ai_sdk.client",
        probe="agentest.agents.protocol_probes:probe_ai_sdk",
    ),
    "websocket": AgentType(
        settings=WebSocketAgent,
        client="agentest.agents.websocket",
        probe="agentest.agents.protocol_probes:probe_websocket",
    ),
    "anthropic_messages": AgentType(
        settings=AnthropicMessagesAgent,
        client="agentest.agents.anthropic_messages.client",
        probe="agentest.agents.protocol_probes:probe_anthropic_messages",
    ),
    "command": AgentType(settings=CommandAgent, client="agentest.agents.command"),
}


def type_of(agent: AnyAgent) -> AgentType:
    """Return the agent's entry in the table."""
    return AGENT_TYPES[agent.type]


def visibility_of_agent(agent: AnyAgent) -> Sight:
    """Return how the agent's tool calls become visible."""
    if agent.tool_visibility is not None:
        return agent.tool_visibility
    if agent.natural_sight is Sight.UNSEEN and agent.traces:
        return Sight.REPORTED
    # Mock servers do not see tool calls that an agent makes without them.
    if agent.mock_servers and not agent.traces and not agent.tells_own_calls:
        return Sight.PARTIAL
    return agent.natural_sight


def returns_calls(agent: AnyAgent) -> bool:
    """Return True if the agent sends some or all tool calls to its client."""
    sight = visibility_of_agent(agent)
    return sight is Sight.RETURNED or (sight is Sight.PARTIAL and agent.natural_sight is Sight.RETURNED)


def secrets_of_agent(agent: AnyAgent) -> list[str]:
    """Return the secrets in an agent's settings."""
    return agent.secrets


def agent_keys() -> frozenset[str]:
    """Return the keys of all types."""
    return frozenset(name for kind in AGENT_TYPES.values() for name in kind.settings.model_fields)


def _type_name(value: Any) -> str:
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return DEFAULT_TYPE if name is None else str(name)


class _AgentTypeUnion:
    """Validates settings with the class for their `type`."""

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        classes = tuple(Annotated[kind.settings, Tag(name)] for name, kind in AGENT_TYPES.items())
        union = Union[classes]  # type: ignore[valid-type]  # noqa: UP007 - its members are in the table
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
