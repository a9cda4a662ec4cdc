"""What a person who labels is shown: what judges are shown, in rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from agentest.analysis.calibration.labels import LabelledConversation
from agentest.evaluate.background import Background
from agentest.support.json_text import NotJson, json_text
from agentest.support.moments import shown_moment
from agentest.transcript import NO_TEXT, StateChange, ToolCall, Turn, call_text

_RULE = "─" * 72
_JUDGED_CHARS, _EARLIER_CHARS, _OF_WHOLE_CHARS = 20_000, 1_500, 6_000
"""How much of a tool's result judges see: of the last turn, of those before it, where all are judged."""
_LONG = 300
"""Longer instructions and tools that have just been shown are not shown again."""
_AS_BEFORE = "(as before)"


def transcript(
    conversation: LabelledConversation, turn: int | None, before: Background | None = None
) -> Iterator[str]:
    """What is known, and the conversation up to a turn.

    Args:
        turn: None: all of the conversation.
        before: what was known of the conversation that was shown last.
    """
    yield _RULE
    yield from _known(conversation.background, before)
    turns = conversation.turns if turn is None else conversation.turns[: turn + 1]
    for last, each in pairwise((None, *turns)):
        if each is None:
            continue
        yield ""
        yield f"turn {each.turn_index}" + ("  ← this one" if each.turn_index == turn else "")
        earlier = _OF_WHOLE_CHARS if turn is None else _EARLIER_CHARS
        yield from _turn(each, last, _JUDGED_CHARS if each is turns[-1] else earlier)
    yield ""


def _known(background: Background, before: Background | None) -> Iterator[str]:
    facts = {
        "goal": background.goal,
        "profile": background.profile,
        "knows": "\n".join(background.knowledge),
        "expected": background.expected_outcome,
        "told": _unless_shown(background.instructions, before.instructions if before else ""),
        "tools": _unless_shown(background.tools, before.tools if before else ""),
        "began": shown_moment(background.started_at),
        "unseen": background.unseen,
    }
    yield from (_row(name, text) for name, text in facts.items() if text)


def _unless_shown(text: str, before: str) -> str:
    return _AS_BEFORE if text == before and len(text) > _LONG else text


def _turn(turn: Turn, before: Turn | None, limit: int) -> Iterator[str]:
    yield _row("user", turn.user_message)
    for call in turn.tool_calls:
        yield _row("tool", f"{call_text(call)} → {_cut(_result(call), limit)}")
        if call.error:
            yield _row("error", _cut(call.error, limit))
    for remark in turn.remarks:
        yield _row("said", f"{remark.author}: {remark.text}")
    if state := _state(turn, before):
        yield _row("state", _cut(state, _EARLIER_CHARS))
    yield _row("agent", turn.agent_message or NO_TEXT)


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
