"""A metric's whole input: frozen, made once a turn, the same for every metric."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.support.builtin_values import copied_quickly
from agentest.support.json_text import copied
from agentest.support.replacing import replace


@dataclass(frozen=True, slots=True)
class TurnInput:
    """One turn to be judged. `history` are the turns before it."""

    goal: str
    profile: str
    knowledge: tuple[str, ...]
    user_message: str
    agent_message: str
    tool_calls: tuple[ToolCall, ...]
    history: tuple[Turn, ...]
    turn_index: int

    def copied(self) -> TurnInput:
        """The same for code of the user's own, which may change its input."""
        calls = tuple(map(copied_call, self.tool_calls))
        return replace(self, tool_calls=calls, history=tuple(map(copied_turn, self.history)))


@dataclass(frozen=True, slots=True)
class ConversationInput:
    """A whole conversation to be judged."""

    goal: str
    profile: str
    knowledge: tuple[str, ...]
    turns: tuple[Turn, ...]

    def copied(self) -> ConversationInput:
        """The same for code of the user's own, which may change its input."""
        return replace(self, turns=tuple(map(copied_turn, self.turns)))


def copied_conversation(conversation: Conversation) -> Conversation:
    """The conversation for code of the user's own: with calls and a state of its own, as they are told."""
    unfinished = conversation.unfinished
    return replace(
        conversation,
        turns=tuple(map(copied_turn, conversation.turns)),
        unfinished=unfinished
        and replace(unfinished, tool_calls=tuple(map(copied_call, unfinished.tool_calls))),
        mock_state=copied_quickly(conversation.mock_state),
        user_calls=tuple(map(copied_call, conversation.user_calls)),
        live_state=None,
    )


def copied_turn(turn: Turn) -> Turn:
    """The turn with calls of its own."""
    return replace(turn, tool_calls=tuple(map(copied_call, turn.tool_calls))) if turn.tool_calls else turn


def copied_call(call: ToolCall) -> ToolCall:
    """The call with arguments and a result of its own."""
    return replace(call, args=copied(call.args), result=copied(call.result))
