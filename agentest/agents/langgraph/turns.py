"""Which messages belong to a turn, and what they say."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.langgraph.messages import AI, HUMAN, TOOL, OnUnknown, Wire, kind_of, text_of
from agentest.domain.transcript import Remark


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The user's message as it was sent."""

    id: str
    text: str


def after_user(messages: Sequence[Wire], sent: Sent | None) -> Sequence[Wire]:
    """What follows the user's message; everything where that is not there (any more).

    Not every graph keeps the ids of messages: the last of a user with this text will do.
    """
    users = [index for index, message in enumerate(messages) if kind_of(message) == HUMAN]
    for index in reversed(users) if sent else ():
        if messages[index].get("id") == sent.id:  # type: ignore[union-attr]
            return messages[index + 1 :]
    if sent and users and text_of(messages[users[-1]]).strip() == sent.text.strip():
        return messages[users[-1] + 1 :]
    return messages


def new_in_state(messages: Sequence[Wire], known: Container[str], sent: Sent | None) -> list[Wire]:
    """What a graph's state holds of this turn: what follows the user's message, and is not older.

    Messages without ids cannot be told from older ones where the user's is missing: those after the last
    message of any user are taken then.
    """
    later = after_user(messages, sent)
    if len(later) == len(messages) and not all(m.get("id") for m in messages):
        last = max((i for i, m in enumerate(messages) if kind_of(m) == HUMAN), default=-1)
        later = messages[last + 1 :]
    old = known if len(later) == len(messages) else ()
    return [m for m in later if _is_said(m) and m.get("id") not in old]


def new_on_the_way(told: Iterable[Wire], known: Container[str]) -> list[Wire]:
    """What nodes have added in this turn, each message once, in its latest form."""
    named: dict[str, Wire] = {}
    for number, message in enumerate(told):
        if _is_said(message) and message.get("id") not in known:
            named[message.get("id") or f"#{number}"] = message
    return [*named.values()]


def merged(told: Sequence[Wire], state: Sequence[Wire]) -> list[Wire]:
    """Messages of both in order. What was told without an id has one in the state: the calls alone count."""
    if not told:
        return [*state]
    ids = {m.get("id") for m in told}
    return [*told, *(m for m in state if not m.get("id") or m["id"] not in ids)]


def distinct(messages: Sequence[Wire]) -> Sequence[Wire]:
    """Each message once: those with ids, where there are any, as the others come again with one."""
    return [m for m in messages if m.get("id")] or messages


def _is_said(message: Wire) -> bool:
    return kind_of(message) in (AI, TOOL)


def reply_of(messages: Sequence[Wire], on_unknown: OnUnknown) -> tuple[str | None, Wire | None]:
    """The reply in a turn's messages, and the message that it is.

    The text of the last message; else of the last that calls no tool; else what a tool has answered that
    ends the turn by itself (`return_direct`).
    """
    spoken = [m for m in messages if kind_of(m) == AI and text_of(m, on_unknown).strip()]
    if spoken and spoken[-1] is messages[-1]:
        return text_of(spoken[-1]), spoken[-1]
    final = [m for m in spoken if not m.get("tool_calls")]
    if final:
        return text_of(final[-1]), final[-1]
    if messages and kind_of(messages[-1]) == TOOL:
        return text_of(messages[-1]) or None, messages[-1]
    return None, None


def remarks_of(messages: Sequence[Wire], reply: str | None, agent: str) -> tuple[Remark, ...]:
    """What was said on the way to the reply."""
    spoken = [m for m in messages if kind_of(m) == AI and text_of(m).strip()]
    said = [Remark(_author(m, agent), text_of(m)) for m in spoken]
    last = max((i for i, remark in enumerate(said) if remark.text == reply), default=len(said))
    return (*said[:last], *said[last + 1 :])


def _author(message: Wire, agent: str) -> str:
    name: Any = message.get("name")
    return name if isinstance(name, str) and name else agent
