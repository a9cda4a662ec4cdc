"""Expected calls beside those that were made, as reporters show them: some rows, the wrong ones first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from agentest.domain.reasons import HeldTrajectory, counted_trajectories, held_trajectories
from agentest.domain.results import AlignedRow, ConversationResult, Reason, RowStatus, TrajectoryResult
from agentest.domain.transcript import Conversation, ToolCall, call_text
from agentest.support.text import count, shortened

MOST_ROWS = 15
_TEXT_CHARS = 160
_WORDS_CHARS = 300
NOTHING = "(nothing)"
NOT_MADE = "(not made)"
_SIGNS = {RowStatus.MATCHED: "✓", RowStatus.FREE: "-", RowStatus.UNKNOWN: "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownRow:
    """An expected call and the call that was made for it, as text."""

    status: RowStatus
    expected: str
    made: str
    words: str
    """What is wrong with the call, or why it is free; "": nothing is to say, or it stands above the rows."""

    @property
    def sign(self) -> str:
        """One character that says how the two go together."""
        return _SIGNS.get(self.status, "✗")


@dataclass(frozen=True, slots=True, kw_only=True)
class SideBySide:
    """A trajectory's rows, as many as are shown."""

    mode: str
    """How calls were compared; "": nothing was expected by name."""
    rows: tuple[ShownRow, ...]
    more: str
    """What is left out, in words; "": nothing is."""

    @property
    def expects(self) -> bool:
        """Whether calls are expected; else there is nothing to stand beside those made."""
        return bool(self.mode)

    @property
    def heads(self) -> tuple[str, str]:
        """What stands above the two columns."""
        return f"expected ({self.mode})" if self.mode else "expected", "made"


def side_by_side(trajectory: TrajectoryResult, calls: Sequence[ToolCall]) -> SideBySide | None:
    """The alignment of a trajectory; None where it has none, as results of older versions.

    Args:
        calls: those that the trajectory looked at.
    """
    rows = trajectory.alignment
    if not rows:
        return None
    first = sorted(range(len(rows)), key=lambda at: (rows[at].status.holds, at))[:MOST_ROWS]
    left = [row for at, row in enumerate(rows) if at not in first]
    shown = (_shown(rows[at], calls) for at in sorted(first))
    return SideBySide(
        mode=trajectory.mode or "",
        rows=tuple(replace(each, words="") if each.words == trajectory.summary else each for each in shown),
        more=_more(left, trajectory.alignment_more),
    )


def of_reason(reason: Reason, result: ConversationResult) -> SideBySide | None:
    """The alignment of the trajectory that a reason is about. A reason that was stored lacks it itself."""
    if reason.trajectory is None:
        return None
    found = next((each for each in held_trajectories(result) if _is_about(reason, each)), None)
    return of_held(found, result.conversation) if found else None


def of_held(held: HeldTrajectory, conversation: Conversation) -> SideBySide | None:
    """The alignment of one of a conversation's trajectories."""
    return side_by_side(held.result, calls_of(conversation, held.turn_index))


def calls_of(conversation: Conversation, turn_index: int | None) -> Sequence[ToolCall]:
    """The calls of a turn; None: of the whole conversation."""
    if turn_index is None:
        return conversation.tool_calls
    unfinished = conversation.unfinished
    if unfinished and unfinished.turn_index == turn_index:
        return unfinished.tool_calls
    return next((turn.tool_calls for turn in conversation.turns if turn.turn_index == turn_index), ())


def counted_lines(result: ConversationResult) -> Iterator[tuple[HeldTrajectory, str]]:
    """The trajectories that do not match and only count by a threshold, each with a line that says so."""
    for held in counted_trajectories(result):
        summary = held.result.summary.split("\n", 1)[0]
        yield held, f"{held.subject}: {summary} (counted by the threshold)"


def without_sides(reason: Reason) -> str:
    """The message of a reason without what a table shows of its trajectory."""
    if reason.trajectory is None:
        return reason.message
    held = HeldTrajectory(turn_index=reason.turn_index, result=reason.trajectory)
    return f"{held.subject}: {held.result.summary}"


def plain_rows(table: SideBySide) -> Iterator[str]:
    """The rows as a list in plain text, for where columns would not stand below each other."""
    for row in table.rows:
        words = f" ({row.words})" if row.words else ""
        yield f"{row.sign} {row.expected} | {row.made}{words}"
    if table.more:
        yield table.more


def _is_about(reason: Reason, held: HeldTrajectory) -> bool:
    mine = reason.trajectory
    if mine is None or reason.turn_index != held.turn_index:
        return False
    return (mine.name, mine.summary) == (held.result.name, held.result.summary)


def _shown(row: AlignedRow, calls: Sequence[ToolCall]) -> ShownRow:
    known = row.call is not None and row.call < len(calls)
    made = call_text(calls[row.call]) if row.call is not None and known else NOT_MADE
    return ShownRow(
        status=row.status,
        expected=NOTHING if row.expected is None else shortened(row.expected, _TEXT_CHARS),
        made=shortened(made, _TEXT_CHARS),
        words=shortened(row.difference, _WORDS_CHARS),
    )


def _more(left: Sequence[AlignedRow], not_kept: int) -> str:
    """How many rows are not shown. Rows that are not kept have nothing wrong, unless others have that too."""
    total = len(left) + not_kept
    wrong = sum(not row.status.holds for row in left)
    if not total:
        return ""
    return f"… {count(total, 'more row')}, " + (f"{wrong} of them wrong" if wrong else "with nothing wrong")
