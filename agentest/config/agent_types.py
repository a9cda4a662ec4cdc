"""The settings of an agent of any type, and advice about what its type can do.

Types are handed in by plug-ins (`agentest.plugin`). A type is read, and its settings are imported, when a
configuration names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import SchemaValidator, core_schema

from agentest.config.agents.base import AnyAgent, described, types_with
from agentest.config.fields import key_names
from agentest.domain.tool_visibility import ToolVisibility, cannot_be_seen
from agentest.plugin import PLUGINS, Feature, if_command
from agentest.support.errors import ConfigError
from agentest.support.text import did_you_mean

DEFAULT_TYPE = "chat_completions"


def agent_type(name: str) -> Feature:
    """Return a type of agent. Raises ConfigError if there is none of this name."""
    if found := PLUGINS.find("agent type", name):
        return found
    raise ConfigError(unknown_type_message(name))


def settings_class(name: str) -> type[AnyAgent]:
    """Return the class of the settings of agents of this type. Raises ConfigError."""
    settings: type[AnyAgent] = agent_type(name).load("settings", AnyAgent)
    return settings


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


def agent_keys(names: Iterable[str] | None = None) -> frozenset[str]:
    """Return the keys of agents of these types, those that exist. None: of all types."""
    if names is None:
        known = [*PLUGINS.load_all("agent type", "settings").values()]
    else:
        known = [settings_class(name) for name in names if PLUGINS.find("agent type", name)]
    return frozenset(key for settings in known for key in key_names(settings))


def type_name(value: Any) -> str:
    """Return the type of an agent in a configuration."""
    name = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return DEFAULT_TYPE if name is None else str(name)


def _validated(value: Any) -> AnyAgent:
    name = type_name(value)
    names = [name] if PLUGINS.find("agent type", name) else PLUGINS.all("agent type")
    members: dict[Any, core_schema.CoreSchema] = {
        each: core_schema.no_info_plain_validator_function(partial(_validated_as, each)) for each in names
    }
    union = SchemaValidator(core_schema.tagged_union_schema(members, type_name))
    agent: AnyAgent = union.validate_python(value)
    return agent


def _validated_as(name: str, value: Any) -> AnyAgent:
    return settings_class(name).model_validate(value)


AgentConfig = Annotated[AnyAgent, PlainValidator(_validated), WithJsonSchema({"oneOf": [{}]})]
"""The settings of an agent of any type."""


def unknown_type_message(name: str) -> str:
    """Return the error message for an unknown type."""
    word = re.sub(r"[\W_]", "", name).lower()
    meant = "the protocol between user and agent; MCP is between the agent and its tools"
    if word not in ("mcp", "mcpserver"):
        meant = described(types_with(word))
    if not meant:
        return f"there is no agent type {name!r}; {did_you_mean(name, PLUGINS.all('agent type'))}"
    return f"there is no agent type {name!r}. The type is the protocol that the agent speaks: {meant}"


_MAX_ALTERNATIVES = 2
_USE_AGENT_OBJECT = (
    "name the agent object itself, where it is one of pydantic-ai, the OpenAI Agents SDK, LangGraph or "
    "google-adk (handler: pkg.module:agent, type: custom)"
)
"""For Python agents: needs no code, calls are visible and mocks answer."""
_USE_MOCK_TOOLS = (
    "lead the tools of its framework to the mocks by one line in the application (agentest.mocks.langchain, "
    "openai_agents, pydantic_ai, adk), and set tool_visibility: returned"
)
_USE_MOCK_SERVER = "if its tools are behind MCP or HTTP, set mcp_mock: true or rest_mock: {openapi: FILE}"
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
        f"{' or '.join(ways[:_MAX_ALTERNATIVES])}{if_command('docs', ': agentest docs model-gateway')}"
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
    return " and ".join(f"`{key}`" for key in agent.call_servers)


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
    others = ", ".join(name for name in types_with("client-tools") if name != agent.type)
    gateway = agent.documented_gateway_advice
    if agent.model_gateway:
        gateway = "leave `mocks: false` out of model_gateway"
    return [
        *([gateway] if agent.has_own_process else []),
        *([_SET_RETURNED] if agent.natural_visibility is ToolVisibility.RETURNED else []),
        *agent.ways_to_mock,
        _USE_MOCK_SERVER + if_command("docs", " (agentest docs mock-servers)"),
        _USE_AGENT_OBJECT,
        f"{resolve} its calls by ctx.resolve_tool",
        *([_USE_MOCK_TOOLS] if agent.in_process else []),
        f"reach it by a protocol that hands calls to the caller (type: {others})",
    ]


def state_reported_by() -> str:
    """Return which agents report the state of their session."""
    return f"{remarks_reported_by()}, and a handler can by ctx.record_state (type: custom)"


def remarks_reported_by() -> str:
    """Return which agents name the authors of their messages before the reply."""
    return f"an agent of type {described(types_with('session-state'))} does"
