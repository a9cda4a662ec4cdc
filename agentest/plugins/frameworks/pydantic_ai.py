"""Run pydantic-ai agents, with their tools answered by mocks.

A capability intercepts the tools of every run, including runs within a tool.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

from agentest.agents.port import AgentReply
from agentest.config.agents.base import types_with
from agentest.domain.messages import Message, last_user_message
from agentest.domain.transcript import Usage
from agentest.plugins.frameworks.client import AskedCall, Begin, Framework, decide, output_text
from agentest.plugins.frameworks.tool_gate import FindGate, ToolGate, any_gate, current_gate, gate_method
from agentest.support.calling import NonWaitingExecutor, message_of_error
from agentest.support.errors import AgentError
from agentest.support.json_text import json_text
from agentest.support.lazy_dataclasses import dataclass

_NATIVE_CALLS = ("native-tool-call", "builtin-tool-call")
_AT_THE_PROVIDER = "is a native tool that runs at the model's provider"


def prepare(agent: Any) -> Begin:
    """Install the gate in the tools of all pydantic-ai runs."""
    _own_capability()
    gate_method(import_module("pydantic_ai").Agent, "iter", _gated)
    return lambda context, _: PydanticAIConversation(agent, context)


def _gated(iterate: Callable[..., Any]) -> Callable[..., Any]:
    def iter_by_the_gate(*args: Any, **kwargs: Any) -> Any:
        if current_gate() is not None:
            kwargs["capabilities"] = [*(kwargs.get("capabilities") or ()), _own_capability()]
        return iterate(*args, **kwargs)

    return iter_by_the_gate


@cache
def _own_capability() -> Any:
    return asking_capability(any_gate)


def asking_capability(find: FindGate) -> Any:
    """Return a capability through which all tools of an agent or a run call a gate."""
    base: Any = import_module("pydantic_ai.capabilities").AbstractCapability

    class MockCapability(base):  # type: ignore[misc]
        """Answers tool calls instead of the tools."""

        async def prepare_output_tools(self, _: Any, tool_defs: list[Any]) -> list[Any]:
            if tool_defs and (gate := find(tool_defs[0].name)):
                gate.ignore(tool_def.name for tool_def in tool_defs)
            return tool_defs

        async def wrap_tool_validate(self, _: Any, *, call: Any, args: Any, handler: Any, **__: Any) -> Any:
            try:
                return await handler(args)
            except Exception as error:
                if gate := find(call.tool_name):
                    gate.note(
                        call.tool_name,
                        _parsed_arguments(call),
                        {"error": message_of_error(error)},
                        call.tool_call_id,
                    )
                raise

        async def wrap_tool_execute(self, ctx: Any, *, call: Any, args: Any, handler: Any, **_: Any) -> Any:
            if call.tool_kind in _OF_THE_FRAMEWORK or (gate := find(call.tool_name)) is None:
                return await handler(args)
            if not ctx.tool_call_approved and _toolset_asks(ctx, call.tool_name, args):
                raise import_module("pydantic_ai").ApprovalRequired
            answer = await gate.answer(
                call.tool_name, _parsed_arguments(call), lambda: handler(args), call.tool_call_id
            )
            return answer.value

    return MockCapability()


def _toolset_asks(ctx: Any, name: str, args: Any) -> bool:
    """Return True if a toolset around the tool asks for approval, which its mock must not answer before."""
    tool: Any = (getattr(ctx.tool_manager, "tools", None) or {}).get(name)
    toolset = getattr(tool, "source_toolset", getattr(tool, "toolset", None))
    while toolset is not None:
        if (asks := getattr(toolset, "approval_required_func", None)) and asks(ctx, tool.tool_def, args):
            return True
        toolset = getattr(toolset, "wrapped", None)
    return False


def asking_toolsets(tools: Iterable[Any], find: FindGate) -> list[Any]:
    """Return toolsets whose tools call a gate: one for all functions and tools, and one per toolset."""
    kinds: Any = import_module("pydantic_ai.toolsets")
    toolsets = list(tools)
    alone = [tool for tool in toolsets if not isinstance(tool, kinds.AbstractToolset)]
    sets = [tool for tool in toolsets if isinstance(tool, kinds.AbstractToolset)]
    asking = _toolset_class()
    return [asking(each, find) for each in ([kinds.FunctionToolset(alone)] if alone else []) + sets]


@cache
def _toolset_class() -> type[Any]:
    base: Any = import_module("pydantic_ai.toolsets").WrapperToolset

    @dataclass
    class AskingToolset(base):  # type: ignore[misc]
        """Answers tool calls instead of the tools."""

        find: FindGate

        async def call_tool(self, name: str, tool_args: dict[str, Any], ctx: Any, tool: Any) -> Any:
            gate = self.find(name)
            if gate is None:
                return await self.wrapped.call_tool(name, tool_args, ctx, tool)
            arguments = json.loads(json_text(tool_args))  # the arguments may already be models
            run = partial(self.wrapped.call_tool, name, tool_args, ctx, tool)
            return (await gate.answer(name, arguments, run, ctx.tool_call_id)).value

    return AskingToolset


_OF_THE_FRAMEWORK = ("tool-search", "capability-load")


def _parsed_arguments(call: Any) -> Any:
    try:
        return call.args_as_dict()
    except (ValueError, AssertionError):
        return call.args


class PydanticAIConversation:
    """One conversation. Its messages are passed to the next run."""

    def __init__(self, agent: Any, deps: Any) -> None:
        self._agent = agent
        self._deps = deps
        self._history: list[Any] = []

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Run the agent with the user's last message."""
        usage, model_calls, given = Usage(), 0, dict[str, Any]()
        while True:
            result = await self._run(last_user_message(messages).text if not given else None, gate, given)
            self._history = result.all_messages()
            used = result.usage if hasattr(result.usage, "requests") else result.usage()
            usage += Usage(used.input_tokens, used.output_tokens, used.cache_read_tokens)
            model_calls += used.requests
            if type(result.output).__name__ != "DeferredToolRequests":
                break
            given = {"deferred_tool_results": _answered(result, gate)}
        _record_other_calls(result.new_messages(), gate)
        return AgentReply(output_text(result.output), usage=usage, model_calls=model_calls)

    async def _run(self, user_text: str | None, gate: ToolGate, given: Mapping[str, Any]) -> Any:
        settings = {"message_history": self._history or None, "deps": self._deps, "infer_name": False}
        capture = import_module("pydantic_ai").capture_run_messages
        # Sync tools run in threads that the process does not wait for at exit, in case they hang.
        with capture() as captured, self._agent.using_thread_executor(NonWaitingExecutor()):
            try:
                return await self._agent.run(user_text, **settings, **given)
            except Exception:
                _record_other_calls(captured[len(self._history) :], gate)
                raise


