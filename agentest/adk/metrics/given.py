"""Invocations that somebody hands over, as a conversation that the graders know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentest.adk.formats.model import (
    FunctionCall,
    FunctionResponse,
    IntermediateData,
    Invocation,
    InvocationEvents,
    answered_calls,
    text_of,
    tool_calls,
)
from agentest.adk.metrics.beside_the_reply import said_before
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import Conversation, Remark, ToolCall, Turn
from agentest.store.invocations import unwrapped


def conversation_of(invocations: Sequence[Invocation]) -> Conversation:
    """The invocations as the turns of a conversation."""
    turns = tuple(_turn(invocation, index) for index, invocation in enumerate(invocations))
    return Conversation("invocations", turns, Ending.SCRIPT)


def _turn(invocation: Invocation, index: int) -> Turn:
    data = invocation.intermediate_data
    return Turn(
        turn_index=index,
        user_message=text_of(invocation.user_content),
        agent_message=text_of(invocation.final_response),
        tool_calls=tuple(_call(call, response, index) for call, response in answered_calls(data)),
        remarks=tuple(_remarks(data)),
    )


def _remarks(data: IntermediateData | InvocationEvents | None) -> Iterator[Remark]:
    """What was said before the reply; events tell after how many calls, too."""
    if not isinstance(data, InvocationEvents):
        yield from (Remark(author, text) for author, text in said_before(data))
        return
    calls = 0
    for event in data.invocation_events:
        alone = InvocationEvents((event,))
        yield from (Remark(author, text, calls) for author, text in said_before(alone))
        calls += len(list(tool_calls(alone)))


def _call(call: FunctionCall, response: FunctionResponse | None, index: int) -> ToolCall:
    answer: Any = response.response if response else None
    return ToolCall(
        name=call.name or "",
        args=call.args,  # absent arguments stay absent: to ADK they are not the same as none
        result=unwrapped(answer) if answer is not None else None,
        mocked=False,
        turn_index=index,
    )
