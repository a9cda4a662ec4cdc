"""Prepare conversations for reporters: turns with what surrounds them, and alignments of expected calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from agentest.domain.reasons import LocatedTrajectory, located_trajectories, threshold_counted_trajectories
from agentest.domain.results import (
    AlignedRow,
    ConversationResult,
    Reason,
    RowStatus,
    Status,
    TrajectoryResult,
)
from agentest.domain.transcript import (
    Conversation,
    ServerOutput,
    StateChange,
    ToolCall,
    Turn,
    UnfinishedTurn,
    call_text,
    state_changes,
)
from agentest.support.json_text import plain
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count, shortened

MOST_ROWS = 15
_TEXT_CHARS = 160
_WORDS_CHARS = 300
NOTHING = "(nothing)"
NOT_MADE = "(not made)"
_OUTCOMES = {
    RowStatus.MATCHED: Status.PASSED,
    RowStatus.FREE: Status.SKIPPED,
    RowStatus.UNKNOWN: Status.ERRORED,
}
_SIGNS = {Status.PASSED: "✓", Status.SKIPPED: "-", Status.ERRORED: "?", Status.FAILED: "✗"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRow:
    """An expected call and the call that was made for it, as text."""

    status: RowStatus
    expected: str
    made: str
    words: str  # the mismatch, or why the call is allowed; "" without one, or if the summary states it

    @property
    def outcome(self) -> Status:
        """The status to show the row as."""
        return _OUTCOMES.get(self.status, Status.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignmentTable:
    """The visible rows of a trajectory."""

    mode: str  # how calls are compared; "" if no call is expected by name
    rows: tuple[TextRow, ...]
    more: str  # a description of the omitted rows; "" if there are none

    @property
    def expects(self) -> bool:
        """True if any call is expected; otherwise there is only one column to show."""
        return bool(self.mode)

    @property
    def heads(self) -> tuple[str, str]:
        """The headings of the two columns."""
        return f"expected ({self.mode})" if self.mode else "expected", "made"


def alignment_table(
    trajectory: TrajectoryResult, calls: Sequence[ToolCall], most: int = MOST_ROWS
) -> AlignmentTable | None:
    """Return the alignment of a trajectory; None if it has none, as in results of older versions."""
    rows = trajectory.alignment
    if not rows:
        return None
    first = sorted(range(len(rows)), key=lambda at: (rows[at].status.holds, at))[:most]
    left = [row for at, row in enumerate(rows) if at not in first]
    visible_rows = (_visible_row(rows[at], calls) for at in sorted(first))
    return AlignmentTable(
        mode=trajectory.mode or "",
        rows=tuple(
            replace(each, words="") if each.words == trajectory.summary else each for each in visible_rows
        ),
        more=_omitted_rows_text(left, trajectory.alignment_more),
    )


def alignment_of_reason(
    reason: Reason, result: ConversationResult, most: int = MOST_ROWS
) -> AlignmentTable | None:
    """Return the alignment of the trajectory that a reason is about.

    Stored reasons have no alignment of their own.
    """
    mine = reason.trajectory
    for each in located_trajectories(result) if mine else ():
        same = mine and (mine.name, mine.summary) == (each.result.name, each.result.summary)
        if same and each.turn_index == reason.turn_index:
            return alignment_of_trajectory(each, result.conversation, most)
    return None


def alignment_of_trajectory(
    trajectory: LocatedTrajectory, conversation: Conversation, most: int = MOST_ROWS
) -> AlignmentTable | None:
    return alignment_table(trajectory.result, calls_of(conversation, trajectory.turn_index), most)


def calls_of(conversation: Conversation, turn_index: int | None) -> Sequence[ToolCall]:
    """Return the calls of a turn, or of the whole conversation if the index is None."""
    if turn_index is None:
        return conversation.tool_calls
    turns = conversation.started_turns
    return next((turn.tool_calls for turn in turns if turn.turn_index == turn_index), ())


def threshold_counted_lines(result: ConversationResult) -> Iterator[tuple[LocatedTrajectory, str]]:
    """Yield the mismatched trajectories that only a threshold counts, each with a line that says so."""
    for trajectory in threshold_counted_trajectories(result):
        summary = trajectory.result.summary.split("\n", 1)[0]
        yield trajectory, f"{trajectory.subject}: {summary} (counted by the threshold)"


def without_sides(reason: Reason) -> str:
    """Return the message of a reason without the part that a table of its trajectory shows."""
    if reason.trajectory is None:
        return reason.message
    trajectory = LocatedTrajectory(turn_index=reason.turn_index, result=reason.trajectory)
    return f"{trajectory.subject}: {trajectory.result.summary}"


def plain_rows(table: AlignmentTable) -> Iterator[str]:
    """Yield the rows as plain text, for output in which columns cannot be aligned."""
    for row in table.rows:
        words = f" ({row.words})" if row.words else ""
        yield f"{_SIGNS[row.outcome]} {row.expected} | {row.made}{words}"
    if table.more:
        yield table.more


def _visible_row(row: AlignedRow, calls: Sequence[ToolCall]) -> TextRow:
    known = row.call is not None and row.call < len(calls)
    made = call_text(calls[row.call]) if row.call is not None and known else NOT_MADE
    return TextRow(
        status=row.status,
        expected=NOTHING if row.expected is None else shortened(row.expected, _TEXT_CHARS),
        made=shortened(made, _TEXT_CHARS),
        words=shortened(row.difference, _WORDS_CHARS),
    )


def _omitted_rows_text(left: Sequence[AlignedRow], not_kept: int) -> str:
    total = len(left) + not_kept
    wrong = sum(not row.status.holds for row in left)
    if not total:
        return ""
    return f"… {count(total, 'more row')}, " + (f"{wrong} of them wrong" if wrong else "with nothing wrong")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A turn and what surrounds it.

    Attributes:
        user_calls: the calls of the simulated user's own tools before its message.
        turn: None after the last turn.
        state: the changes to the session's state, one row for each key.
    """

    user_calls: Sequence[ToolCall]
    turn: Turn | UnfinishedTurn | None
    state: Sequence[str] = ()


