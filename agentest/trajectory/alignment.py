"""Align expected calls with actual calls, row by row, by the matching that decides the result.

`aligned` returns the rows; `different_pairs` pairs calls that differ from what was expected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from agentest.domain.results import AlignedRow, RowStatus
from agentest.domain.transcript import WAITS_FOR_APPROVAL, ToolCall
from agentest.scenarios.calls import ANYTHING, ExpectedCall
from agentest.scenarios.matchers.comparison import (
    MISSING,
    PredicateFailed,
    argument,
    argument_problems,
    equal,
    is_plain,
)
from agentest.scenarios.matchers.display import shown
from agentest.scenarios.trajectory import Trajectory
from agentest.support.json_text import safe_repr
from agentest.support.replacing import replace
from agentest.support.text import shortened
from agentest.trajectory.assessment import Assessment, is_ordered
from agentest.trajectory.candidates import (
    VisibleTools,
    are_always_visible,
    is_closed,
    is_named,
    is_result_unknown,
    result_holds,
    where_holds,
)
from agentest.trajectory.expected_text import expected_arguments, expected_text, place_text
from agentest.trajectory.known_calls import ROUNDS_NOT_REPORTED, CallKnowledge
from agentest.trajectory.limits import over_limits
from agentest.trajectory.matching import bits, longest_rise
from agentest.trajectory.table import CallTable

MOST_ROWS = 200
"""Maximum number of rows; rows with a problem come before others."""
_TEXT_CHARS = 300
_FAILED_CALL = "answered with an error, so it is not the expected call (ignore_failed)"
_MOST_NEAR = 20
"""Number of allowed calls of one tool to compare with a call."""
_MOST_COMPARED = 400
"""Number of pairs of one tool to compare; if there are more, calls are paired in order."""


def align_calls(
    spec: Trajectory,
    found: Assessment,
    seen: CallKnowledge,
    *,
    blind: bool = False,
    listed: VisibleTools = None,
    undecided: bool = False,
) -> tuple[tuple[AlignedRow, ...], int]:
    """Return the rows of an alignment, and the number of rows left out.

    Each call and each expected call is in one row. The rows are in the order of the actual calls; an expected
    call that was not made follows the one before it.

    Args:
        found: the assessment of the calls.
        seen: everything known about the calls.
        blind: True if there may be hidden calls of tools that are not `listed`.
        listed: the tools whose calls are all visible.
        undecided: True if it is unknown whether the trajectory was met.
    """
    sheet = _AlignmentBuilder(
        spec=spec,
        found=found,
        seen=seen,
        table=found.table,
        blind=blind,
        listed=listed,
        undecided=undecided,
    )
    rows = sheet.rows()
    if len(rows) <= MOST_ROWS:
        return rows, 0
    shown = sorted(sorted(range(len(rows)), key=lambda at: (rows[at].status.holds, at))[:MOST_ROWS])
    return tuple(rows[at] for at in shown), len(rows) - len(shown)


@dataclass(slots=True, kw_only=True)
class _AlignmentBuilder:
    spec: Trajectory
    found: Assessment
    seen: CallKnowledge
    table: CallTable | None
    blind: bool
    listed: VisibleTools
    undecided: bool
    of_call: dict[int, int] = field(default_factory=dict)
    """Call → the expected call in its row."""
    late: set[int] = field(default_factory=set)
    """Calls that match an expected call, but in the wrong place."""
    different: set[int] = field(default_factory=set)
    """Calls that differ from the missing expected call in their row."""
    again: set[int] = field(default_factory=set)
    """Calls that were made more often than expected."""

    def rows(self) -> tuple[AlignedRow, ...]:
        if self.table:
            self._pair(self.table)
            self._pair_different(self.table)
            self.again = set(self.table.beyond_their_own() if self.spec.at_most_once else ())
        over = over_limits(self.spec, self.seen)
        rows = [self._call_row(call, over.get(call, "")) for call in range(len(self.seen.calls))]
        if self.undecided and not any(row.status is RowStatus.UNKNOWN for row in rows):
            rows = [self._without_known_round(row) for row in rows]
        return tuple(self._with_missing(rows, self._min_calls_rows()))

    def _without_known_round(self, row: AlignedRow) -> AlignedRow:
        """Mark the row of a call in an unknown message as unknown, if the result depends on `rounds`."""
        at = 1 << (row.call or 0)
        is_known = any(group & at for group in {*self.seen.fine} & {*self.seen.coarse})
        if is_known or not row.status.holds:
            return row
        return replace(row, status=RowStatus.UNKNOWN, difference=ROUNDS_NOT_REPORTED)

    def _call_row(self, call: int, limit: str) -> AlignedRow:
        row = self._with_order_problem(
            call, _with_limit_problem(self._repeated(call, self._row(call)), limit)
        )
        row = self._with_forbidden(call, row)
        return self._with_doubt(call, row) if self.undecided else row

    def _pair(self, table: CallTable) -> None:
        """Pair calls by the assignment that decides, without an order that hidden calls may correct."""
        ordered = is_ordered(self.spec.match_mode)
        pairs = [
            (wanted, call) for wanted, call in enumerate(table.partners(ordered=ordered)) if call is not None
        ]
        places = _places(table)
        ordered = ordered and bool(self.found.found.problems or self.undecided)
        rise = longest_rise([places[call] * len(table.rows) + wanted for wanted, call in pairs])
        late = {pairs[at][1] for at in range(len(pairs)) if at not in rise} if ordered else set()
        undone = late if self.blind and self.spec.match_mode == "in_order" else set()
        self.of_call = {call: wanted for wanted, call in pairs if call not in undone}
        self.late = late - undone

    def _pair_different(self, table: CallTable) -> None:
        """Pair calls with missing expected calls of the same tool, the most similar first."""
        if self.blind and not is_closed(self.spec.match_mode):
            return
        allowed = table.found | ~table.counting if self.spec.match_mode == "within" else 0
        paired = set(self.of_call.values())
        missing = [row for row in range(len(table.rows)) if row not in paired]
        others = [at for at in range(len(table.calls)) if at not in self.of_call and not allowed >> at & 1]
        for wanted, call in pair_different_calls(table, missing, others):
            self.of_call[call] = wanted
            self.different.add(call)

    def _row(self, call: int) -> AlignedRow:
        wanted = self.of_call.get(call)
        if self.table is None or wanted is None:
            return self._unpaired_row(call)
        text = shortened(self.table.row_text(wanted), _TEXT_CHARS)
        row = AlignedRow(expected=text, call=call, status=RowStatus.MATCHED)
        why = self.table.whys.get((wanted, call), "")
        if call in self.different:
            words = why or self._difference(self.table, wanted, call)
            return replace(row, status=RowStatus.DIFFERENT, difference=words)
        if call in self.late:
            return replace(
                row, status=RowStatus.OUT_OF_ORDER, difference=self._order_difference(wanted, call)
            )
        return replace(row, status=RowStatus.UNKNOWN, difference=why) if why else row

    def _order_difference(self, wanted: int, call: int) -> str:
        rounds = "rounds: " if self.spec.rounds else ""
        return f"{rounds}expected as number {wanted + 1}, made as call {call + 1}"

    def _difference(self, table: CallTable, wanted: int, call: int) -> str:
        words = nearest_difference(
            table.slots[wanted], table.calls[call], self._matches_in_other_places(call)
        )
        if self.seen.failed.yes >> call & 1 and not words:
            return _FAILED_CALL if table.calls[call].ran else WAITS_FOR_APPROVAL
        free = self.seen.free_whys.get(call, "")
        return "; ".join(filter(None, (words, free)))

    def _matches_in_other_places(self, call: int) -> frozenset[int]:
        """Return the `id`s of expected calls that a call would match in another place."""
        return frozenset(key for key, calls in self.seen.elsewhere.items() if calls >> call & 1)

    def _unpaired_row(self, call: int) -> AlignedRow:
        """Return the row of a call without an expected call."""
        row = AlignedRow(expected=None, call=call, status=RowStatus.FREE)
        if self.table is None or not self._counts(self.table, call):
            return replace(row, difference=self.seen.free_whys.get(call, ""))
        if not is_closed(self.spec.match_mode):
            return row
        if self.spec.match_mode != "within":
            return replace(row, status=RowStatus.EXTRA)
        if self.table.found >> call & 1:
            why = _why_allowed(self.table, call)
            return replace(row, status=RowStatus.UNKNOWN, difference=why) if why else row
        return replace(row, status=RowStatus.EXTRA, difference=self._not_allowed(self.table, call))

    def _counts(self, table: CallTable, call: int) -> bool:
        return bool(table.counting >> call & 1)

    def _not_allowed(self, table: CallTable, call: int) -> str:
        """Describe how the call differs from the allowed calls of its tool."""
        why = next((why for (_, at), why in table.whys.items() if at == call), "")
        allowed = [each for slot in table.slots for each in slot][: _MOST_NEAR * 10]
        return why or nearest_difference(
            allowed, table.calls[call], self._matches_in_other_places(call), named=False
        )

    def _repeated(self, call: int, row: AlignedRow) -> AlignedRow:
        if call not in self.again or not row.status.holds:
            return row
        return replace(row, status=RowStatus.EXTRA, difference="at_most_once: made more often than expected")

    def _with_order_problem(self, call: int, row: AlignedRow) -> AlignedRow:
        """Mark a call that breaks an order between two calls."""
        words = self.found.bounds.misplaced.get(call)
        if not words:
            return row
        status = RowStatus.OUT_OF_ORDER if row.status.holds else row.status
        return replace(row, status=status, difference="; ".join(filter(None, (row.difference, words))))

    def _with_forbidden(self, call: int, row: AlignedRow) -> AlignedRow:
        for each in self.spec.forbidden:
            if self.seen.banned[id(each)].yes >> call & 1:
                words = f"forbidden: {expected_text(each)}"
                return replace(row, status=RowStatus.FORBIDDEN, difference=words)
        for each in () if self.found.holds else self.spec.forbidden:
            if why := self.seen.why_banned(each, call):
                return replace(row, status=RowStatus.UNKNOWN, difference=f"may be forbidden: {why}")
        return row

    def _with_doubt(self, call: int, row: AlignedRow) -> AlignedRow:
        """Mark a call about which something is unknown, if the trajectory could not be decided."""
        why = self.seen.undecided_of(call)
        if row.status is RowStatus.OUT_OF_ORDER:
            return replace(row, status=RowStatus.UNKNOWN)
        return replace(row, status=RowStatus.UNKNOWN, difference=why) if why and row.status.holds else row

    def _min_calls_rows(self) -> Iterator[AlignedRow]:
        """Yield a row for the calls that `min_calls` requires."""
        least = self.spec.min_calls
        if least is not None and any("at least" in problem for problem in self.found.bounds.problems):
            words = f"min_calls: {least}"
            yield AlignedRow(expected=None, call=None, status=RowStatus.MISSING, difference=words)

    def _with_missing(self, found: Sequence[AlignedRow], more: Iterator[AlignedRow]) -> Iterator[AlignedRow]:
        """Insert a row for each missing expected call after the row that it should follow."""
        count = len(self.table.rows) if self.table else 0
        made = set(self.of_call.values())

        def following(wanted: int) -> Iterator[AlignedRow]:
            while wanted < count and wanted not in made:
                yield self._missing_row(wanted)
                wanted += 1

        yield from following(0)
        for row in found:
            yield replace(row, difference=shortened(row.difference, _TEXT_CHARS))
            if row.call in self.of_call:
                yield from following(self.of_call[row.call] + 1)
        yield from more

    def _missing_row(self, wanted: int) -> AlignedRow:
        table = self.table
        assert table
        why = next((why for (row, _), why in table.whys.items() if row == wanted), "")
        row = AlignedRow(
            expected=shortened(table.row_text(wanted), _TEXT_CHARS),
            call=None,
            status=RowStatus.MISSING,
            difference=shortened(why, _TEXT_CHARS),
        )
        if self.spec.match_mode == "within":
            return replace(row, status=RowStatus.FREE, difference="")
        names = (each.name for each in table.slots[wanted])
        unseen = self.blind and not are_always_visible(names, self.listed)
        return replace(row, status=RowStatus.UNKNOWN, difference="not seen") if unseen else row


def _places(table: CallTable) -> dict[int, int]:
    """Return a mapping from a call to the position of its group."""
    return {call: place for place, group in enumerate(table.groups) for call in bits(group)}


def _why_allowed(table: CallTable, call: int) -> str:
    """Return why it is uncertain that a call is allowed, or ""."""
    lines = [row for row, mask in enumerate(table.rows) if mask >> call & 1]
    if any((row, call) not in table.whys for row in lines):
        return ""
    return next((table.whys[row, call] for row in lines), "")


def _with_limit_problem(row: AlignedRow, limit: str) -> AlignedRow:
    if not limit:
        return row
    words = "; ".join(filter(None, (row.difference, limit)))
    return replace(row, status=RowStatus.EXTRA if row.status.holds else row.status, difference=words)


def pair_different_calls(
    table: CallTable, missing: Sequence[int], others: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of expected and actual calls of one tool: calls that count first, then the most similar."""
    by_tool: defaultdict[str, list[int]] = defaultdict(list)
    for call in others:
        by_tool[table.calls[call].name].append(call)
    left = dict.fromkeys(missing)
    for name, calls in by_tool.items():
        rows = [row for row in left if alternatives_for_tool(table.slots[row], name)]
        for pair in _nearest(table, rows, calls):
            left.pop(pair[0])
            yield pair


