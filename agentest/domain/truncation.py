"""Prepare judged conversations for storage: remove secrets and cut oversized texts.

Mocks, checks, metrics and the agent itself have used the complete texts. The stored form states how long a
text was and where a secret was. The conversation and its turns are marked, so that they are not judged again
as if they were complete.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from agentest.domain.results import ConversationResult, TrajectoryResult, TurnEvaluation
from agentest.domain.transcript import CUT_OFF, Conversation, Remark, ToolCall, Turn, UnfinishedTurn
from agentest.support.lazy_dataclasses import replace as replaced
from agentest.support.redaction import Redactor, without_secrets

MAX_CHARS = 1_000_000
"""The limit for one text, and for the arguments or the result of one call."""
_MAX_DEPTH = 100
_KNOWS_NO_SECRET = Redactor()
_AnyTurn = TypeVar("_AnyTurn", Turn, UnfinishedTurn)


def shortened(text: str, limit: int = MAX_CHARS) -> str:
    """Return the text, or its beginning with a note of its full length."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters, shortened)"


def shortened_value(value: Any) -> Any:
    """Cut a JSON value whose texts exceed MAX_CHARS in total; return a small value itself."""
    return value if value is None or _is_small(value) else _Cut().value(value, 0)


def stored(result: ConversationResult, redact: Redactor = _KNOWS_NO_SECRET) -> ConversationResult:
    """Return a judged conversation in its stored form; the same object if nothing is oversized or secret."""
    result = _shortened_result(result)
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


def _shortened_result(result: ConversationResult) -> ConversationResult:
    """Cut oversized texts of the conversation; return the same object if there are none."""
    conversation = _stored_conversation(result.conversation)
    trajectory = _stored_trajectory(result.trajectory)
    turns = tuple(map(_stored_evaluation, result.turns))
    if conversation is result.conversation and trajectory is result.trajectory and turns == result.turns:
        return result
    return replace(result, conversation=conversation, trajectory=trajectory, turns=turns)


def _stored_conversation(conversation: Conversation) -> Conversation:
    turns = tuple(map(_stored_turn, conversation.turns))
    unfinished = _stored_calls(conversation.unfinished) if conversation.unfinished else None
    conversation = _stored_mock_state(conversation)
    state = shortened_value(conversation.initial_state)
    of_user = tuple(map(_stored_call, conversation.user_calls))
    same = unfinished is conversation.unfinished and state is conversation.initial_state
    if same and turns == conversation.turns and of_user == conversation.user_calls:
        return conversation
    return replace(
        conversation,
        turns=turns,
        unfinished=unfinished,
        initial_state=state,
        user_calls=of_user,
        shortened=True,
    )


def _stored_mock_state(conversation: Conversation) -> Conversation:
    """Replace the mocks' state by its stored form, which is cut if necessary."""
    if conversation.live_state is not None:
        conversation = replace(conversation, live_state=None)
    state = shortened_value(conversation.mock_state)
    if state is conversation.mock_state:
        return conversation
    return replace(conversation, mock_state=state, inexact_state=tuple(state))


def _stored_turn(turn: Turn) -> Turn:
    turn = _stored_calls(turn)
    reply, remarks = shortened(turn.agent_message), tuple(map(_stored_remark, turn.remarks))
    state = shortened_value(turn.state_after)
    if reply is turn.agent_message and remarks == turn.remarks and state is turn.state_after:
        return turn
    return replace(turn, agent_message=reply, remarks=remarks, state_after=state)


def _stored_calls(turn: _AnyTurn) -> _AnyTurn:
    message, calls = shortened(turn.user_message), tuple(map(_stored_call, turn.tool_calls))
    if message is turn.user_message and calls == turn.tool_calls:
        return turn
    return replace(turn, user_message=message, tool_calls=calls)


def _stored_remark(remark: Remark) -> Remark:
    author, text = shortened(remark.author), shortened(remark.text)
    same = text is remark.text and author is remark.author
    return remark if same else replace(remark, author=author, text=text)


def _stored_call(call: ToolCall) -> ToolCall:
    args, result = shortened_value(call.args), shortened_value(call.result)
    texts = (call.invalid_arguments, call.error, call.call_id)
    long = any(text and len(text) > MAX_CHARS for text in texts)
    if args is call.args and result is call.result and not long:
        return call
    problem, error, call_id = (text and shortened(text) for text in texts)
    return replace(call, args=args, result=result, invalid_arguments=problem, error=error, call_id=call_id)


def _stored_evaluation(turn: TurnEvaluation) -> TurnEvaluation:
    trajectory = _stored_trajectory(turn.trajectory)
    return turn if trajectory is turn.trajectory else replace(turn, trajectory=trajectory)


def _stored_trajectory(result: TrajectoryResult | None) -> TrajectoryResult | None:
    """Limit the texts of a trajectory, which show calls with arguments, to MAX_CHARS in total."""
    if result is None:
        return None
    parts = tuple(filter(None, map(_stored_trajectory, result.parts)))
    result = result if parts == result.parts else replace(result, parts=parts)
    if len(result.reason) <= MAX_CHARS:
        return result
    left = MAX_CHARS
    texts: dict[str, Any] = {}
    for name in ("summary", "expected", "forbidden", "actual"):
        if (text := getattr(result, name)) is not None:
            texts[name] = shortened(text, max(left, 0))
            left -= len(text)
    return replace(result, **texts)


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
    """Cuts one value and counts the omitted items."""

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
