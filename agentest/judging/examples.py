"""Examples of a scenario's errors: what was said and called where they occurred, short enough to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from agentest.domain.results import (
    ConversationResult,
    Deduplication,
    ErrorExample,
    ErrorGroup,
    LabelledFailure,
)
from agentest.domain.transcript import Conversation, ToolCall, Turn, call_text
from agentest.support.json_text import safe_repr
from agentest.support.redact import Redactor
from agentest.support.text import shortened

MOST_EXAMPLES = 3
_MESSAGE_CHARS = 300
_CALL_CHARS = 150
_MOST_CALLS = 5

_Place = tuple[str, int]
"""A conversation's id and the index of a turn."""


def with_examples(
    found: Deduplication, conversations: Iterable[ConversationResult], redact: Redactor
) -> Deduplication:
    """The groups with examples from the first turns in which they occurred, each turn once."""
    turns = _turns_of_failures(conversations)
    return replace(found, groups=tuple(_with_examples(group, turns, redact) for group in found.groups))


def _turns_of_failures(conversations: Iterable[ConversationResult]) -> dict[str, tuple[str, Turn]]:
    """Id of a failure → the conversation and the turn that show it."""
    return {
        failure.id: (each.conversation.conversation_id, turn)
        for each in conversations
        for failure in each.failures
        if (turn := _turn_of(failure, each.conversation))
    }


def _turn_of(failure: LabelledFailure, conversation: Conversation) -> Turn | None:
    """The failure's turn; of a failure of the whole conversation the last, which shows what it came to."""
    if failure.turn_index is None:
        return conversation.turns[-1] if conversation.turns else None
    return next((turn for turn in conversation.turns if turn.turn_index == failure.turn_index), None)


def _with_examples(group: ErrorGroup, turns: Mapping[str, tuple[str, Turn]], redact: Redactor) -> ErrorGroup:
    places: dict[_Place, Turn] = {}
    for id in group.occurrences:
        if id in turns and len(places) < MOST_EXAMPLES:
            conversation_id, turn = turns[id]
            places.setdefault((conversation_id, turn.turn_index), turn)
    examples = tuple(_example(place, turn, redact) for place, turn in places.items())
    return replace(group, examples=examples)


def _example(place: _Place, turn: Turn, redact: Redactor) -> ErrorExample:
    conversation_id, turn_index = place
    return ErrorExample(
        conversation_id=conversation_id,
        turn_index=turn_index,
        user_message=_short(turn.user_message, _MESSAGE_CHARS, redact),
        agent_message=_short(turn.agent_message, _MESSAGE_CHARS, redact),
        tool_calls=_calls(turn.tool_calls, redact),
    )


def _calls(calls: Sequence[ToolCall], redact: Redactor) -> tuple[str, ...]:
    shown = tuple(_call(call, redact) for call in calls[:_MOST_CALLS])
    left_out = len(calls) - len(shown)
    return (*shown, f"… {left_out} more") if left_out else shown


def _call(call: ToolCall, redact: Redactor) -> str:
    made, answer = call_text(call), safe_repr(call.result)
    return f"{_short(made, _CALL_CHARS, redact)} → {_short(answer, _CALL_CHARS, redact)}"


def _short(text: str, limit: int, redact: Redactor) -> str:
    # Redacted first: of a secret that is cut in two, the half that is left would not be known.
    return shortened(redact.error(text), limit)
