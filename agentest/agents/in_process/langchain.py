"""Run LangChain Runnables that take messages, and let mocks answer LangChain's tools.

LangGraph's agents use the same tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

from agentest.agents.chat_completions import to_wire
from agentest.agents.in_process.tool_gate import (
    Begin,
    FindGate,
    ToolGate,
    any_gate,
    gate_method,
    output_text,
    result_text,
)
from agentest.agents.port import AgentReply
from agentest.agents.python_calls import read_answer
from agentest.domain.messages import Message
from agentest.domain.transcript import Usage
from agentest.support.errors import UsageError
from agentest.support.json_text import safe_repr

_HANDOFF = "__handoff_destination"
"""Metadata key of the handoff tools in langgraph-supervisor and langgraph-swarm."""
_MESSAGES = "messages"


def prepare(runnable: Any) -> Begin:
    """Install the gate in LangChain's tools. Raises ValueError for a Runnable that takes no messages."""
    install_gate()
    wanted = _required_keys(runnable)
    others = wanted - {_MESSAGES}
    if others:
        names = ", ".join(f"`{name}`" for name in sorted(others))
        raise ValueError(
            f"the Runnable takes {names}; expected one that takes a list of messages, or `messages` alone. "
            "Put what it needs besides into it, or write a handler function (messages, ctx) around it"
        )
    return lambda *_: LangChainConversation(runnable, bool(wanted))


def _required_keys(runnable: Any) -> set[str]:
    try:
        schema = runnable.get_input_jsonschema()
    except Exception:  # noqa: BLE001 - the user's types may have no schema
        return set()
    if schema.get("type") != "object":
        return set()
    return {*schema.get("required", ()), *({_MESSAGES} & schema.get("properties", {}).keys())}


class LangChainConversation:
    """One conversation with a Runnable. Each call sends the whole history, and Agentest answers its calls."""

    def __init__(self, runnable: Any, by_name: bool) -> None:
        self._runnable = runnable
        self._by_name = by_name

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:  # noqa: ARG002 - tools find it
        """Call the Runnable with the conversation so far."""
        history = import_module("langchain_core.messages").convert_to_messages(to_wire(messages))
        model_calls = ModelCallCounter()
        chain_input = {_MESSAGES: history} if self._by_name else history
        answer = await self._runnable.ainvoke(chain_input, {"callbacks": [model_calls.handler()]})
        is_message = isinstance(answer, import_module("langchain_core.messages").BaseMessage)
        reply = read_answer(answer) if is_message else AgentReply(output_text(answer))
        return model_calls.counted(reply)


class ModelCallCounter:
    """Counts model calls and tokens in one turn."""

    def __init__(self) -> None:
        self.model_calls = 0
        self.usage = Usage()

    def handler(self) -> Any:
        """Return a LangChain callback handler that counts model responses."""
        return _handler_class()(self)

    def note(self, result: Any) -> None:
        """Count a model response."""
        self.model_calls += 1
        for generations in result.generations:
            for generation in generations:
                used = getattr(getattr(generation, "message", None), "usage_metadata", None) or {}
                cached = (used.get("input_token_details") or {}).get("cache_read", 0)
                self.usage += Usage(used.get("input_tokens", 0), used.get("output_tokens", 0), cached or 0)

    def counted(self, reply: AgentReply) -> AgentReply:
        """Return the reply with the counts. Models called without LangChain are not counted."""
        if not self.model_calls:
            return reply
        return replace(reply, usage=self.usage, model_calls=self.model_calls)


@cache
def _handler_class() -> type[Any]:
    base: Any = import_module("langchain_core.callbacks").BaseCallbackHandler

    class Counting(base):  # type: ignore[misc]
        """Reports the responses of models."""

        def __init__(self, model_calls: ModelCallCounter) -> None:
            super().__init__()
            self._asked = model_calls

        def on_llm_end(self, response: Any, **_: Any) -> None:
            self._asked.note(response)

    return Counting


