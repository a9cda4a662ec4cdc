"""Which messages of a thread belong to a turn, and what they say."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.langgraph.messages import AI, HUMAN, TOOL, OnUnknown, Wire, kind_of, text_of
from agentest.transcript import Remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The user's message as it was sent."""

    id: str
    text: str


def is_sent(message: Wire, sent: Sent) -> bool:
    return kind_of(message) == HUMAN and message.get("id") == sent.id


def place_of(messages: Sequence[Wire], sent: Sent) -> int | None:
    """Where the user's message stands; None where it is not there (any more).

    Not every graph keeps the ids of messages: the last of a user with this text will do.
    """
    for index, message in enumerate(messages):
        if is_sent(message, sent):
            return index
    users = [index for index, message in enumerate(messages) if kind_of(message) == HUMAN]
    return users[-1] if users and text_of(messages[users[-1]]).strip() == sent.text.strip() else None


def new_messages(messages: Mapping[str, Wire], known: Container[str], sent: Sent | None) -> dict[str, Wire]:
    """What the agent and its tools have added since the user's message, by key."""
    place = place_of([*messages.values()], sent) if sent else None
    start = 0 if place is None else place + 1
    later = [*messages.items()][start:]
    return {key: m for key, m in later if key not in known and kind_of(m) in (AI, TOOL)}


def reply_of(messages: Sequence[Wire], on_unknown: OnUnknown) -> tuple[str | None, Wire | None]:
    """The reply in a turn's messages, and the message that it is.

    The text of the last message; else of the last that calls no tool; else what a tool has answered that
    ends the turn by itself (`return_direct`).
    """
    spoken = [m for m in messages if kind_of(m) == AI and text_of(m, on_unknown).strip()]
    if messages and spoken and spoken[-1] is messages[-1]:
        return text_of(spoken[-1]), spoken[-1]
    final = [m for m in spoken if not m.get("tool_calls")]
    if final:
        return text_of(final[-1]), final[-1]
    if messages and kind_of(messages[-1]) == TOOL:
        return text_of(messages[-1]) or None, messages[-1]
    return None, None


def remarks_of(messages: Sequence[Wire], reply: Wire | None, agent: str) -> tuple[Remark, ...]:
    """What was said on the way to the reply."""
    return tuple(
        Remark(_author(m, agent), text_of(m))
        for m in messages
        if kind_of(m) == AI and m is not reply and text_of(m).strip()
    )


def _author(message: Wire, agent: str) -> str:
    name: Any = message.get("name")
    return name if isinstance(name, str) and name else agent
