"""Mocks: how they are bound to a call, and how they answer an agent's calls.

For users, it also exports functions that let mocks answer the tools of a framework with one line in a handler
or an application: `agentest.mocks.langchain(tools, ctx)`, `openai_agents`, `pydantic_ai`, `adk`. `wrap` does
so for any function, also in a server that Agentest has started. The plug-in `frameworks` hands them in.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from agentest.plugin import public_name

    return public_name(__name__, name, "frameworks")
