"""Mocks: how they are bound to a call, and how they answer an agent's calls.

For users, it also exports functions that let mocks answer the tools of a framework with one line in a handler
or an application: `agentest.mocks.langchain(tools, ctx)`, `openai_agents`, `pydantic_ai`, `adk`. `wrap` does
so for any function, also in a server that Agentest has started.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentest.plugins.frameworks.function_tools import wrap as wrap
    from agentest.plugins.frameworks.tool_gate import adk as adk
    from agentest.plugins.frameworks.tool_gate import langchain as langchain
    from agentest.plugins.frameworks.tool_gate import openai_agents as openai_agents
    from agentest.plugins.frameworks.tool_gate import pydantic_ai as pydantic_ai

_MODULES = {
    **dict.fromkeys(("adk", "langchain", "openai_agents", "pydantic_ai"), "plugins.frameworks.tool_gate"),
    "wrap": "plugins.frameworks.function_tools",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'agentest.mocks' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"agentest.{_MODULES[name]}"), name)
