"""Run agents of the OpenAI Agents SDK, with their function tools answered by mocks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from agentest.agents.json_reader import read_arguments
from agentest.agents.port import AgentReply, NoReply
from agentest.domain.messages import Message, last_user_message
from agentest.domain.transcript import Remark, Usage
from agentest.plugins.frameworks.client import AskedCall, Begin, Framework, decide, output_text, result_text
from agentest.plugins.frameworks.tool_gate import FindGate, ToolGate, any_gate, current_gate, gate_method
from agentest.plugins.protocols.response_items import written
from agentest.support.errors import AgentError, UsageError
from agentest.support.json_text import safe_repr

_LOCAL_TOOLS = ("ComputerTool", "LocalShellTool", "ShellTool", "ApplyPatchTool", "CustomTool")
"""Tools that act on this machine without a function tool."""
_AT_THE_PROVIDER = "is a hosted tool that runs at the model's provider"


def prepare(agent: Any) -> Begin:
    """Install the gate in the tools of all SDK agents, because agents can call or hand over to others."""
    gate_method(import_module("agents.agent").AgentBase, "get_all_tools", _gated)
    return lambda context, _: OpenAIAgentsConversation(agent, context)


def _gated(get_all_tools: Callable[..., Any]) -> Callable[..., Any]:
    async def get_all_tools_by_the_gate(*args: Any, **kwargs: Any) -> Any:
        if args and current_gate() is not None:
            _check_connected(args[0])
        tools = await get_all_tools(*args, **kwargs)
        return tools if current_gate() is None else [_with_mock(tool) for tool in tools]

    return get_all_tools_by_the_gate


def _check_connected(agent: Any) -> None:
    for server in getattr(agent, "mcp_servers", ()):
        if getattr(server, "session", server) is None:
            raise AgentError(
                f"the agent's MCP server {server.name!r:.100} is not connected, which the SDK leaves to the "
                "application: let `handler` name an async function without parameters that awaits "
                "`server.connect()` and returns the agent"
            )


def asking_tools(tools: Iterable[Any], find: FindGate) -> list[Any]:
    """Return copies of the tools that call a gate. Raises UsageError for tools that cannot."""
    asking: list[Any] = []
    for tool in tools:
        if type(tool).__name__ in _LOCAL_TOOLS or not hasattr(tool, "name"):
            raise UsageError(
                f"agentest.mocks.openai_agents: found {safe_repr(tool):.100}, which mocks cannot take the "
                "place of: it acts on this machine, or is not a tool of the SDK (function_tool "
                "makes one of a "
                "function). Leave it out of the line, and of the agent under test"
            )
        asking.append(_with_gate(tool, find))
    return asking


def _with_mock(tool: Any) -> Any:
    kind = type(tool).__name__
    if kind in _LOCAL_TOOLS:
        raise AgentError(
            f"the agent has the tool {tool.name!r}, a {kind}: it acts on this machine, and mocks cannot take "
            "its place; leave it out of the agent under test"
        )
    return _with_gate(tool, any_gate)


def _with_gate(tool: Any, find: FindGate) -> Any:
    if not hasattr(tool, "on_invoke_tool"):
        return tool
    gated = copy.copy(tool)
    gated.on_invoke_tool = _by_the_gate(tool, find)
    return gated


def _by_the_gate(tool: Any, find: FindGate) -> Callable[[Any, str], Any]:
    async def on_invoke_tool(context: Any, arguments: str) -> Any:
        gate = find(tool.name)
        if gate is None:
            return await tool.on_invoke_tool(context, arguments)
        call_id = getattr(context, "tool_call_id", None)
        answer = await gate.answer(
            tool.name, read_arguments(arguments)[0], lambda: tool.on_invoke_tool(context, arguments), call_id
        )
        return result_text(answer.value) if answer.mocked else answer.value

    return on_invoke_tool


class OpenAIAgentsConversation:
    """One conversation. Each run continues with the previous messages and the last active agent."""

    def __init__(self, agent: Any, context: Any) -> None:
        self._agent = agent
        self._context = context
        self._items: list[Any] = []

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Run the agent with the user's last message."""
        run = import_module("agents").Runner.run
        user_message = {"role": "user", "content": last_user_message(messages).text}
        given: Any = [*(self._items or written(messages[:-1], {})), user_message]
        context = self._context
        while True:
            try:
                result = await run(self._agent, given, context=context)
            except Exception as error:
                _record_other_calls(getattr(getattr(error, "run_data", None), "new_items", ()), gate)
                raise
            if not result.interruptions:
                break
            given, context = _answered(result, gate), None
        _record_other_calls(result.new_items, gate)
        self._items, self._agent = result.to_input_list(), result.last_agent
        usage = result.context_wrapper.usage
        details = usage.input_tokens_details
        return AgentReply(
            output_text(result.final_output),
            usage=Usage(usage.input_tokens, usage.output_tokens, getattr(details, "cached_tokens", 0) or 0),
            model_calls=usage.requests or len(result.raw_responses),  # custom models may not count requests
            remarks=tuple(_remarks(result.new_items)),
            author=result.last_agent.name,
        )


def _answered(result: Any, gate: ToolGate) -> Any:
    items = result.interruptions
    raws = [(item.name, item.raw_item) for item in items]
    asked = [
        AskedCall(name, read_arguments(_field(raw, "arguments"))[0], _field(raw, "call_id"))
        for name, raw in raws
    ]
    try:
        decision = decide(gate, asked)
    except NoReply:
        _record_other_calls(result.new_items, gate)
        raise
    state = result.to_state()
    for item in items:
        (state.approve if decision.about(item.name).approved else state.reject)(item)
    return state


def _remarks(items: Sequence[Any]) -> Iterator[Remark]:
    message_items = [item for item in items if item.type == "message_output_item"]
    if message_items and items[-1] is message_items[-1]:
        message_items.pop()
    text_of = import_module("agents").ItemHelpers.text_message_output
    for item in message_items:
        if text := text_of(item).strip():
            yield Remark(item.agent.name, text)


def _record_other_calls(items: Sequence[Any], gate: ToolGate) -> None:
    outputs = {_field(item.raw_item, "call_id"): item.output for item in items if hasattr(item, "output")}
    for item in items:
        if item.type != "tool_call_item":
            continue
        raw = item.raw_item
        call_id, kind = _field(raw, "call_id"), _field(raw, "type")
        name = _field(raw, "name") or str(kind).removesuffix("_call")
        args = read_arguments(_field(raw, "arguments"))[0]
        if gate.saw(call_id, name, args):
            continue
        if kind == "function_call":
            gate.note_not_run(name, args, outputs.get(call_id, "no answer"), call_id)
        else:
            gate.note_past(name, args, _field(raw, "output"), _AT_THE_PROVIDER)


def _field(raw: Any, name: str) -> Any:
    return raw.get(name) if isinstance(raw, dict) else getattr(raw, name, None)


open_object = Framework("OpenAI Agents SDK", prepare, takes_history=True).open
