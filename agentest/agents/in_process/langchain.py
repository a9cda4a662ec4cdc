"""LangChain: its tools, which LangGraph's agents use as well, and Runnables that take messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from agentest.agents.chat_completions import to_wire
from agentest.agents.in_process.framework import Begin, FindGate, output_text, result_text
from agentest.agents.in_process.tool_gate import Gate, current, place
from agentest.agents.port import AgentReply
from agentest.agents.python_calls import read_answer
from agentest.domain.messages import Message
from agentest.domain.transcript import Usage
from agentest.support.errors import UsageError
from agentest.support.json_text import safe_repr

_HANDOFF = "__handoff_destination"
"""A key in the metadata of tools by which langgraph-supervisor and langgraph-swarm hand over."""
_MESSAGES = "messages"


def prepare(runnable: Any) -> Begin:
    """Stand before LangChain's tools. Raises ValueError for a Runnable that takes no messages."""
    stand_before_tools()
    wanted = _wanted(runnable)
    others = wanted - {_MESSAGES}
    if others:
        names = ", ".join(f"`{name}`" for name in sorted(others))
        raise ValueError(
            f"the Runnable takes {names}; expected one that takes a list of messages, or `messages` alone. "
            "Put what it needs besides into it, or write a handler function (messages, ctx) around it"
        )
    return lambda *_: LangChainTalk(runnable, bool(wanted))


def _wanted(runnable: Any) -> set[str]:
    """The names that a Runnable's input must have; none for one that takes messages as they are."""
    try:
        schema = runnable.get_input_jsonschema()
    except Exception:  # noqa: BLE001 - types of the user's that have no schema
        return set()
    if schema.get("type") != "object":
        return set()
    return {*schema.get("required", ()), *({_MESSAGES} & schema.get("properties", {}).keys())}


class LangChainTalk:
    """One conversation with a Runnable: every call brings all of it, and calls in its answer are ours."""

    def __init__(self, runnable: Any, by_name: bool) -> None:
        self._runnable = runnable
        self._by_name = by_name

    async def turn(self, messages: Sequence[Message], gate: Gate) -> AgentReply:  # noqa: ARG002 - tools find it
        """Call the Runnable with the conversation so far."""
        said = import_module("langchain_core.messages").convert_to_messages(to_wire(messages))
        asked = Asked()
        given = {_MESSAGES: said} if self._by_name else said
        answer = await self._runnable.ainvoke(given, {"callbacks": [asked.handler()]})
        is_message = isinstance(answer, import_module("langchain_core.messages").BaseMessage)
        reply = read_answer(answer) if is_message else AgentReply(output_text(answer))
        return asked.counted(reply)


class Asked:
    """How often models were asked in one turn, and what they used."""

    def __init__(self) -> None:
        self.model_calls = 0
        self.usage = Usage()

    def handler(self) -> Any:
        """What LangChain calls with every answer of a model."""
        return _handler_class()(self)

    def note(self, result: Any) -> None:
        """Count an answer of a model."""
        self.model_calls += 1
        for generations in result.generations:
            for generation in generations:
                used = getattr(getattr(generation, "message", None), "usage_metadata", None) or {}
                cached = (used.get("input_token_details") or {}).get("cache_read", 0)
                self.usage += Usage(used.get("input_tokens", 0), used.get("output_tokens", 0), cached or 0)

    def counted(self, reply: AgentReply) -> AgentReply:
        """The reply with what was counted; a model that LangChain did not call is not known of."""
        if not self.model_calls:
            return reply
        return AgentReply(
            text=reply.text,
            tool_requests=reply.tool_requests,
            usage=self.usage,
            model_calls=self.model_calls,
            remarks=reply.remarks,
            author=reply.author,
        )


@cache
def _handler_class() -> type[Any]:
    base: Any = import_module("langchain_core.callbacks").BaseCallbackHandler

    class Counting(base):  # type: ignore[misc]
        """Tells of the answers of models."""

        def __init__(self, asked: Asked) -> None:
            super().__init__()
            self._asked = asked

        def on_llm_end(self, response: Any, **_: Any) -> None:
            self._asked.note(response)

    return Counting