def _nearest(table: CallTable, rows: Sequence[int], calls: Sequence[int]) -> Iterator[tuple[int, int]]:
    if len(rows) * len(calls) > _MOST_COMPARED:
        yield from zip(rows, calls, strict=False)
        return
    pairs = sorted(
        (
            not table.counting >> call & 1,
            -max(
                count_equal_arguments(each, table.calls[call])
                for each in alternatives_for_tool(table.slots[row], table.calls[call].name)
            ),
            row,
            call,
        )
        for row in rows
        for call in calls
    )
    taken: set[tuple[str, int]] = set()
    for _, _, row, call in pairs:
        if not {("row", row), ("call", call)} & taken:
            taken |= {("row", row), ("call", call)}
            yield row, call


_MOST_DIFFERENCES = 5
"""Maximum number of differences in a message."""
_VALUE_CHARS = 80
_NONE: AbstractSet[int] = frozenset()


def alternatives_for_tool(slot: Sequence[ExpectedCall], name: str) -> list[ExpectedCall]:
    """Return the alternatives that may apply to a tool of this name."""
    return [each for each in slot if _may_be_named(each, name)]


def _may_be_named(expected: ExpectedCall, name: str) -> bool:
    try:
        return is_named(expected, name)
    except PredicateFailed:
        return True


