"""What judges are shown: the background and the conversation, as data that cannot pass for an instruction.

Everything that an agent, a tool, a user or a scenario wrote stands inside `<data>` blocks, with `<`, `>` and
`&` escaped, so that nothing written there can end a block. The names of blocks and all that stands between
them are ours. What is the same for many questions comes first: providers charge little for a beginning that
they have seen before. So which turn is to be judged is said after the turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import (
    NO_TEXT,
    UNANSWERED,
    StateChange,
    ToolCall,
    Turn,
    arguments_untold,
    unanswered,
)
from agentest.domain.truncation import MAX_CHARS
from agentest.judging.background import Background
from agentest.support.dates import shown_date
from agentest.support.json_text import on_one_line, safe_repr
from agentest.support.text import cut, data_block

_TOLD = "The assistant's instructions. It had to keep to them, also against the user's wishes:"
_TOOLS = "The assistant's tools:"
_UNSEEN = (
    "The assistant's tool calls cannot be seen here, or not all of them. That no call is shown says nothing: "
    "believe what the assistant says that it did or found out, unless something shown speaks against it."
)
_OF_THE_USER = (
    "The user. The assistant saw none of this: it knew only what the user had told it in the conversation."
)
_EXPECTED = (
    "What the author of the test expects by the end of the conversation; the assistant did not see it. A "
    "turn before the end is not at fault for not having got there yet:"
)
_WHOLE = "The conversation to judge is the whole of the above."
_PART = (
    "The turns to judge: turns {first} to {last}, the last ones above. Questions about the whole "
    "conversation are about all of the above."
)


@dataclass(frozen=True, slots=True)
class _Limits:
    """How many characters are shown of a text, of the arguments or the result of a call, and of all turns
    together."""

    text: int
    call: int
    room: int

    def shared(self, turns: Sequence[Turn]) -> _Limits:
        """As much for each text of the turns as for any other, so that they keep to the room."""
        texts = sum(3 + len(turn.remarks) + 2 * len(turn.tool_calls) for turn in turns)
        each = max(_LEAST_CHARS, self.room // max(texts, 1))
        return _Limits(min(self.text, each), min(self.call, each), self.room)


_LEAST_CHARS = 100
_JUDGED = _Limits(text=200_000, call=20_000, room=400_000)
_EARLIER = _Limits(text=20_000, call=1_500, room=300_000)
_EARLIER_OF_WHOLE = _Limits(text=20_000, call=6_000, room=300_000)
"""Where all turns are judged, what a turn is judged by may stand in any of them."""
_BACKGROUND_CHARS = 40_000
_STATE_CHARS = 1_500


def block(name: str, text: str, turn: int | None = None, limit: int = MAX_CHARS) -> str:
    """A data block. Of a very long text the middle is left out."""
    return data_block(name, cut(text, limit), turn)


def called(name: str, call: ToolCall, limit: int) -> str:
    """A data block of one call, with its turn."""
    return data_block(name, "\n".join(_call_lines(call, limit)), call.turn_index)


def turn_context(background: Background, turns: Sequence[Turn]) -> str:
    """The shared beginning of all questions about a turn, the last of `turns`."""
    asked = f"The turn to judge: turn {turns[-1].turn_index}, the last one above."
    return "\n\n".join([*_until_the_question(background, turns, _EARLIER), asked])


def conversation_context(background: Background, turns: Sequence[Turn]) -> str:
    """The shared beginning of all questions about a conversation."""
    return "\n\n".join([*_until_the_question(background, turns, _EARLIER_OF_WHOLE), _WHOLE])


def part_context(background: Background, turns: Sequence[Turn], asked: range) -> str:
    """The shared beginning of questions about some turns of a conversation, the last of `turns`, and perhaps
    about all of it."""
    if asked.start == 0:
        return conversation_context(background, turns)
    part = _PART.format(first=asked.start, last=asked[-1])
    return "\n\n".join([*_until_the_question(background, turns, _EARLIER_OF_WHOLE), part])


def spoken(turns: Sequence[Turn]) -> list[str]:
    """What user and assistant said, two blocks a turn: all that the user has seen of a conversation."""
    limit = min(_EARLIER.text, max(_LEAST_CHARS, _EARLIER.room // max(2 * len(turns), 1)))
    return [
        block(who, said, turn.turn_index, limit)
        for turn in turns
        for who, said in (("user", turn.user_message), ("assistant", turn.agent_message or NO_TEXT))
    ]


def background_parts(background: Background) -> list[str]:
    """What is known besides the conversation, each with what it is; what is not known is left out."""
    return [
        *_introduced(_TOLD, {"assistant_instructions": background.instructions}),
        *_introduced(_TOOLS, {"assistant_tools": background.tools}),
        *([_UNSEEN] if background.unseen else []),
        *_introduced(
            _OF_THE_USER,
            {
                "user_goal": background.goal,
                "user_profile": background.profile,
                "user_knowledge": "\n".join(f"- {fact}" for fact in background.knowledge),
            },
        ),
        *_introduced(_EXPECTED, {"expected_outcome": background.expected_outcome}),
        *_introduced("", {"date_and_time": shown_date(background.date or None, background.started_at)}),
    ]


def _introduced(introduction: str, texts: Mapping[str, str]) -> list[str]:
    """The introduction with a block for each text that there is; nothing where there is none."""
    blocks = [block(name, text, limit=_BACKGROUND_CHARS) for name, text in texts.items() if text]
    return ["\n".join([introduction, *blocks] if introduction else blocks)] if blocks else []


def _until_the_question(background: Background, turns: Sequence[Turn], earlier: _Limits) -> list[str]:
    with_before = [(before, turn) for before, turn in pairwise((None, *turns)) if turn]
    return [
        *background_parts(background),
        "The conversation:",
        *_fitting(with_before[:-1], earlier),
        *_fitting(with_before[-1:], _JUDGED),
    ]


def _fitting(turns: Sequence[tuple[Turn | None, Turn]], limits: _Limits) -> list[str]:
    """The turns, each with the one before it. Where they are too long together, each text has its share."""
    shown = _shown(turns, limits)
    if sum(map(len, shown)) <= limits.room:
        return shown
    return _shown(turns, limits.shared([turn for _, turn in turns]))


def _shown(turns: Sequence[tuple[Turn | None, Turn]], limits: _Limits) -> list[str]:
    return ["\n".join(_turn(turn, before, limits)) for before, turn in turns]


def _turn(turn: Turn, before: Turn | None, limits: _Limits) -> Iterator[str]:
    index = turn.turn_index
    yield block("user", turn.user_message, index, limits.text)
    yield from _on_the_way(turn, limits)
    state = _state(turn, before)
    if state:
        yield block("session_state", state, index, _STATE_CHARS)
    if turn.author:
        yield block("reply_by", turn.author, index, limits.text)
    yield block("assistant", turn.agent_message or NO_TEXT, index, limits.text)


def _on_the_way(turn: Turn, limits: _Limits) -> Iterator[str]:
    """Remarks and calls as they came. Remarks of which nobody knows when they were made come first."""
    index, last = turn.turn_index, len(turn.tool_calls)
    for place in range(last + 1):
        for remark in turn.remarks:
            if min(remark.calls_before or 0, last) == place:
                said = _json({"author": remark.author, "text": remark.text})
                yield block("before_the_reply", said, index, limits.text)
        for call in turn.tool_calls[place : place + 1]:
            yield data_block("tool_call", "\n".join(_call_lines(call, limits.call)), index)


def _call_lines(call: ToolCall, limit: int) -> Iterator[str]:
    """A line for each thing that is known of a call; in JSON, so that no text of others begins one."""
    yield f"tool: {cut(_json(call.name), limit)}"
    yield f"arguments: {'not known' if arguments_untold(call) else cut(_json(call.args), limit)}"
    if call.invalid_arguments and not arguments_untold(call):
        yield f"arguments refused: {cut(_json(call.invalid_arguments), limit)}"
    result = _result(call, limit)
    yield f"result: {result}"
    if call.error and call.error != UNANSWERED:
        error = cut(_json(call.error), limit)
        if error not in result:  # with its quotes, and as far as the result is shown
            yield f"error: {error}"


def _result(call: ToolCall, limit: int) -> str:
    if call.error == UNANSWERED:
        return "none; the call was cancelled before it was answered"
    if unanswered(call):
        return "null; nobody answered the call"
    told_by_others = call.seen_by in (SeenBy.AGENT, SeenBy.SPANS) and not call.mocked
    if call.result is None and told_by_others and not call.error:
        return "not known"
    return cut(_json(call.result), limit)


def _state(turn: Turn, before: Turn | None) -> str:
    """The session's state after the first turn, and what later ones changed in it; "": nothing is known."""
    if turn.state_after is None:
        return ""
    if before is None or before.state_after is None:
        return f"state: {_json(turn.state_after)}" if turn.state_after else ""
    change = StateChange.between(before.state_after, turn.state_after)
    changes = {"added": change.added, "changed": change.changed, "removed": change.removed}
    return "\n".join(f"{what}: {_json(values)}" for what, values in changes.items() if values)


def _json(value: Any) -> str:
    try:
        return on_one_line(value, safe_repr)
    except (TypeError, ValueError, RecursionError):  # a Python agent's arguments need not be JSON
        return on_one_line(safe_repr(value))
