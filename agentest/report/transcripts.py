"""Store transcripts of failed conversations during the run, for reports that its end writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from agentest.domain.reasons import conversation_passed, threshold_counted_trajectories
from agentest.domain.results import ConversationResult, ScenarioResult
from agentest.domain.transcript import (
    NO_TEXT,
    SECRETS_HIDDEN,
    Conversation,
    ToolCall,
    UnfinishedTurn,
    call_text,
)
from agentest.report import alignments
from agentest.report.console.text import DisplayOptions
from agentest.report.console.transcript import alignment_lines
from agentest.report.content import NOT_PASSED, ScenarioReport, end_in_words
from agentest.report.markdown_text import cut
from agentest.support.json_text import plain, well_formed
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import clean
from agentest.support.text import turn_name

_MAX_MESSAGE_CHARS = 4_000
_MAX_TRANSCRIPT_CHARS = 40_000
_SHOWN_TABLES = 3


def byte_size(text: str) -> int:
    """Return the size of the text in bytes of UTF-8."""
    return len(text.encode())


@dataclass(frozen=True, slots=True)
class TitledTable:
    """The alignment of a mismatched trajectory, and its position."""

    title: str
    table: alignments.AlignmentTable


@dataclass(frozen=True, slots=True)
class Transcript:
    """The transcript of a conversation that did not pass."""

    conversation_id: str
    text: str
    tables: tuple[TitledTable, ...] = ()
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
        self._transcripts: dict[tuple[str, str, str], list[Transcript]] = {}
        self._missing: dict[tuple[str, str, str], int] = {}
        self._room = dict.fromkeys(NOT_PASSED, room)
        self._each = room if each is None else each
        self._size = size

    @property
    def left_out(self) -> int:
        """The number of transcripts without room."""
        return sum(self._missing.values())

    def add(self, scenario: ScenarioResult) -> None:
        """Format the transcripts of the scenario, whose conversations may be dropped afterwards."""
        report, left = ScenarioReport(scenario), self._each
        for result in scenario.conversations if report.status in NOT_PASSED else ():
            counts = result.failures or threshold_counted_trajectories(result)
            if conversation_passed(result) and not counts:
                continue
            if result.slim or min(left, self._room[report.status]) <= 0:
                self._missing[report.key] = self._missing.get(report.key, 0) + 1
                continue
            text = well_formed(_capped(_lines(report, result)))
            size = self._size(text)
            left -= size
            self._room[report.status] -= size
            tables = (TitledTable(title, table) for title, _, table in _mismatches(report, result) if table)
            transcript = Transcript(
                result.conversation.conversation_id, text, tuple(islice(tables, _SHOWN_TABLES))
            )
            self._transcripts.setdefault(report.key, []).append(transcript)

    def of(self, scenario: ScenarioReport) -> Sequence[Transcript]:
        return self._transcripts.get(scenario.key, ())

    def missing(self, scenario: ScenarioReport) -> int:
        """Return the number of the scenario's transcripts without room."""
        return self._missing.get(scenario.key, 0)


def _mismatches(
    scenario: ScenarioReport, result: ConversationResult
) -> Iterator[tuple[str, str, alignments.AlignmentTable | None]]:
    id = result.conversation.conversation_id
    for reason in scenario.reasons_by_conversation.get(id, ()):
        table = alignments.alignment_of_reason(reason, result)
        message = alignments.without_sides(reason) if table else reason.message
        turn = "" if reason.turn_index is None else f", {turn_name(reason.turn_index)}"
        title = f"{reason.conversation_id}{turn}: {alignments.without_sides(reason)}"
        yield title, _message_text(f"{reason.status}: ", message), table
    for trajectory, text in alignments.threshold_counted_lines(result):
        table = alignments.alignment_of_trajectory(trajectory, result.conversation)
        yield f"{id}: {text}", _message_text("", text), table


def _lines(scenario: ScenarioReport, result: ConversationResult) -> Iterator[str]:
    conversation = result.conversation
    for _, text, table in _mismatches(scenario, result):
        yield text
        if table:
            yield from (clean(line.plain) for line in alignment_lines(table, DisplayOptions(), 4))
    for failure in result.failures:
        yield _message_text(f"{failure.id} {failure.metric}: {failure.label}: ", failure.reason)
    for label, text in scenario.unexplained(result):
        yield _message_text(label, text)
    yield ""
    yield from _dialogue(conversation)
    if failed := conversation.failure:
        yield _message_text(f"{end_in_words(conversation)}: ", failed.message)


def _dialogue(conversation: Conversation) -> Iterator[str]:
    for exchange in alignments.exchanges(conversation):
        yield from _calls(exchange.user_calls, "  user's → ")
        turn = exchange.turn
        if turn is None:
            return
        yield _message_text("user: ", turn.user_message)
        yield from (_message_text("  fault: ", row) for row in alignments.fault_rows(turn))
        yield from _calls(turn.tool_calls)
        if isinstance(turn, UnfinishedTurn):
            for output in turn.server_output:
                yield _message_text("  server ", "\n".join(alignments.server_rows(output)))
        else:
            for remark in turn.remarks:
                yield _message_text(f"  said {remark.author}: ", remark.text)
            yield _message_text("agent: ", turn.agent_message or NO_TEXT)
        if turn.redacted:
            yield f"  ({SECRETS_HIDDEN})"
        if not isinstance(turn, UnfinishedTurn):
            changes = (*filter(None, [turn.state_error]), *exchange.state)
            yield from (_message_text("  state: ", row) for row in changes)


def _calls(calls: Iterable[ToolCall], lead: str = "  → ") -> Iterator[str]:
    for call in calls:
        yield _message_text(lead, call_text(replace(call, args=plain(call.args))))
        yield _message_text("  ← ", json.dumps(plain(call.result), ensure_ascii=False))


def _message_text(who: str, text: str) -> str:
    return "\n    ".join(map(clean, cut(who + text, _MAX_MESSAGE_CHARS).splitlines()))


def _capped(lines: Iterable[str]) -> str:
    capped, left = [], _MAX_TRANSCRIPT_CHARS
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            capped.append("… (the rest is left out)")
            break
        capped.append(line)
    return "\n".join(capped)
