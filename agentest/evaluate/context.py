"""A metric's whole input: frozen, made once a turn, the same for every metric."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.transcript import ToolCall, Turn


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


@dataclass(frozen=True, slots=True)
class ConversationInput:
    """A whole conversation to be judged."""

    goal: str
    profile: str
    knowledge: tuple[str, ...]
    turns: tuple[Turn, ...]