def nearest_difference(
    slot: Sequence[ExpectedCall],
    made: ToolCall,
    elsewhere: AbstractSet[int] = _NONE,
    *,
    named: bool = True,
) -> str:
    """Describe how a call differs from the most similar of several alternatives.

    Args:
        elsewhere: `id`s of the alternatives that it would match in another place.
        named: True to name the alternative if there are several.
    """
    mine = alternatives_for_tool(slot, made.name)
    if not mine:
        return ""
    near = max(mine, key=lambda each: (id(each) in elsewhere, count_equal_arguments(each, made)))
    words = difference(near, made)
    if not words and near.nth is not None and id(near) in elsewhere:
        words = f"{place_text(near.nth)}: it came at another place among the calls of its tool that count"
    return f"nearest {expected_text(near)}: {words}" if named and len(slot) > 1 else words


def difference(expected: ExpectedCall, made: ToolCall) -> str:
    """Describe each difference: `amount: expected 5, got 500`.

    Users' functions and patterns are called no more often than for the match itself: only the first that does
    not hold is named, so that none can hang here that did not hang before.
    """
    found = [*_argument_differences(expected, made)]
    asked = not all(map(is_plain, (expected_arguments(expected) or {}).values()))
    if not (found and asked):
        found += _result_differences(expected, made)
    if not found:
        found += _where_differences(expected, made)
    more = [f"{len(found) - _MOST_DIFFERENCES} more"] if len(found) > _MOST_DIFFERENCES else []
    return "; ".join([*found[:_MOST_DIFFERENCES], *more])