def stand_before_tools() -> None:
    """Lead every call of LangChain's tools by the gate, made by a tool node or by the user's code."""
    tool = import_module("langchain_core.tools").BaseTool
    place(tool, "run", _gated)
    place(tool, "arun", _gated_async)


def asking_tools(tools: Iterable[Any], find: FindGate) -> list[Any]:
    """Tools that ask a gate, and are like the tools otherwise. Raises UsageError for what is no tool."""
    return [_asking(tool, find) for tool in tools]


def _asking(tool: Any, find: FindGate) -> Any:
    if isinstance(tool, Mapping):
        return tool  # it runs at the model's provider
    kinds = import_module("langchain_core.tools")
    if not isinstance(tool, kinds.BaseTool):
        if not callable(tool):
            raise UsageError(f"agentest.mocks.langchain: {safe_repr(tool):.100} is no tool of LangChain's")
        tool = kinds.tool(tool)
    asking, known = tool.model_copy(), tool
    # Not fields, but what is called before the methods of the class. Those are looked up when they are
    # called: by then a gate may have been placed before them.
    run = _gated(lambda _, *args, **kwargs: known.run(*args, **kwargs), find)
    arun = _gated_async(lambda _, *args, **kwargs: known.arun(*args, **kwargs), find)
    object.__setattr__(asking, "run", partial(run, known))
    object.__setattr__(asking, "arun", partial(arun, known))
    return asking


def _anybodys(_: str) -> Gate | None:
    return current()


def _gated(run: Callable[..., Any], find: FindGate = _anybodys) -> Callable[..., Any]:
    def run_by_the_gate(tool: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        gate, call_id = find(tool.name), kwargs.get("tool_call_id")
        if gate is None or _hands_over(tool, gate, call_id):
            return run(tool, tool_input, *args, **kwargs)
        answer = gate.answer_plainly(
            tool.name,
            _args(tool, tool_input),
            lambda: run(tool, tool_input, *args, **kwargs),
            call_id,
            content_of,
        )
        return _as_message(tool, answer.value, call_id) if answer.mocked else answer.value

    return run_by_the_gate


def _gated_async(arun: Callable[..., Any], find: FindGate = _anybodys) -> Callable[..., Any]:
    async def arun_by_the_gate(tool: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        gate, call_id = find(tool.name), kwargs.get("tool_call_id")
        if gate is None or _hands_over(tool, gate, call_id):
            return await arun(tool, tool_input, *args, **kwargs)
        answer = await gate.answer(
            tool.name,
            _args(tool, tool_input),
            lambda: arun(tool, tool_input, *args, **kwargs),
            call_id,
            content_of,
        )
        return _as_message(tool, answer.value, call_id) if answer.mocked else answer.value

    return arun_by_the_gate


def _hands_over(tool: Any, gate: Gate, call_id: str | None) -> bool:
    """Whether a tool is no tool, but leads to another agent of the graph."""
    if _HANDOFF not in (tool.metadata or {}):
        return False
    gate.let_pass(call_id)
    return True


def _args(tool: Any, tool_input: Any) -> Any:
    """What the model gave: not what the graph puts in besides, its state, its store, itself."""
    if not isinstance(tool_input, Mapping):
        return {"input": tool_input}
    schema = tool.tool_call_schema
    known = schema.model_fields if hasattr(schema, "model_fields") else schema.get("properties", {})
    injected = set(tool.get_input_schema().model_fields) - set(known) | set(
        getattr(tool, "_injected_args_keys", ())
    )
    return {key: value for key, value in tool_input.items() if key not in injected}


def _as_message(tool: Any, value: Any, call_id: str | None) -> Any:
    if call_id is None:
        return value
    message = import_module("langchain_core.messages").ToolMessage
    return message(content=result_text(value), tool_call_id=call_id, name=tool.name)


def content_of(result: Any) -> Any:
    """What a tool has answered, without the message around it."""
    is_message = hasattr(result, "content") and hasattr(result, "tool_call_id")
    return result.content if is_message else result


def text_of(content: Any) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part if isinstance(part, str) else str(part.get("text") or "") for part in parts)
