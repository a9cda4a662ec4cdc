"""The text that judges read: background and conversation, as data that cannot pass for instructions.

Everything that an agent, tool, user or scenario wrote is inside `<data>` blocks, with `<`, `>` and `&`
escaped, so that no content can end a block. Names of blocks and the text between them are fixed. Text shared
by many questions comes first, because providers charge little for a cached beginning. Therefore the turn to
judge is named after the turns, and the parts of a turn's prompt begin the prompt of the next turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from sys import maxsize

from agentest.domain.end_reason import Ending
from agentest.domain.messages import EarlierMessage
from agentest.domain.tool_visibility import SeenBy, ToolOutcome
from agentest.domain.transcript import NO_TEXT, StateChange, ToolCall, Turn, are_arguments_unknown
from agentest.domain.truncation import MAX_CHARS
from agentest.scenarios.model import Criterion
from agentest.support.dates import prompt_date
from agentest.support.json_text import json_or_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import cut, data_block, turn_name

NO_KNOWN_TOOLS = "no tool call of the agent was seen, and which tools it has is not known"
_INSTRUCTIONS = "The assistant's instructions. It had to keep to them, even against the user's wishes:"
_TOOLS = "The assistant's tools:"
_HIDDEN_CALLS = (
    "The assistant's tool calls cannot be seen here, or not all of them. So a call that is not shown may "
    "have been made: believe what the assistant says that it did or found out, unless something shown "
    "speaks against it."
)
_NO_CALLS = (
    "Which tools the assistant has is not known, and no tool call of it was seen. That it says that it did "
    "or found out something does not show that it did."
)
_USER = (
    "The user. The assistant saw none of this: it knew only what the user had told it in the conversation."
)
_EXPECTED = (
    "What the author of the test expects by the end of the conversation. The assistant did not see it. A "
    "turn before the end is not at fault for not having got there yet:"
)
_EARLIER_MESSAGES = (
    "What user and assistant had written, and the calls that the assistant had made, before the conversation "
    "to judge began. It is context and not to be judged, and both of them knew it:"
)
_WHOLE = "The conversation to judge is the whole of the above."
_PART = (
    "The turns to judge: turns {first} to {last}, the last ones above. Questions about the whole "
    "conversation are about all of the above."
)
_ENDS: Mapping[str, str] = {
    Ending.SCRIPT: "The test ended it: its script has no further message.",
    Ending.MAX_TURNS: "The test ended it: no more turns were allowed.",
    Ending.RECORDED: "It was recorded from real use; who ended it, and why, is not known.",
}
_ENDED_BY_USER = "The user ended it."
_NOT_SHOWN = "Not shown, because the conversation is too long: "
_UNKNOWN = (
    "\nWhat was said and done there is unknown. Do not conclude that something did not happen because it is "
    "not shown."
)
_MIN_CHARS = 100
_BACKGROUND_CHARS = 40_000
_STATE_CHARS = 1_500


Context = tuple[str, ...]
"""What all questions about a turn or a conversation show: parts in the order in which they change.

The last part says what is to be judged.
"""


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """One question for a judge. `agentest.judging.questions` has its prompt.

    Attributes:
        name: the metric, or `criterion N`, counted from 1; also the name of a call for this question alone.
        turn: index of the turn that it is about; None: the whole conversation.
        criterion: the criterion of the scenario; None: the question is about a built-in metric.
    """

    name: str
    turn: int | None = None
    criterion: Criterion | None = None

    @property
    def field(self) -> str:
        """The question's name in an answer to several questions."""
        return self.name.replace(" ", "_")


def criterion_question(number: int, criterion: Criterion) -> JudgeQuestion:
    """Return the question about a scenario's criterion; the first has the number 1."""
    return JudgeQuestion(f"criterion {number}", criterion=criterion)