def _argument_differences(expected: ExpectedCall, made: ToolCall) -> list[str]:
    wanted = expected_arguments(expected)
    if wanted is None:
        return []
    if not isinstance(made.args, Mapping):
        return [f"the arguments are no object: {_actual_text(made.args)}"]
    exact = expected.arg_match_mode == "exact"
    return [problem.words for problem in argument_problems(wanted, made.args, exact=exact)]


def _result_differences(expected: ExpectedCall, made: ToolCall) -> Iterator[str]:
    if expected.result is ANYTHING or is_result_unknown(made):
        return
    wanted, actual = expected.result, made.result
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        exact = expected.arg_match_mode == "exact"
        yield from (
            problem.words for problem in argument_problems(wanted, actual, exact=exact, inside="result")
        )
    elif not _holds_or_unknown(lambda: result_holds(expected, made)):
        yield f"result: expected {_expected_text(wanted)}, got {_actual_text(actual)}"


def _where_differences(expected: ExpectedCall, made: ToolCall) -> Iterator[str]:
    where = expected.where
    if where is not None and not _holds_or_unknown(lambda: where_holds(where, made)):
        yield f"where: {_expected_text(where)} said no"


def _holds_or_unknown(question: Any) -> bool:
    try:
        return bool(question())
    except PredicateFailed:
        return True


def count_equal_arguments(expected: ExpectedCall, made: ToolCall) -> int:
    """Count matching arguments, among those that can be compared without users' code."""
    wanted = expected_arguments(expected) or {}
    if not isinstance(made.args, Mapping):
        return -1
    given = {key: argument(made.args, key) for key in wanted}
    return sum(
        given[key] is not MISSING and is_plain(value) and equal(value, given[key])
        for key, value in wanted.items()
    )


def _expected_text(value: Any) -> str:
    return shortened(shown(value), _VALUE_CHARS)


def _actual_text(value: Any) -> str:
    return shortened(safe_repr(value), _VALUE_CHARS)