def install_gate() -> None:
    """Route every call of a LangChain tool through the gate, from tool nodes and from the user's code."""
    tool = import_module("langchain_core.tools").BaseTool
    gate_method(tool, "run", _gated)
    gate_method(tool, "arun", _gated_async)


def asking_tools(tools: Iterable[Any], find: FindGate) -> list[Any]:
    """Return copies of the tools that call a gate. Raises UsageError for a value that is not a tool."""
    # Tools that are mappings run at the model's provider.
    return [tool if isinstance(tool, Mapping) else _with_gate(tool, find) for tool in tools]


def _with_gate(tool: Any, find: FindGate) -> Any:
    kinds = import_module("langchain_core.tools")
    if not isinstance(tool, kinds.BaseTool):
        if not callable(tool):
            raise UsageError(f"agentest.mocks.langchain: {safe_repr(tool):.100} is no tool of LangChain's")
        tool = kinds.tool(tool)
    gated_tool, known = tool.model_copy(), tool
    # Set instance attributes that hide the class's methods. The originals are looked up at call time, because
    # a gate may be installed later.
    run = _gated(lambda _, *args, **kwargs: known.run(*args, **kwargs), find)
    arun = _gated_async(lambda _, *args, **kwargs: known.arun(*args, **kwargs), find)
    object.__setattr__(gated_tool, "run", partial(run, known))
    object.__setattr__(gated_tool, "arun", partial(arun, known))
    return gated_tool


def _gated(run: Callable[..., Any], find: FindGate = any_gate) -> Callable[..., Any]:
    def run_by_the_gate(tool: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        gate, call_id = find(tool.name), kwargs.get("tool_call_id")
        if gate is None or _hands_over(tool, gate, call_id):
            return run(tool, tool_input, *args, **kwargs)
        answer = gate.answer_plainly(
            tool.name,
            _model_arguments(tool, tool_input),
            lambda: run(tool, tool_input, *args, **kwargs),
            call_id,
            content_of,
        )
        return _tool_message(tool, answer.value, call_id) if answer.mocked else answer.value

    return run_by_the_gate


def _gated_async(arun: Callable[..., Any], find: FindGate = any_gate) -> Callable[..., Any]:
    async def arun_by_the_gate(tool: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        gate, call_id = find(tool.name), kwargs.get("tool_call_id")
        if gate is None or _hands_over(tool, gate, call_id):
            return await arun(tool, tool_input, *args, **kwargs)
        answer = await gate.answer(
            tool.name,
            _model_arguments(tool, tool_input),
            lambda: arun(tool, tool_input, *args, **kwargs),
            call_id,
            content_of,
        )
        return _tool_message(tool, answer.value, call_id) if answer.mocked else answer.value

    return arun_by_the_gate


def _hands_over(tool: Any, gate: ToolGate, call_id: str | None) -> bool:
    if _HANDOFF not in (tool.metadata or {}):
        return False
    gate.let_pass(call_id)
    return True


def _model_arguments(tool: Any, tool_input: Any) -> Any:
    """Return the model's arguments, without those that the graph injects (state, store, the tool itself)."""
    if not isinstance(tool_input, Mapping):
        return {"input": tool_input}
    schema = tool.tool_call_schema
    known = schema.model_fields if hasattr(schema, "model_fields") else schema.get("properties", {})
    injected = set(tool.get_input_schema().model_fields) - set(known) | set(
        getattr(tool, "_injected_args_keys", ())
    )
    return {key: value for key, value in tool_input.items() if key not in injected}


def _tool_message(tool: Any, value: Any, call_id: str | None) -> Any:
    if call_id is None:
        return value
    message = import_module("langchain_core.messages").ToolMessage
    return message(content=result_text(value), tool_call_id=call_id, name=tool.name)


def content_of(result: Any) -> Any:
    """Return a tool's result without the message around it."""
    is_message = hasattr(result, "content") and hasattr(result, "tool_call_id")
    return result.content if is_message else result


def text_of(content: Any) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part if isinstance(part, str) else str(part.get("text") or "") for part in parts)