@dataclass(frozen=True, slots=True)
class _Limits:
    """Character limits for a text, for the arguments or result of a call, and for all turns together."""

    text: int
    call: int
    room: int

    def shared(self, turns: Sequence[Turn]) -> _Limits:
        """Return limits that give each text of the turns an equal share of the room."""
        texts = sum(3 + len(turn.remarks) + 2 * len(turn.tool_calls) for turn in turns)
        each = max(_MIN_CHARS, self.room // max(texts, 1))
        return _Limits(min(self.text, each), min(self.call, each), self.room)


_JUDGED = _Limits(text=200_000, call=20_000, room=400_000)
_EARLIER = _Limits(text=20_000, call=1_500, room=300_000)
_EARLIER_OF_WHOLE = _Limits(text=20_000, call=6_000, room=300_000)
"""If all turns are judged, evidence for a turn may be in any of them."""
_WithBefore = tuple[Turn | None, Turn]  # a turn after the one before it


def block(name: str, text: str, turn: int | None = None, limit: int = MAX_CHARS) -> str:
    """Return a data block; the middle of a very long text is left out."""
    return data_block(name, cut(text, limit), turn)


def call_block(name: str, call: ToolCall, limit: int) -> str:
    """Return a data block of one call, with its turn."""
    return data_block(name, "\n".join(_call_lines(call, limit)), call.turn_index)


def turn_context(background: JudgeBackground, turns: Sequence[Turn], room: int = maxsize) -> Context:
    """Return the shared beginning of all questions about the last of `turns`.

    Args:
        room: maximum characters, to which the turns are shortened.
    """
    request = f"The turn to judge: {turn_name(turns[-1].turn_index)}, the last one above."
    return (*_shared_parts(background, turns, _EARLIER, room), request)


def conversation_context(background: JudgeBackground, turns: Sequence[Turn], room: int = maxsize) -> Context:
    """Return the shared beginning of all questions about a conversation."""
    return part_context(background, turns, range(1), room)


def part_context(
    background: JudgeBackground, turns: Sequence[Turn], judged: range, room: int = maxsize
) -> Context:
    """Return the shared beginning of questions about the turns that are `judged`, and about the whole."""
    request = _PART.format(first=judged.start + 1, last=judged.stop) if judged.start else _WHOLE
    shared = _shared_parts(background, turns, _EARLIER_OF_WHOLE, room, judged=len(judged))
    return (*shared, request + _ended(background))


def not_shown(context: Context) -> str:
    """Return which turns or texts a context leaves out to fit its room, or ""."""
    notes = (part.partition("\n")[0] for part in context if part.startswith(_NOT_SHOWN))
    return next(notes, "").removeprefix(_NOT_SHOWN)


def _ended(background: JudgeBackground) -> str:
    return f" {_ENDS.get(background.ended, _ENDED_BY_USER)}" if background.ended else ""


def message_blocks(turns: Sequence[Turn]) -> list[str]:
    """Return the messages of user and assistant, two blocks per turn: everything that the user sees."""
    limit = min(_EARLIER.text, max(_MIN_CHARS, _EARLIER.room // max(2 * len(turns), 1)))
    return [
        block(who, message, turn.turn_index, limit)
        for turn in turns
        for who, message in (("user", turn.user_message), ("assistant", turn.agent_message or NO_TEXT))
    ]


def _agent_parts(background: JudgeBackground) -> list[str]:
    return [
        *_with_introduction(_INSTRUCTIONS, {"assistant_instructions": background.instructions}),
        *_with_introduction(_TOOLS, {"assistant_tools": background.tools}),
    ]


def _case_parts(background: JudgeBackground) -> list[str]:
    no_calls = _NO_CALLS if background.unseen == NO_KNOWN_TOOLS else _HIDDEN_CALLS
    return [
        *([no_calls] if background.unseen else []),
        *_with_introduction(
            _USER,
            {
                "user_goal": background.goal,
                "user_profile": background.profile,
                "user_knowledge": "\n".join(f"- {fact}" for fact in background.knowledge),
            },
        ),
        *_with_introduction(_EXPECTED, {"expected_outcome": background.expected_outcome}),
        *_with_introduction(
            "", {"date_and_time": prompt_date(background.date or None, background.started_at)}
        ),
        *history_parts(background.history),
        "The conversation:",
    ]


def history_parts(history: Sequence[EarlierMessage]) -> list[str]:
    """Return the part with the messages before the first turn, if there are any."""
    limit = max(_MIN_CHARS, _BACKGROUND_CHARS // max(len(history), 1))
    blocks = [block(f"earlier_{each.role.replace(' ', '_')}", each.text, limit=limit) for each in history]
    return ["\n".join([_EARLIER_MESSAGES, *blocks])] if blocks else []


def _with_introduction(introduction: str, texts: Mapping[str, str]) -> list[str]:
    blocks = [block(name, text, limit=_BACKGROUND_CHARS) for name, text in texts.items() if text]
    return ["\n".join([introduction, *blocks] if introduction else blocks)] if blocks else []


def _shared_parts(
    background: JudgeBackground, turns: Sequence[Turn], earlier: _Limits, room: int, judged: int = 1
) -> Context:
    with_before = [(before, turn) for before, turn in pairwise((None, *turns)) if turn]
    parts = ("\n\n".join(parts) for parts in (_agent_parts(background), _case_parts(background)))
    stable = [*filter(None, parts)]
    return (*stable, *_turns_in_room(with_before, earlier, room - sum(map(len, stable)), judged))


def _turns_in_room(turns: Sequence[_WithBefore], earlier: _Limits, room: int, judged: int) -> list[str]:
    """Return the turns, without those after the first that do not fit; the `judged` ones stay.

    If that is not enough, the texts of the others are cut.
    """
    texts = _turns_within_limits(turns, earlier, _JUDGED)
    left_out, size = 0, sum(map(len, texts))
    while size > room and left_out + 1 < len(turns) - judged:
        left_out += 1
        size -= len(texts[left_out])
    what = [f"turns 2 to {left_out + 1}" if left_out > 1 else "turn 2"] if left_out else []
    texts[1 : left_out + 1] = []
    if size > room:
        shown = [*turns[:1], *turns[left_out + 1 :]]
        limits = (replace(each, room=min(each.room, room // 2)) for each in (earlier, _JUDGED))
        texts = _turns_within_limits(shown, *limits)
        what.append("the middle of long texts")
    note = [_NOT_SHOWN + " and ".join(what) + _UNKNOWN] if what else []
    return [*texts[:1], *note, *texts[1:]]


def _turns_within_limits(turns: Sequence[_WithBefore], earlier: _Limits, last: _Limits) -> list[str]:
    texts = []
    for some, limits in ((turns[:-1], earlier), (turns[-1:], last)):
        full = _turn_texts(some, limits)
        fits = sum(map(len, full)) <= limits.room
        texts += full if fits else _turn_texts(some, limits.shared([turn for _, turn in some]))
    return texts


def _turn_texts(turns: Sequence[_WithBefore], limits: _Limits) -> list[str]:
    return ["\n".join(_turn_blocks(turn, before, limits)) for before, turn in turns]


def _turn_blocks(turn: Turn, before: Turn | None, limits: _Limits) -> Iterator[str]:
    index = turn.turn_index
    yield block("user", turn.user_message, index, limits.text)
    yield from _remarks_and_calls(turn, limits)
    state = _state_text(turn, before)
    if state:
        yield block("session_state", state, index, _STATE_CHARS)
    if turn.author:
        yield block("reply_by", turn.author, index, limits.text)
    yield block("assistant", turn.agent_message or NO_TEXT, index, limits.text)


def _remarks_and_calls(turn: Turn, limits: _Limits) -> Iterator[str]:
    index, last = turn.turn_index, len(turn.tool_calls)
    for position in range(last + 1):
        for remark in turn.remarks:
            if min(remark.calls_before or 0, last) == position:
                text = json_or_repr({"author": remark.author, "text": remark.text})
                yield block("before_the_reply", text, index, limits.text)
        for call in turn.tool_calls[position : position + 1]:
            yield data_block("tool_call", "\n".join(_call_lines(call, limits.call)), index)


def _call_lines(call: ToolCall, limit: int) -> Iterator[str]:
    """Yield a line for each known part of a call, in JSON, so that foreign text cannot begin a line."""
    yield f"tool: {cut(json_or_repr(call.name), limit)}"
    yield f"arguments: {'not known' if are_arguments_unknown(call) else cut(json_or_repr(call.args), limit)}"
    outcome = call.outcome
    if outcome is ToolOutcome.REFUSED:
        yield f"arguments refused: {cut(json_or_repr(call.invalid_arguments), limit)}"
    result = _result_text(call, limit)
    yield f"result: {result}"
    if call.error and outcome is not ToolOutcome.CANCELLED:
        error = cut(json_or_repr(call.error), limit)
        if error not in result:  # with its quotes, and as far as the result is shown
            yield f"error: {error}"


def _result_text(call: ToolCall, limit: int) -> str:
    if call.outcome is ToolOutcome.CANCELLED:
        return "none; the call was cancelled before it was answered"
    if call.outcome is ToolOutcome.UNANSWERED:
        return "null; nobody answered the call"
    told_by_others = call.seen_by in (SeenBy.AGENT, SeenBy.SPANS) and not call.mocked
    if call.result is None and told_by_others and not call.error:
        return "not known"
    return cut(json_or_repr(call.result), limit)


def _state_text(turn: Turn, before: Turn | None) -> str:
    if turn.state_after is None:
        return ""
    if before is None or before.state_after is None:
        return f"state: {json_or_repr(turn.state_after)}" if turn.state_after else ""
    change = StateChange.between(before.state_after, turn.state_after)
    changes = {"added": change.added, "changed": change.changed, "removed": change.removed}
    return "\n".join(f"{what}: {json_or_repr(values)}" for what, values in changes.items() if values)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeBackground:
    """Information that judges receive in addition to the conversation. An empty text means unknown.

    Attributes:
        expected_outcome: the expected end of the conversation, in the words of the scenario's author.
        instructions: the agent's system prompt.
        tools: the agent's tools, one per line.
        date: the date or date-time of the conversation, which replaces `started_at`.
        started_at: start of the conversation, in ISO 8601.
        unseen: why the agent may have made tool calls that are not shown; "": all are shown.
        ended: the reason for which the conversation ended; "": unknown, or it went on.
        history: the messages before the first turn.
    """

    goal: str = ""
    profile: str = ""
    knowledge: tuple[str, ...] = ()
    expected_outcome: str = ""
    instructions: str = ""
    tools: str = ""
    date: str = ""
    started_at: str = ""
    unseen: str = ""
    ended: str = ""
    history: tuple[EarlierMessage, ...] = ()
