"""What users write for the type of an agent, where they name its framework: a type is a protocol."""

from __future__ import annotations

import re

from agentest.config.agent_types import AGENT_TYPES
from agentest.support.spelling import did_you_mean

_HTTP = "http (an API of its own)"
_OBJECT = "custom (the agent object in Python)"
_KNOWN_AS = {
    "fastapi flask django express node nodejs go golang java spring rest restapi api json sse webhook": _HTTP,
    "pydanticai": f"{_OBJECT}, or behind a server ag_ui, ai_sdk or a2a",
    "openaiagents openaiagentssdk": f"{_OBJECT}, or behind a server http",
    "openai": "chat_completions, or responses; for an agent of its Agents SDK custom or http",
    "googleadk": "adk, or in Python adk_module or custom; behind to_a2a a2a",
    "langchain langgraphserver langgraphplatform": f"langgraph (its server), or {_OBJECT}",
    "vercel vercelai vercelaisdk usechat nextjs": "ai_sdk",
    "copilotkit": "ag_ui",
    "anthropic claude": "anthropic_messages",
    "ollama vllm litellm": "chat_completions",
    "ws socket": "websocket",
    "cli shell process program": "command",
    "python function handler": "custom",
    "mcp mcpserver": "that which the agent itself speaks; MCP is between it and its tools",
}
"""Names, without signs and in lower case → the types that fit, in words."""
_TYPES = {name: types for names, types in _KNOWN_AS.items() for name in names.split()}


def no_such_type(name: str) -> str:
    """What to say of a type that there is not."""
    types = _TYPES.get(re.sub(r"[\W_]", "", name).lower())
    if types is None:
        return f"there is no agent type {name!r}; {did_you_mean(name, AGENT_TYPES)}"
    return f"there is no agent type {name!r}: a type is the protocol that the agent speaks. Here: {types}"
