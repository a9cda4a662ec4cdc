"""Store transcripts of failed conversations during the run, for reports that its end writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from agentest.domain.reasons import threshold_counted_trajectories
from agentest.domain.results import ConversationResult, Reason, ScenarioResult
from agentest.domain.transcript import (
    NO_TEXT,
    SECRETS_HIDDEN,
    Conversation,
    StateChange,
    ToolCall,
    Turn,
    UnfinishedTurn,
    call_text,
    state_changes,
)
from agentest.domain.verdict import conversation_passed
from agentest.report import github_selection as select
from agentest.report.alignments import (
    AlignmentTable,
    alignment_of_reason,
    alignment_of_trajectory,
    threshold_counted_lines,
    without_sides,
)
from agentest.report.console.text import DisplayOptions
from agentest.report.console.transcript import alignment_lines
from agentest.report.content import server_rows, state_rows
from agentest.report.markdown import cut, story_lines
from agentest.support.json_text import plain, well_formed
from agentest.support.terminal import clean

_MAX_MESSAGE_CHARS = 4_000
_MAX_TRANSCRIPT_CHARS = 40_000
_SHOWN_TABLES = 3


def byte_size(text: str) -> int:
    """Return the size of the text in bytes of UTF-8."""
    return len(text.encode())


@dataclass(frozen=True, slots=True)
class StoryTable:
    """The alignment of a mismatched trajectory, and its position."""

    title: str
    table: AlignmentTable


@dataclass(frozen=True, slots=True)
class Story:
    """The transcript of a conversation that did not pass."""

    conversation_id: str
    text: str
    tables: tuple[StoryTable, ...] = ()
    """Alignments of the first mismatched trajectories, which the text contains, too."""


class Transcripts:
    """The transcripts of conversations that did not pass, within a size limit.

    Failed and errored scenarios have separate limits, so that neither takes room from the other.

    Args:
        room: the limit for failed scenarios, and again for errored ones. The last transcript may exceed it.
        each: the same limits for the transcripts of one scenario.
        size: measures a text.
    """

    def __init__(self, room: int, each: int | None = None, size: Callable[[str], int] = byte_size) -> None:
        self._stories: dict[tuple[str, str, str], list[Story]] = {}
        self._missing: dict[tuple[str, str, str], int] = {}
        self._room = dict.fromkeys(select.UNDONE, room)
        self._each = room if each is None else each
        self._size = size

    @property
    def left_out(self) -> int:
        """The number of transcripts without room."""
        return sum(self._missing.values())

    def add(self, scenario: ScenarioResult) -> None:
        """Format the transcripts of the scenario, whose conversations may be dropped afterwards."""
        status, key, left = scenario.verdict.status, scenario_key(scenario), self._each
        for conversation in _conversations_to_show(scenario):
            if min(left, self._room[status]) <= 0:
                self._missing[key] = self._missing.get(key, 0) + 1
                continue
            text = well_formed(_capped(_story(scenario, conversation)))
            taken = self._size(text)
            left -= taken
            self._room[status] -= taken
            id = conversation.conversation.conversation_id
            story = Story(id, text, tuple(islice(_tables(scenario, conversation), _SHOWN_TABLES)))
            self._stories.setdefault(key, []).append(story)

    def of(self, scenario: ScenarioResult) -> Sequence[Story]:
        """Return the transcripts of the scenario."""
        return self._stories.get(scenario_key(scenario), ())

    def missing(self, scenario: ScenarioResult) -> int:
        """Return the number of the scenario's transcripts without room."""
        return self._missing.get(scenario_key(scenario), 0)


def scenario_key(scenario: ScenarioResult) -> tuple[str, str, str]:
    """Return a unique key; the name alone is not unique, because two files may define the same one."""
    return scenario.name, scenario.agent, scenario.file


