"""The functions behind `agentest.mocks.langchain(tools, ctx)` and its siblings.

Each returns tools that its framework accepts, with unchanged names, descriptions and schemas. During a
conversation, its mocks answer the calls. Outside of a run, the real tools run, so the line can stay in
production code.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any, overload

from agentest.agents.in_process.tool_gate import FindGate, ToolGate, gate_for_wrapped_tool
from agentest.agents.port import TurnContext
from agentest.support.calling import message_of_error
from agentest.support.errors import UsageError
from agentest.support.json_text import safe_repr


def langchain(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]:
    """Return LangChain or LangGraph tools whose calls the mocks answer.

    Args:
        tools: tools, or functions to convert to tools. Tools of the model's provider (mappings) are
            unchanged.
        ctx: the handler's context. Default: the conversation in which a tool is called.
    """
    gates = _gates(ctx)
    wrapped: list[Any] = _framework_module("langchain", "langchain_core", "LangChain").asking_tools(
        tools, gates
    )
    return wrapped


def openai_agents(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]:
    """Return function tools of the OpenAI Agents SDK whose calls the mocks answer; `ctx` as in `langchain`.

    Tools that the provider runs are unchanged. Raises UsageError for a tool that acts on this machine.
    """
    gates = _gates(ctx)
    runner = _framework_module("openai_agents", "agents", "the OpenAI Agents SDK")
    wrapped: list[Any] = runner.asking_tools(tools, gates)
    return wrapped


@overload
def pydantic_ai(tools: None = None, ctx: TurnContext | None = None) -> Any: ...
@overload
def pydantic_ai(tools: Iterable[Any], ctx: TurnContext | None = None) -> list[Any]: ...
def pydantic_ai(tools: Iterable[Any] | None = None, ctx: TurnContext | None = None) -> Any:
    """Return a capability for pydantic-ai's `capabilities`, through which mocks answer all tools.

    Args:
        tools: functions, tools and toolsets. If given, the result is for `toolsets`, and mocks answer these.
        ctx: as in `langchain`.
    """
    gates = _gates(ctx)
    runner = _framework_module("pydantic_ai", "pydantic_ai", "pydantic-ai")
    return runner.asking_capability(gates) if tools is None else runner.asking_toolsets(tools, gates)


def adk(ctx: TurnContext | None = None) -> Any:
    """Return a plugin for the `plugins` of google-adk's App or runners, through which mocks answer all tools.

    `ctx` is as in `langchain`.
    """
    gates = _gates(ctx)
    return _framework_module("google_adk", "google.adk", "google-adk").asking_plugin(gates)


def _framework_module(name: str, package: str, title: str) -> Any:
    """Return a framework's module. Raises UsageError if the framework is not installed."""
    try:
        import_module(package)
    except ImportError as error:
        raise UsageError(
            f"agentest.mocks: {title} is not installed where Agentest runs, or too old: "
            f"{message_of_error(error)}"
        ) from error
    return import_module(f"agentest.agents.in_process.{name}")


def _gates(ctx: TurnContext | None) -> FindGate:
    if ctx is None:
        return gate_for_wrapped_tool
    if not isinstance(ctx, TurnContext):
        raise UsageError(
            f"agentest.mocks: `ctx` is {safe_repr(ctx):.100}; expected the ctx that a handler is given, or "
            "nothing: then it is the conversation that is under way where a tool is called"
        )
    gate = ToolGate.of(ctx)
    return lambda name: gate_for_wrapped_tool(name, gate)