def exchanges(conversation: Conversation) -> Iterator[Exchange]:
    """Yield the turns of a conversation; at the end the unfinished one, or only the user's last calls."""
    changes = state_changes(conversation)
    for turn in (*conversation.turns, conversation.unfinished):
        index = turn.turn_index if turn else len(conversation.turns)
        calls = [call for call in conversation.user_calls if call.turn_index == index]
        if turn or calls:
            change = changes.get(index) if isinstance(turn, Turn) else None
            yield Exchange(calls, turn, state_rows(change) if change else ())


def fault_rows(turn: Turn | UnfinishedTurn) -> list[str]:
    """Describe each fault that was injected into the turn, in one row."""
    return [f"{each.kind} (request {each.at} to its model)" for each in turn.faults]


def server_rows(output: ServerOutput) -> Sequence[str]:
    """Return a row that names the server, followed by its lines."""
    ended = "" if output.exit_status is None else f" exited with status {output.exit_status}"
    if not output.lines:
        return [f"{output.server}{ended}"]
    lines = count(len(output.lines), "line")
    if output.lines_before:
        lines = f"the last {lines} of {len(output.lines) + output.lines_before:,}"
    return [f"{output.server}{ended}{',' if ended else ''} printed meanwhile ({lines}):", *output.lines]


_VALUE_CHARS = 200
_SHOWN_KEYS = 20


def state_rows(change: StateChange) -> list[str]:
    """Return a row for each key: `+` added, `~` changed, `-` removed; empty without changes."""
    rows = [("+", key, f" = {_value(value)}") for key, value in change.added.items()]
    rows += [
        ("~", key, f" = {_value(now)} (was {_value(old)})") for key, (old, now) in change.changed.items()
    ]
    rows += [("-", key, f" (was {_value(value)})") for key, value in change.removed.items()]
    more = [f"… {len(rows) - _SHOWN_KEYS} more keys"] if len(rows) > _SHOWN_KEYS else []
    return [
        *(f"{sign} {shortened(key, _VALUE_CHARS)}{text}" for sign, key, text in rows[:_SHOWN_KEYS]),
        *more,
    ]


def _value(value: Any) -> str:
    return shortened(json.dumps(plain(value), ensure_ascii=False), _VALUE_CHARS)
