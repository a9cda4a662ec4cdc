"""Transcripts of what did not pass, as text: kept while a run goes on, for reports that its end writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from agentest.domain.reasons import counted_trajectories
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
from agentest.report.alignments import SideBySide, counted_lines, of_held, of_reason, without_sides
from agentest.report.console.criteria import alignment_lines
from agentest.report.console.text import Look
from agentest.report.github_markdown import cut, story_lines
from agentest.report.phrases import server_rows, state_rows
from agentest.support.json_text import plain, well_formed
from agentest.support.terminal import clean

_MAX_MESSAGE_CHARS = 4_000
_MAX_TRANSCRIPT_CHARS = 40_000
_SHOWN_TABLES = 3


def byte_size(text: str) -> int:
    """The bytes of the text in UTF-8."""
    return len(text.encode())


@dataclass(frozen=True, slots=True)
class StoryTable:
    """The alignment of a trajectory that does not match, and where it is."""

    title: str
    table: SideBySide


@dataclass(frozen=True, slots=True)
class Story:
    """The transcript of a conversation that did not pass."""

    conversation_id: str
    text: str
    tables: tuple[StoryTable, ...] = ()
    """Expected and made calls of the first trajectories that do not match; the text has them, too."""


class Transcripts:
    """The transcripts of conversations that did not pass, as many as there is room for.

    Failed and errored scenarios have their own room: whichever comes first takes none from the others.

    Args:
        room: the size of all transcripts of failed scenarios, and of those of errored ones. The last one that
            is taken may go beyond it.
        each: the same for the transcripts of one scenario.
        size: what a text takes of the room.
    """

    def __init__(self, room: int, each: int | None = None, size: Callable[[str], int] = byte_size) -> None:
        self._stories: dict[tuple[str, str, str], list[Story]] = {}
        self._missing: dict[tuple[str, str, str], int] = {}
        self._room = dict.fromkeys(select.UNDONE, room)
        self._each = room if each is None else each
        self._size = size

    @property
    def left_out(self) -> int:
        """How many transcripts had no room."""
        return sum(self._missing.values())

    def add(self, scenario: ScenarioResult) -> None:
        """Write the transcripts of the scenario, whose conversations may be dropped afterwards."""
        status, key, left = scenario.verdict.status, scenario_key(scenario), self._each
        for conversation in _to_show(scenario):
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
        """The transcripts of the scenario."""
        return self._stories.get(scenario_key(scenario), ())

    def missing(self, scenario: ScenarioResult) -> int:
        """How many transcripts of the scenario had no room."""
        return self._missing.get(scenario_key(scenario), 0)


def scenario_key(scenario: ScenarioResult) -> tuple[str, str, str]:
    """What tells scenarios apart: a file may define a name that another file has taken."""
    return scenario.name, scenario.agent, scenario.file


def _story(scenario: ScenarioResult, result: ConversationResult) -> Iterator[str]:
    """A conversation in lines: first what is wrong with it, then what was said and called."""
    conversation = result.conversation
    for reason in scenario.verdict.reasons:
        if reason.conversation_id == conversation.conversation_id:
            table = of_reason(reason, result)
            message = without_sides(reason) if table else reason.message
            yield _shown(f"{reason.status}: ", message)
            yield from _columns(table) if table else ()
    for held, text in counted_lines(result):
        yield _shown("", text)
        if table := of_held(held, conversation):
            yield from _columns(table)
    for failure in result.failures:
        yield _shown(f"{failure.id} {failure.metric}: {failure.label}: ", failure.reason)
    for label, text in story_lines(scenario, result):
        yield _shown(label, text)
    yield ""
    yield from _dialogue(conversation)
    if conversation.failure:
        yield _shown(f"ended by an error ({conversation.failure.blame}): ", conversation.failure.message)


def _tables(scenario: ScenarioResult, result: ConversationResult) -> Iterator[StoryTable]:
    id = result.conversation.conversation_id
    for reason in scenario.verdict.reasons:
        if reason.conversation_id == id and (table := of_reason(reason, result)):
            yield StoryTable(reason_title(reason), table)
    for held, text in counted_lines(result):
        if table := of_held(held, result.conversation):
            yield StoryTable(f"{id}: {text}", table)


def reason_title(reason: Reason) -> str:
    """What stands above the table of a trajectory that does not match: where it is, and what is wrong."""
    turn = "" if reason.turn_index is None else f", turn {reason.turn_index}"
    return f"{reason.conversation_id}{turn}: {without_sides(reason)}"


def _columns(table: SideBySide) -> Iterator[str]:
    return (clean(line.plain) for line in alignment_lines(table, Look(), 4))


def _dialogue(conversation: Conversation) -> Iterator[str]:
    changes = state_changes(conversation)
    for turn in conversation.turns:
        yield from _own_calls(conversation, turn.turn_index)
        yield _shown("user: ", turn.user_message)
        yield from _calls(turn.tool_calls)
        for remark in turn.remarks:
            yield _shown(f"  said {remark.author}: ", remark.text)
        yield _shown("agent: ", turn.agent_message or NO_TEXT)
        yield from _hidden(turn)
        yield from _state(turn, changes)
    yield from _own_calls(conversation, len(conversation.turns))
    if conversation.unfinished:
        yield _shown("user: ", conversation.unfinished.user_message)
        yield from _calls(conversation.unfinished.tool_calls)
        for output in conversation.unfinished.server_output:
            yield _shown("  server ", "\n".join(server_rows(output)))
        yield from _hidden(conversation.unfinished)


def _hidden(turn: Turn | UnfinishedTurn) -> Iterator[str]:
    if turn.redacted:
        yield f"  ({SECRETS_HIDDEN})"


def _state(turn: Turn, changes: Mapping[int, StateChange]) -> Iterator[str]:
    if turn.state_error:
        yield _shown("  state: ", turn.state_error)
    if turn.turn_index in changes:
        yield from (_shown("  state: ", row) for row in state_rows(changes[turn.turn_index]))


def _own_calls(conversation: Conversation, turn_index: int) -> Iterator[str]:
    """What the simulated user did with tools of its own before it spoke in a turn, or ended."""
    calls = [call for call in conversation.user_calls if call.turn_index == turn_index]
    yield from _calls(calls, "  user's → ")


def _calls(calls: Iterable[ToolCall], lead: str = "  → ") -> Iterator[str]:
    for call in calls:
        yield _shown(lead, call_text(replace(call, args=plain(call.args))))
        yield _shown("  ← ", json.dumps(plain(call.result), ensure_ascii=False))


def _shown(who: str, text: str) -> str:
    """What somebody said; indented from the second line on, so that it cannot pass for another speaker."""
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


def _to_show(scenario: ScenarioResult) -> Iterator[ConversationResult]:
    """Conversations to look at where a scenario did not pass: those that failed, hold a
    failure, or have calls that a threshold counts."""
    if scenario.verdict.status in select.UNDONE:
        for conversation in scenario.conversations:
            counts = conversation.failures or counted_trajectories(conversation)
            if counts or not conversation_passed(conversation):
                yield conversation
