"""Run agents of LiveKit Agents in text, with their function tools answered by mocks.

A LiveKit agent belongs to one session, so each conversation needs an agent of its own: the handler is a
function that makes one, or that starts a session as LiveKit's own tests do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from agentest.agents.port import AgentReply
from agentest.domain.messages import Message, last_user_message
from agentest.domain.transcript import Remark
from agentest.plugins.frameworks.tool_gate import Begin, NextAgent, ToolGate, gate_method, result_text
from agentest.support.errors import AgentestError

_gates: WeakKeyDictionary[Any, ToolGate] = WeakKeyDictionary()
"""Session → the gate of its turn. The session's tasks are older than the turn, so they do not inherit it."""


def prepare(_: Any, next_agent: NextAgent) -> Begin:
    """Install the gate in front of all function tools."""
    executor = import_module("livekit.agents.voice.tool_executor")._ToolExecutor
    gate_method(executor, "execute", _gated)
    return lambda context, _: LiveKitConversation(next_agent, context)


def _gated(execute: Callable[..., Any]) -> Callable[..., Any]:
    async def execute_by_the_gate(
        self: Any, *, tool: Any, run_ctx: Any, raw_arguments: dict[str, Any], **more: Any
    ) -> Any:
        async def real() -> Any:
            return await execute(self, tool=tool, run_ctx=run_ctx, raw_arguments=raw_arguments, **more)

        gate, call = _gates.get(run_ctx.session), run_ctx.function_call
        if gate is None:
            return await real()
        try:
            answer = await gate.answer(call.name, dict(raw_arguments), real, call.call_id, shown=_shown)
        except AgentestError:  # the gate has it, and it ends the turn
            raise import_module("livekit.agents").StopResponse from None
        return result_text(answer.value) if answer.mocked else answer.value

    return execute_by_the_gate


def _shown(value: Any) -> Any:
    """Return what a real tool answered as it is recorded: the name of the agent that it hands over to."""
    return value if isinstance(value, str | int | float | dict | list | None) else type(value).__name__


class LiveKitConversation:
    """One conversation: one session, which stores the history."""

    def __init__(self, next_agent: NextAgent, context: Any) -> None:
        self._next_agent = next_agent
        self._context = context
        self._session: Any = None

    async def close(self) -> None:
        """End the session."""
        if self._session is not None:
            await self._session.aclose()

    async def turn(self, messages: Sequence[Message], gate: ToolGate) -> AgentReply:
        """Run the session with the user's last message."""
        if self._session is None:
            await self._open(gate)
        _gates[self._session] = gate
        result = await self._session.run(user_input=last_user_message(messages).text)
        texts: list[str] = []
        outputs = {
            each.item.call_id: each.item for each in result.events if each.type == "function_call_output"
        }
        for event in result.events:
            if event.type == "function_call":
                _note_not_run(event.item, outputs.get(event.item.call_id), gate)
            elif event.type == "message" and event.item.role == "assistant" and event.item.text_content:
                texts.append(event.item.text_content)
        author = self._session.current_agent.label
        remarks = tuple(Remark(author, text) for text in texts[:-1])
        return AgentReply(texts[-1] if texts else None, remarks=remarks, author=author)

    async def _open(self, gate: ToolGate) -> None:
        made = await self._next_agent()
        session_class = import_module("livekit.agents").AgentSession
        if isinstance(made, session_class):
            self._session = made
            return
        self._session = session_class(**({} if self._context is None else {"userdata": self._context}))
        _gates[self._session] = gate
        await self._session.start(made, record=False)


def _note_not_run(call: Any, output: Any, gate: ToolGate) -> None:
    """Record a call that reached no tool, such as one of an unknown name."""
    if not gate.saw(call.call_id, call.name, call.arguments):
        gate.note_not_run(call.name, call.arguments, output.output if output else "no answer", call.call_id)
