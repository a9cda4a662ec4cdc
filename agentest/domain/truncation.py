"""Prepare judged conversations for storage: remove secrets and cut oversized texts.

Mocks, checks, metrics and the agent itself have used the complete texts. The stored form states how long a
text was and where a secret was. The conversation and its turns are marked, so that they are not judged again
as if they were complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import is_
from typing import Any, TypeVar

from agentest.domain.results import ConversationResult, TrajectoryResult, TurnEvaluation
from agentest.domain.transcript import CUT_OFF, Conversation, Remark, ToolCall, Turn, UnfinishedTurn
from agentest.support.lazy_dataclasses import replace as replaced
from agentest.support.redaction import Redactor, without_secrets

MAX_CHARS = 1_000_000
"""The limit for one text, and for the arguments or the result of one call."""
_MAX_DEPTH = 100
_KNOWS_NO_SECRET = Redactor()
_T = TypeVar("_T")


def shortened(text: str, limit: int = MAX_CHARS) -> str:
    """Return the text, or its beginning with a note of its full length."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters, shortened)"


def shortened_value(value: Any) -> Any:
    """Cut a JSON value whose texts exceed MAX_CHARS in total; return a small value itself."""
    return value if value is None or _is_small(value) else _Cut().value(value, 0)


def stored(result: ConversationResult, redact: Redactor = _KNOWS_NO_SECRET) -> ConversationResult:
    """Return a judged conversation in its stored form; the same object if nothing is oversized or secret."""
    result = _shortened(result)
    hidden = without_secrets(result, redact)
    return result if hidden is result else _marked(hidden, result.conversation)


def _marked(hidden: ConversationResult, true: Conversation) -> ConversationResult:
    """Return a conversation without secrets, with a mark on the turns that had them."""
    conversation = hidden.conversation
    of_user = {
        call.turn_index
        for call, was in zip(conversation.user_calls, true.user_calls, strict=True)
        if call is not was
    }
    turns = tuple(
        replaced(turn, redacted=True) if turn is not was or turn.turn_index in of_user else turn
        for turn, was in zip(conversation.turns, true.turns, strict=True)
    )
    unfinished = conversation.unfinished
    if unfinished and (unfinished is not true.unfinished or unfinished.turn_index in of_user):
        unfinished = replaced(unfinished, redacted=True)
    return replaced(hidden, conversation=replaced(conversation, turns=turns, unfinished=unfinished))


_PARTS: Mapping[type, tuple[str, ...]] = {
    ConversationResult: ("conversation", "trajectory", "turns"),
    Conversation: ("turns", "unfinished", "initial_state", "user_calls"),
    Turn: ("user_message", "agent_message", "tool_calls", "remarks", "state_after"),
    UnfinishedTurn: ("user_message", "tool_calls"),
    Remark: ("author", "text"),
    ToolCall: ("args", "result", "invalid_arguments", "error", "call_id"),
    TurnEvaluation: ("trajectory",),
}
"""Class → the fields that others wrote, which may be oversized."""


def _shortened(value: _T) -> _T:
    """Cut oversized texts of a value and of its parts; return the same object if there are none."""
    changed: dict[str, Any] = {}
    for name in _PARTS[type(value)]:
        part: Any = getattr(value, name)
        if not part or (isinstance(part, str) and len(part) <= MAX_CHARS):
            continue
        new = _shortened_part(part)
        if new is not part:
            changed[name] = new
    if isinstance(value, Conversation):
        changed |= {"shortened": True} if changed else {}
        state = shortened_value(value.mock_state)
        if state is not value.mock_state:
            changed |= {"mock_state": state, "inexact_state": tuple(state)}
        if value.live_state is not None:
            changed["live_state"] = None
    return replaced(value, **changed) if changed else value


def _each(change: Callable[[_T], _T], parts: tuple[_T, ...]) -> tuple[_T, ...]:
    new = tuple(map(change, parts))
    return parts if all(map(is_, parts, new)) else new


def _shortened_part(part: Any) -> Any:
    if isinstance(part, TrajectoryResult):
        return _stored_trajectory(part)
    if isinstance(part, tuple) and type(part[0]) in _PARTS:
        return _each(_shortened, part)
    return _shortened(part) if type(part) in _PARTS else shortened_value(part)


def _stored_trajectory(result: TrajectoryResult) -> TrajectoryResult:
    """Limit the texts of a trajectory, which show calls with arguments, to MAX_CHARS in total."""
    parts = _each(_stored_trajectory, result.parts)
    result = result if parts is result.parts else replaced(result, parts=parts)
    if len(result.reason) <= MAX_CHARS:
        return result
    left = MAX_CHARS
    texts: dict[str, Any] = {}
    for name in ("summary", "expected", "forbidden", "actual"):
        if (text := getattr(result, name)) is not None:
            texts[name] = shortened(text, max(left, 0))
            left -= len(text)
    return replaced(result, **texts)


def _is_small(value: Any) -> bool:
    left, waiting = MAX_CHARS, [value]
    while waiting:
        item = waiting.pop()
        left -= 1
        if isinstance(item, str):
            left -= len(item)
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list | tuple):
            waiting += item
        if left < 0:
            return False
    return True


class _Cut:
    def __init__(self) -> None:
        self._left = MAX_CHARS

    def value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if isinstance(value, str):
            text = shortened(value, max(self._left, 0))
            self._left -= len(value)
            return text
        if depth >= _MAX_DEPTH:
            return "…"
        if isinstance(value, dict):
            return self._dict(value, depth)
        return self._list(value, depth) if isinstance(value, list | tuple) else value

    def _dict(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        items: dict[Any, Any] = {}
        for key, item in value.items():
            if self._left <= 0:
                items[CUT_OFF] = f"({len(value) - len(items)} more, shortened)"
                break
            # The key comes first, because its value may use up all room.
            name = self.value(key, depth) if isinstance(key, str) else key
            items[name] = self.value(item, depth + 1)
        return items

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        items: list[Any] = []
        for item in value:
            if self._left <= 0:
                return [*items, f"… ({len(value) - len(items)} more, shortened)"]
            items.append(self.value(item, depth + 1))
        return items
