"""`agentest.mocks.langchain(tools, ctx)` and the like: one line of a handler or an application.

Each returns what its framework takes, with the same names, descriptions and schemas. While a conversation is
under way, its mocks answer; outside of any run the real tools run, so that the line may stay where it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, overload

from agentest.agents.in_process.framework import FindGate
from agentest.agents.in_process.tool_gate import Gate, asked
from agentest.agents.port import TurnContext
from agentest.support.calling import words_of
from agentest.support.errors import UsageError
from agentest.support.json_text import safe_repr


def langchain(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]:
    """LangChain's tools, also those of LangGraph, whose calls the mocks answer.

    Args:
        tools: tools, or functions that become tools. Tools that a model's provider runs (mappings) stay.
        ctx: the handler's; default: the conversation that is under way where a tool is called.
    """
    gates = _gates(ctx)
    found: list[Any] = _runner("langchain", "langchain_core", "LangChain").asking_tools(tools, gates)
    return found


def openai_agents(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]:
    """Function tools of the OpenAI Agents SDK whose calls the mocks answer; `ctx` as in `langchain`.

    Tools that the provider runs stay. Raises UsageError for one that acts on this machine.
    """
    gates = _gates(ctx)
    runner = _runner("openai_agents", "agents", "the OpenAI Agents SDK")
    found: list[Any] = runner.asking_tools(tools, gates)
    return found


@overload
def pydantic_ai(tools: None = None, ctx: TurnContext | None = None) -> Any: ...
@overload
def pydantic_ai(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]: ...
def pydantic_ai(tools: Iterable[Any] | None = None, ctx: TurnContext | None = None) -> Any:
    """For `capabilities` of a pydantic-ai agent or run: what has the mocks answer all of its tools.

    Args:
        tools: functions, tools and toolsets; then the result is for `toolsets`, and the mocks answer these.
        ctx: as in `langchain`.
    """
    gates = _gates(ctx)
    runner = _runner("pydantic_ai", "pydantic_ai", "pydantic-ai")
    return runner.asking_capability(gates) if tools is None else runner.asking_toolsets(tools, gates)


def adk(ctx: TurnContext | None = None) -> Any:
    """For `plugins` of google-adk's App, or of its runners: a plugin by which the mocks answer all tools.

    `ctx` as in `langchain`.
    """
    gates = _gates(ctx)
    return _runner("google_adk", "google.adk", "google-adk").asking_plugin(gates)


def _runner(name: str, package: str, title: str) -> Any:
    """The module of a framework. Raises UsageError where that is not installed."""
    try:
        import_module(package)
    except ImportError as error:
        raise UsageError(
            f"agentest.mocks: {title} is not installed where Agentest runs, or too old: {words_of(error)}"
        ) from error
    return import_module(f"agentest.agents.in_process.{name}")


def _gates(ctx: TurnContext | None) -> FindGate:
    if ctx is None:
        return asked
    if not isinstance(ctx, TurnContext):
        raise UsageError(
            f"agentest.mocks: `ctx` is {safe_repr(ctx):.100}; expected the ctx that a handler is given, or "
            "nothing: then it is the conversation that is under way where a tool is called"
        )
    gate = Gate.of(ctx)
    return lambda name: asked(name, gate)