def _story(scenario: ScenarioResult, result: ConversationResult) -> Iterator[str]:
    """Format a conversation as lines: first its faults, then its messages and calls."""
    conversation = result.conversation
    for reason in scenario.verdict.reasons:
        if reason.conversation_id == conversation.conversation_id:
            table = alignment_of_reason(reason, result)
            message = without_sides(reason) if table else reason.message
            yield _message_text(f"{reason.status}: ", message)
            yield from _columns(table) if table else ()
    for held, text in threshold_counted_lines(result):
        yield _message_text("", text)
        if table := alignment_of_trajectory(held, conversation):
            yield from _columns(table)
    for failure in result.failures:
        yield _message_text(f"{failure.id} {failure.metric}: {failure.label}: ", failure.reason)
    for label, text in story_lines(scenario, result):
        yield _message_text(label, text)
    yield ""
    yield from _dialogue(conversation)
    if conversation.failure:
        yield _message_text(
            f"ended by an error ({conversation.failure.blame}): ", conversation.failure.message
        )


def _tables(scenario: ScenarioResult, result: ConversationResult) -> Iterator[StoryTable]:
    id = result.conversation.conversation_id
    for reason in scenario.verdict.reasons:
        if reason.conversation_id == id and (table := alignment_of_reason(reason, result)):
            yield StoryTable(reason_title(reason), table)
    for held, text in threshold_counted_lines(result):
        if table := alignment_of_trajectory(held, result.conversation):
            yield StoryTable(f"{id}: {text}", table)


def reason_title(reason: Reason) -> str:
    """Return the heading of a mismatched trajectory's table: its position and its fault."""
    turn = "" if reason.turn_index is None else f", turn {reason.turn_index}"
    return f"{reason.conversation_id}{turn}: {without_sides(reason)}"


def _columns(table: AlignmentTable) -> Iterator[str]:
    return (clean(line.plain) for line in alignment_lines(table, DisplayOptions(), 4))


def _dialogue(conversation: Conversation) -> Iterator[str]:
    changes = state_changes(conversation)
    for turn in conversation.turns:
        yield from _user_calls(conversation, turn.turn_index)
        yield _message_text("user: ", turn.user_message)
        yield from _calls(turn.tool_calls)
        for remark in turn.remarks:
            yield _message_text(f"  said {remark.author}: ", remark.text)
        yield _message_text("agent: ", turn.agent_message or NO_TEXT)
        yield from _hidden(turn)
        yield from _state(turn, changes)
    yield from _user_calls(conversation, len(conversation.turns))
    if conversation.unfinished:
        yield _message_text("user: ", conversation.unfinished.user_message)
        yield from _calls(conversation.unfinished.tool_calls)
        for output in conversation.unfinished.server_output:
            yield _message_text("  server ", "\n".join(server_rows(output)))
        yield from _hidden(conversation.unfinished)


def _hidden(turn: Turn | UnfinishedTurn) -> Iterator[str]:
    if turn.redacted:
        yield f"  ({SECRETS_HIDDEN})"


def _state(turn: Turn, changes: Mapping[int, StateChange]) -> Iterator[str]:
    if turn.state_error:
        yield _message_text("  state: ", turn.state_error)
    if turn.turn_index in changes:
        yield from (_message_text("  state: ", row) for row in state_rows(changes[turn.turn_index]))


def _user_calls(conversation: Conversation, turn_index: int) -> Iterator[str]:
    """Show the calls of the simulated user's own tools before its message in a turn, or before the end."""
    calls = [call for call in conversation.user_calls if call.turn_index == turn_index]
    yield from _calls(calls, "  user's → ")


def _calls(calls: Iterable[ToolCall], lead: str = "  → ") -> Iterator[str]:
    for call in calls:
        yield _message_text(lead, call_text(replace(call, args=plain(call.args))))
        yield _message_text("  ← ", json.dumps(plain(call.result), ensure_ascii=False))


def _message_text(who: str, text: str) -> str:
    """Format a message; further lines are indented, so that they cannot imitate another speaker."""
    return "\n    ".join(map(clean, cut(who + text, _MAX_MESSAGE_CHARS).splitlines()))


def _capped(lines: Iterable[str]) -> str:
    kept, left = [], _MAX_TRANSCRIPT_CHARS
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            kept.append("… (the rest is left out)")
            break
        kept.append(line)
    return "\n".join(kept)


def _conversations_to_show(scenario: ScenarioResult) -> Iterator[ConversationResult]:
    """Yield conversations that failed, contain a failure, or have calls that a threshold counts."""
    if scenario.verdict.status in select.UNDONE:
        for conversation in scenario.conversations:
            counts = conversation.failures or threshold_counted_trajectories(conversation)
            if counts or not conversation_passed(conversation):
                yield conversation
