"""Run LangChain Runnables that take messages and compiled LangGraph graphs; mocks answer their tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any
from uuid import uuid4

from agentest.agents.chat_completions import to_wire
from agentest.agents.port import AgentReply
from agentest.agents.python_agent import read_answer
from agentest.domain.messages import Message, last_user_message
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import Remark, Usage
from agentest.plugins.frameworks.client import AskedCall, Begin, Framework, decide, output_text, result_text
from agentest.plugins.frameworks.tool_gate import FindGate, ToolGate, any_gate, gate_method
from agentest.plugins.protocols.approvals import Decision, approvals_of, asked_tools, question_text, resume
from agentest.plugins.protocols.model_messages import texts_of
from agentest.support.errors import AgentError, UsageError
from agentest.support.json_text import safe_repr

_HANDOFF = "__handoff_destination"
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
            "Bind its other inputs, or write a handler function (messages, ctx) around it"
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
            raise UsageError(f"agentest.mocks.langchain: {safe_repr(tool):.100} is not a tool of LangChain's")
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
        real = partial(run, tool, tool_input, *args, **kwargs)
        if gate is None or _hands_over(tool, gate, call_id):
            return real()
        arguments = _model_arguments(tool, tool_input)
        answer = gate.answer_plainly(tool.name, arguments, real, call_id, content_of)
        return _tool_message(tool, answer.value, call_id) if answer.mocked else answer.value

    return run_by_the_gate


def _gated_async(arun: Callable[..., Any], find: FindGate = any_gate) -> Callable[..., Any]:
    async def arun_by_the_gate(tool: Any, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
        gate, call_id = find(tool.name), kwargs.get("tool_call_id")
        real = partial(arun, tool, tool_input, *args, **kwargs)
        if gate is None or _hands_over(tool, gate, call_id):
            return await real()
        arguments = _model_arguments(tool, tool_input)
        answer = await gate.answer(tool.name, arguments, real, call_id, content_of)
        return _tool_message(tool, answer.value, call_id) if answer.mocked else answer.value

    return arun_by_the_gate


def _hands_over(tool: Any, gate: ToolGate, call_id: str | None) -> bool:
    if _HANDOFF not in (tool.metadata or {}):
        return False
    gate.let_pass(call_id)
    return True


def _model_arguments(tool: Any, tool_input: Any) -> Any:
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


_PAST = "a node of the graph answers itself, without a tool of LangChain's"


def prepare_graph(graph: Any) -> Begin:
    """Install the gate in LangChain's tools. Raises ValueError for a graph whose state has no messages."""
    if "messages" not in graph.channels:
        keys = ", ".join(f"`{key}`" for key in graph.channels if not key.startswith(("__", "branch:")))
        raise ValueError(
            f"the state of the graph has no `messages`, but {keys}; write a handler function (messages, ctx) "
            "that calls the graph with what it takes, and returns the reply"
        )
    install_gate()
    import_module("langgraph.checkpoint.memory")
    return lambda context, session_id: LangGraphConversation(graph, context, session_id)


class LangGraphConversation:
    """One conversation with a copy of the graph that has its own checkpointer."""

    def __init__(self, graph: Any, context: Any, session_id: str) -> None:
        saver = import_module("langgraph.checkpoint.memory").InMemorySaver()
        self._graph = graph.copy({"checkpointer": saver})
        self._context = {} if context is None else {"context": context}
        self._config = {"configurable": {"thread_id": session_id}}

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Run the graph with the user's last message, and at first with those before it."""
        model_calls, said_id = ModelCallCounter(), str(uuid4())
        human = import_module("langchain_core.messages").HumanMessage
        earlier = to_wire(messages[:-1]) if gate.turn_index == 0 else []
        graph_input = {"messages": [*earlier, human(last_user_message(messages).text, id=said_id)]}
        config = {**self._config, "callbacks": [model_calls.handler()]}
        while True:
            try:
                await self._graph.ainvoke(graph_input, config, **self._context)
            except Exception:
                with suppress(Exception):  # a failed graph may have no saved state
                    snapshot = await self._graph.aget_state(self._config)
                    _record_node_calls(_messages_since(said_id, snapshot.values.get("messages", [])), gate)
                raise
            state = await self._graph.aget_state(self._config)
            new = _messages_since(said_id, state.values.get("messages", []))
            if not state.next:
                break
            graph_input = _answered(state, new, gate)
        _record_node_calls(new, gate)
        structured = state.values.get("structured_response")
        last = new[-1] if new else None
        reply = AgentReply(
            texts_of(last.content) if last and structured is None else output_text(structured),
            remarks=tuple(_remarks(new[:-1])),
            author=getattr(last, "name", None),
        )
        return model_calls.counted(reply)


def _messages_since(said_id: str, messages: Sequence[Any]) -> list[Any]:
    user_positions = [i for i, message in enumerate(messages) if message.id == said_id]
    humans = user_positions or [i for i, message in enumerate(messages) if message.type == "human"]
    return list(messages[humans[-1] + 1 :]) if humans else list(messages)


def _remarks(messages: Sequence[Any]) -> Iterator[Remark]:
    for message in messages:
        if message.type == "ai" and (text := texts_of(message.content).strip()):
            yield Remark(message.name or "agent", text)


def _answered(state: Any, new: Sequence[Any], gate: ToolGate) -> Any:
    """Return the input with which an interrupted graph continues. Raises NoReply and AgentError."""
    interrupts = [{"id": each.id, "value": each.value} for each in getattr(state, "interrupts", ())]
    calls = [call for message in new for call in getattr(message, "tool_calls", ())]
    done = {message.tool_call_id for message in new if message.type == "tool"}
    open_calls = [call for call in calls if call["id"] not in done]
    asked, granting = list[AskedCall](), approvals_of(interrupts, Decision(True))
    for name in asked_tools(interrupts):
        call = next((call for call in open_calls if call["name"] == name), None)
        if call is None:
            asked.append(AskedCall(None, question=f"an answer: {question_text(interrupts):.500}"))
            continue
        open_calls.remove(call)
        runs = granting.get(str(name)) is Approval.GRANTED
        asked.append(AskedCall(name, call["args"], call["id"], runs=runs))
    for call in open_calls:
        gate.let_pass(call["id"])  # it waits for the answer, too
    try:
        if not interrupts:
            raise AgentError(f"the graph was interrupted before {state.next}, and asks nothing")
        decision = decide(gate, asked)
    except AgentError:
        _record_node_calls(new, gate)
        raise
    return import_module("langgraph.types").Command(resume=resume(interrupts, decision))


def _record_node_calls(messages: Sequence[Any], gate: ToolGate) -> None:
    results = {message.tool_call_id: message for message in messages if message.type == "tool"}
    for message in messages:
        for call in getattr(message, "tool_calls", ()):
            if gate.saw(call["id"], call["name"], call["args"]):
                continue
            result = results.get(call["id"])
            if result is None or result.status == "error":
                why = "no answer" if result is None else texts_of(result.content)
                gate.note_not_run(call["name"], call["args"], why, call["id"])
            else:
                gate.note_past(call["name"], call["args"], texts_of(result.content), _PAST)


open_runnable = Framework("LangChain", prepare, takes_history=True).open
open_graph = Framework("LangGraph", prepare_graph, takes_history=True).open