def _answered(result: Any, gate: ToolGate) -> Any:
    """Return the results with which the run continues. Raises NoReply and AgentError."""
    waits, approvals = result.output.calls, result.output.approvals
    asked = [AskedCall(call.tool_name, _parsed_arguments(call), call.tool_call_id) for call in approvals]
    for call in waits:
        gate.let_pass(call.tool_call_id)
    try:
        decision = decide(gate, asked) if asked else None
    finally:
        for each in asked:
            gate.let_pass(each.call_id)
        _record_other_calls(result.new_messages(), gate)
    if waits:
        raise AgentError(
            f"the agent's run waits for {waits[0].tool_name!r} to be run by the caller, which is not "
            "supported in process: test the agent behind its server (type: "
            f"{' or '.join(types_with('pydanticai', 'approvals'))}), or leave the tool out under test"
        )
    tools = import_module("pydantic_ai.tools")
    made = tools.DeferredToolResults()
    for call in approvals:
        is_granted = decision is None or decision.about(call.tool_name).approved
        made.approvals[call.tool_call_id] = is_granted or tools.ToolDenied("The user refused.")
    return made


def _record_other_calls(messages: Sequence[Any], gate: ToolGate) -> None:
    parts = [part for message in messages for part in message.parts]
    results = {
        part.tool_call_id: part.content
        for part in parts
        if hasattr(part, "tool_call_id") and str(part.part_kind).endswith(("-return", "retry-prompt"))
    }
    for part in parts:
        if part.part_kind not in (*_NATIVE_CALLS, "tool-call"):
            continue
        call_id, name, args = part.tool_call_id, part.tool_name, _parsed_arguments(part)
        result = results.get(call_id)
        if part.part_kind in _NATIVE_CALLS:
            gate.note_past(name, args, result, _AT_THE_PROVIDER)
        elif not gate.saw(call_id, name, args):
            gate.note_not_run(name, args, result or "no answer", call_id)


open_object = Framework("pydantic-ai", prepare).open
