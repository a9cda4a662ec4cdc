"""How an agent learns the address of its model gateway, and whether it uses it, for `agentest doctor`."""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from agentest.agents.call_source_addresses import model_variables
from agentest.agents.listener import HOST
from agentest.config.agent_types import AgentConfig
from agentest.runner.call_sources import CallObservations

FRAMEWORKS: Sequence[tuple[str, tuple[str, ...]]] = (
    (
        "OpenAI's clients, OpenAI Agents SDK, Mastra, smolagents, CrewAI, Microsoft Agent Framework",
        ("OPENAI_BASE_URL",),
    ),
    ("Strands, Agno", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")),
    ("pydantic-ai", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL")),
    ("AI SDK", ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")),
    ("LlamaIndex", ("OPENAI_API_BASE",)),
    ("LangChain and LangGraph", ("OPENAI_BASE_URL", "ANTHROPIC_API_URL", "GOOGLE_GEMINI_BASE_URL")),
    ("Anthropic's clients, Claude Agent SDK", ("ANTHROPIC_BASE_URL",)),
    ("google-genai, google-adk", ("GOOGLE_GEMINI_BASE_URL",)),
    ("LiteLLM", ("OPENAI_BASE_URL", "ANTHROPIC_API_BASE", "GEMINI_API_BASE")),
    ("Azure", ("AZURE_OPENAI_ENDPOINT",)),
)
"""Frameworks, and the variables from which they read the address of a model, as in docs/model-gateway.md."""
_USUAL = ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "AZURE_OPENAI_ENDPOINT")


def lines_to_set(agent: AgentConfig) -> list[str]:
    """Return the usual variable for each provider, if the owner of a running agent has to set it; else []."""
    told = agent.server or agent.in_process or "model_url" in agent.sent_placeholders
    if told or not agent.urls:
        return []
    variables = model_variables(_origin(agent))
    return [
        "Restart the agent with the line for its model's API:",
        *(f"{name}={variables[name]}" for name in _USUAL),
    ]


def how_told(agent: AgentConfig) -> str:
    """Return in words how the agent learns the address."""
    if agent.server:
        copies = f", each of its {agent.server.copies} copies its own" if agent.server.copies > 1 else ""
        return f"its `server` receives the address{copies} (OPENAI_BASE_URL and others)"
    if "model_url" in agent.sent_placeholders:
        return "each request carries the address ({{model_url}})"
    return "the agent is already running, so it needs the address from you"


def lines_by_framework(agent: AgentConfig) -> list[str]:
    """Return what each framework needs."""
    if agent.server:
        return [
            "Its code may set another address: use AGENTEST_MODEL_URL there. `server` sets these variables:",
            *(f"{who}: {', '.join(names)}" for who, names in FRAMEWORKS),
            "AI SDK with Google reads none: write AGENTEST_MODEL_URL/google/v1beta as baseURL",
        ]
    origin = _origin(agent)
    known = model_variables(origin)
    return [
        "Restart the agent with the variable of its framework, run doctor again, and send it a message:",
        *(f"{who}: {', '.join(f'{name}={known[name]}' for name in names)}" for who, names in FRAMEWORKS),
        f"AI SDK with Google reads none: write baseURL {origin}/google/v1beta into its constructor",
    ]


async def has_called_model(observed: CallObservations, agent: str, limit_s: float) -> bool:
    """Wait until a request to a model arrives at the agent's gateway. Returns False after the time limit."""
    came = anyio.Event()
    observed.on_reached = came.set
    if (agent, "model_gateway") not in observed.reached:
        with anyio.move_on_after(limit_s):
            await came.wait()
    return (agent, "model_gateway") in observed.reached


def _origin(agent: AgentConfig) -> str:
    assert agent.model_gateway is not None
    return f"http://{HOST}:{agent.model_gateway.port}"
