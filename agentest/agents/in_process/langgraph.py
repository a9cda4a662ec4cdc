"""Run compiled LangGraph graphs, with an in-memory thread for each conversation and LangChain's tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any
from uuid import uuid4

from agentest.agents.in_process.langchain import ModelCallCounter, install_gate, text_of
from agentest.agents.in_process.tool_gate import Begin, ToolGate, output_text
from agentest.agents.port import AgentReply
from agentest.domain.messages import Message, last_user_message
from agentest.domain.transcript import Remark
from agentest.support.errors import AgentError

_PAST = "a node of the graph answers itself, without a tool of LangChain's"


def prepare(graph: Any) -> Begin:
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
        """Run the graph with the user's last message."""
        model_calls, said_id = ModelCallCounter(), str(uuid4())
        human = import_module("langchain_core.messages").HumanMessage
        graph_input = {"messages": [human(last_user_message(messages).text, id=said_id)]}
        config = {**self._config, "callbacks": [model_calls.handler()]}
        try:
            await self._graph.ainvoke(graph_input, config, **self._context)
        except Exception:
            with suppress(Exception):  # a failed graph may have no saved state
                snapshot = await self._graph.aget_state(self._config)
                _record_other_calls(_messages_since(said_id, snapshot.values.get("messages", [])), gate)
            raise
        state = await self._graph.aget_state(self._config)
        new = _messages_since(said_id, state.values.get("messages", []))
        _record_other_calls(new, gate)
        _refuse_interrupts(state)
        structured = state.values.get("structured_response")
        last = new[-1] if new else None
        reply = AgentReply(
            text_of(last.content) if last and structured is None else output_text(structured),
            remarks=tuple(_remarks(new[:-1])),
            author=getattr(last, "name", None),
        )
        return model_calls.counted(reply)


def _messages_since(said_id: str, messages: Sequence[Any]) -> list[Any]:
    """Return the messages after this user message, or after the last one if the graph did not store it."""
    user_positions = [i for i, message in enumerate(messages) if message.id == said_id]
    humans = user_positions or [i for i, message in enumerate(messages) if message.type == "human"]
    return list(messages[humans[-1] + 1 :]) if humans else list(messages)


def _remarks(messages: Sequence[Any]) -> Iterator[Remark]:
    for message in messages:
        if message.type == "ai" and (text := text_of(message.content).strip()):
            yield Remark(message.name or "agent", text)


def _refuse_interrupts(state: Any) -> None:
    if not state.next:
        return
    asks = (
        "; ".join(f"{interrupt.value}" for interrupt in getattr(state, "interrupts", ()))
        or f"before {state.next}"
    )
    raise AgentError(
        f"the graph was interrupted and waits for an answer: {asks:.500}. Interrupts are not supported in "
        "process: test the graph behind its server (type: langgraph), or leave the interrupt out under test"
    )


def _record_other_calls(messages: Sequence[Any], gate: ToolGate) -> None:
    results = {message.tool_call_id: message for message in messages if message.type == "tool"}
    for message in messages:
        for call in getattr(message, "tool_calls", ()):
            if gate.saw(call["id"], call["name"], call["args"]):
                continue
            result = results.get(call["id"])
            if result is None or result.status == "error":
                why = "no answer" if result is None else text_of(result.content)
                gate.note_not_run(call["name"], call["args"], why, call["id"])
            else:
                gate.note_past(call["name"], call["args"], text_of(result.content), _PAST)
