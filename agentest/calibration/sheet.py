"""What a person who labels is shown: what judges are shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from agentest.calibration.labels import LabelledConversation
from agentest.domain.transcript import NO_TEXT, StateChange, ToolCall, Turn, call_text
from agentest.judging.background import Background
from agentest.support.json_text import NotJson, json_text
from agentest.support.moments import shown_date

_RULE = "─" * 72
_JUDGED_CHARS, _EARLIER_CHARS, _OF_WHOLE_CHARS = 20_000, 1_500, 6_000
"""How much of a tool's result judges see: of the last turn, of those before it, where all are judged."""
_LONG = 300
"""Longer instructions and tools that have just been shown are not shown again."""
_ONCE = ("told", "tools")
_AS_BEFORE = "(as before)"
Row = tuple[str, str]
"""Who or what, and the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownTurn:
    """A turn of the sheet. `asked`: it is the one that the question is about."""

    index: int
    asked: bool
    rows: tuple[Row, ...]


def known(background: Background) -> tuple[Row, ...]:
    """What is known besides the conversation; what is empty is left out."""
    facts = {
        "goal": background.goal,
        "profile": background.profile,
        "knows": "\n".join(background.knowledge),
        "expected": background.expected_outcome,
        "told": background.instructions,
        "tools": background.tools,
        "began": shown_date(background.date or None, background.started_at),
        "unseen": background.unseen,
    }
    return tuple((name, text) for name, text in facts.items() if text)


def shown_turns(conversation: LabelledConversation, turn: int | None) -> Iterator[ShownTurn]:
    """The conversation up to a turn; None: all of it."""
    turns = conversation.turns if turn is None else conversation.turns[: turn + 1]
    for last, each in pairwise((None, *turns)):
        if each is not None:
            earlier = _OF_WHOLE_CHARS if turn is None else _EARLIER_CHARS
            limit = _JUDGED_CHARS if each is turns[-1] else earlier
            asked = each.turn_index == turn
            yield ShownTurn(index=each.turn_index, asked=asked, rows=tuple(_turn(each, last, limit)))


def transcript(
    conversation: LabelledConversation, turn: int | None, before: Background | None = None
) -> Iterator[str]:
    """What is known, and the conversation up to a turn.

    Args:
        turn: None: all of the conversation.
        before: what was known of the conversation that was shown last.
    """
    yield _RULE
    shown = dict(known(before)) if before else {}
    for name, text in known(conversation.background):
        again = name in _ONCE and text == shown.get(name) and len(text) > _LONG
        yield _row(name, _AS_BEFORE if again else text)
    for each in shown_turns(conversation, turn):
        yield ""
        yield f"turn {each.index}" + ("  ← this one" if each.asked else "")
        yield from (_row(who, text) for who, text in each.rows)
    yield ""


def _turn(turn: Turn, before: Turn | None, limit: int) -> Iterator[Row]:
    yield "user", turn.user_message
    for call in turn.tool_calls:
        yield "tool", f"{call_text(call)} → {_cut(_result(call), limit)}"
        if call.error:
            yield "error", _cut(call.error, limit)
    for remark in turn.remarks:
        yield "said", f"{remark.author}: {remark.text}"
    if state := _state(turn, before):
        yield "state", _cut(state, _EARLIER_CHARS)
    yield "agent", turn.agent_message or NO_TEXT


def _state(turn: Turn, before: Turn | None) -> str:
    """The session's state after the first turn, and what later ones changed in it; "": nothing is known."""
    if not turn.state_after:
        return ""
    if before is None or before.state_after is None:
        return _text(turn.state_after)
    change = StateChange.between(before.state_after, turn.state_after)
    changes = {"added": change.added, "changed": change.changed, "removed": change.removed}
    return "\n".join(f"{what}: {_text(values)}" for what, values in changes.items() if values)


def _result(call: ToolCall) -> str:
    return call.result if isinstance(call.result, str) else _text(call.result)


def _text(value: object) -> str:
    try:
        return json_text(value)
    except NotJson:
        return repr(value)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text) - limit} characters more)"


def _row(who: str, text: str) -> str:
    """What somebody said; indented from the second row on, so that it cannot pass for another speaker."""
    return f"{who:9}" + f"\n{' ' * 9}".join(text.splitlines())
