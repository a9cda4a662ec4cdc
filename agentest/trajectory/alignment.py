"""Align expected calls with actual calls, row by row, from the assignment that decides the result.

`align_calls` returns the rows; `pair_different_calls` pairs calls that differ from what was expected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import product

from agentest.domain.results import AlignedRow, ArgumentDifference, RowStatus
from agentest.domain.transcript import WAITS_FOR_APPROVAL, ToolCall, is_unreadable
from agentest.scenarios.matchers.comparison import MISSING, argument, equal, is_plain
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import shortened
from agentest.trajectory.call_facts import (
    ROUNDS_NOT_REPORTED,
    CallFacts,
    CallView,
    call_problems,
    expected_arguments,
    expected_text,
    place_text,
    slot_name,
    slot_text,
)
from agentest.trajectory.differences import Assessment, Assignment, over_limits
from agentest.trajectory.matching import best_in_order, bits, union

MOST_ROWS = 200  # maximum number of rows; rows with a problem come before others
_TEXT_CHARS = 300
_FAILED_CALL = "answered with an error, so it is not the expected call (ignore_failed)"
_MOST_NEAR = 20
_MOST_COMPARED = 400  # number of pairs of one tool to compare; if there are more, calls are paired in order
_MOST_DIFFERENCES = 5
_NONE: AbstractSet[int] = frozenset()
_TextAndValues = tuple[str, tuple[ArgumentDifference, ...]]


def align_calls(
    spec: Trajectory, assessment: Assessment, facts: CallFacts, view: CallView, *, undecided: bool = False
) -> tuple[tuple[AlignedRow, ...], int]:
    """Return the rows of an alignment, and the number of rows left out.

    Each call and each expected call is in one row. The rows are in the order of the actual calls; an expected
    call that was not made follows the one before it.

    Args:
        undecided: True if it is unknown whether the trajectory was met.
    """
    pairs = _pairs(spec, assessment, facts, view, undecided) if assessment.assignment else _Pairs({})
    rows = list(_Rows(spec, assessment, facts, view, undecided, pairs).all())
    if len(rows) <= MOST_ROWS:
        return tuple(rows), 0
    numbers = sorted(sorted(range(len(rows)), key=lambda at: (rows[at].status.holds, at))[:MOST_ROWS])
    return tuple(rows[at] for at in numbers), len(rows) - len(numbers)


@dataclass(frozen=True, slots=True)
class _Pairs:
    of_call: Mapping[int, int]
    late: AbstractSet[int] = _NONE
    different: AbstractSet[int] = _NONE
    repeated: AbstractSet[int] = _NONE  # calls that were made more often than expected


def _pairs(
    spec: Trajectory, assessment: Assessment, facts: CallFacts, view: CallView, undecided: bool
) -> _Pairs:
    """Pair calls by the assignment that decides, then calls with missing expected calls of the same tool.

    Leaves out pairs in an order that hidden calls may correct.
    """
    assignment = assessment.assignment
    assert assignment
    partners = assignment.partners(ordered=spec.is_ordered)
    late: set[int] = set()
    if spec.is_ordered and (assessment.calls.size or undecided):
        rows = tuple(0 if call is None else 1 << call for call in partners)
        in_order = best_in_order(rows, assignment.groups, union(assignment.groups))
        late = {call for call in partners if call is not None and call not in in_order}
    undone = late if view.blind and spec.match_mode == "in_order" else set()
    of_call = {call: row for row, call in enumerate(partners) if call is not None and call not in undone}
    different: dict[int, int] = {}
    if not view.blind or spec.forbids_others:
        allowed = assignment.matched | ~assignment.counting if spec.match_mode == "within" else 0
        paired = set(of_call.values())
        missing = [row for row in range(len(partners)) if row not in paired]
        others = [at for at in range(len(assignment.calls)) if at not in of_call and not allowed >> at & 1]
        different = {call: row for row, call in pair_different_calls(assignment, facts, missing, others)}
    repeated = frozenset(assignment.repeated() if spec.at_most_once else ())
    return _Pairs({**of_call, **different}, late - undone, different.keys(), repeated)


def _marked(row: AlignedRow, status: RowStatus, problem: str) -> AlignedRow:
    if not problem:
        return row
    text = "; ".join(filter(None, (row.difference, problem)))
    return replace(row, status=status if row.status.holds else row.status, difference=text)


@dataclass(frozen=True, slots=True)
class _Rows:
    spec: Trajectory
    assessment: Assessment
    facts: CallFacts
    view: CallView
    undecided: bool
    pairs: _Pairs

    def all(self) -> Iterator[AlignedRow]:
        """Yield the rows, with each missing expected call after the row that it should follow."""
        over = over_limits(self.spec, self.facts)
        rows = [self._call_row(call, over.get(call, "")) for call in range(len(self.facts.calls))]
        if self.undecided and not any(row.status is RowStatus.UNKNOWN for row in rows):
            rows = [self._without_known_round(call, row) for call, row in enumerate(rows)]
        yield from self._missing_rows(0)
        for call, row in enumerate(rows):
            yield replace(row, difference=shortened(row.difference, _TEXT_CHARS)) if row.difference else row
            if call in self.pairs.of_call:
                yield from self._missing_rows(self.pairs.of_call[call] + 1)
        least = self.spec.min_calls
        if self.assessment.limits.too_few:
            text = f"min_calls: {least}"
            yield AlignedRow(expected=None, call=None, status=RowStatus.MISSING, difference=text)

    def _without_known_round(self, call: int, row: AlignedRow) -> AlignedRow:
        certain = {*self.facts.fine} & {*self.facts.coarse}
        if not row.status.holds or any(group >> call & 1 for group in certain):
            return row
        return replace(row, status=RowStatus.UNKNOWN, difference=ROUNDS_NOT_REPORTED)

    def _call_row(self, call: int, limit: str) -> AlignedRow:
        row = self._paired_row(call) if call in self.pairs.of_call else self._unpaired_row(call)
        if call in self.pairs.repeated and row.status.holds:
            text = "at_most_once: made more often than expected"
            row = replace(row, status=RowStatus.EXTRA, difference=text)
        row = _marked(row, RowStatus.EXTRA, limit)
        row = _marked(row, RowStatus.OUT_OF_ORDER, self.assessment.limits.misplaced.get(call, ""))
        row = self._with_forbidden(call, row)
        if not self.undecided:
            return row
        if row.status is RowStatus.OUT_OF_ORDER:
            return replace(row, status=RowStatus.UNKNOWN)
        why = next((why for at, why in self.facts.doubts() if at == call), "")
        return replace(row, status=RowStatus.UNKNOWN, difference=why) if why and row.status.holds else row

    def _paired_row(self, call: int) -> AlignedRow:
        assignment, number = self.assessment.assignment, self.pairs.of_call[call]
        assert assignment
        text = shortened(slot_text(assignment.slots[number]), _TEXT_CHARS)
        row = AlignedRow(expected=text, call=call, status=RowStatus.MATCHED)
        why = self._why(number, call)
        if call in self.pairs.different:
            text, differences = (why, ()) if why else self._difference(assignment, number, call)
            row = replace(row, difference=text, differences=differences)
            return replace(row, status=RowStatus.DIFFERENT, tool=slot_name(assignment.slots[number]))
        if call in self.pairs.late:
            rounds = "rounds: " if self.spec.rounds else ""
            text = f"{rounds}expected as number {number + 1}, made as call {call + 1}"
            return replace(row, status=RowStatus.OUT_OF_ORDER, difference=text)
        return _marked(row, RowStatus.UNKNOWN, why)

    def _why(self, number: int, call: int) -> str:
        assignment = self.assessment.assignment
        sure = self.assessment.holds and not self.undecided and not self.view.blind
        return "" if sure or not assignment else self.facts.why(assignment.slots[number], call)

    def _difference(self, assignment: Assignment, number: int, call: int) -> _TextAndValues:
        text, differences = nearest_difference(assignment.slots[number], call, self.facts)
        if self.facts.failures.yes >> call & 1 and not text:
            return _FAILED_CALL if assignment.calls[call].ran else WAITS_FOR_APPROVAL, ()
        return "; ".join(filter(None, (text, self.facts.free_reasons.get(call, "")))), differences

    def _unpaired_row(self, call: int) -> AlignedRow:
        row = AlignedRow(expected=None, call=call, status=RowStatus.FREE)
        assignment = self.assessment.assignment
        if assignment is None or not assignment.counting >> call & 1:
            return replace(row, difference=self.facts.free_reasons.get(call, ""))
        if not self.spec.forbids_others:
            return row
        if self.spec.match_mode != "within":
            return replace(row, status=RowStatus.EXTRA)
        if assignment.matched >> call & 1:
            whys = [self._why(at, call) for at, mask in enumerate(assignment.rows) if mask >> call & 1]
            return _marked(row, RowStatus.UNKNOWN, whys[0] if all(whys) else "")
        why = next(filter(None, (self._why(at, call) for at in range(len(assignment.slots)))), "")
        allowed = [each for slot in assignment.slots for each in slot][: _MOST_NEAR * 10]
        why = why or nearest_difference(allowed, call, self.facts, named=False)[0]
        return replace(row, status=RowStatus.EXTRA, difference=why)

    def _with_forbidden(self, call: int, row: AlignedRow) -> AlignedRow:
        for each in self.spec.forbidden:
            if self.facts.banned[id(each)].yes >> call & 1:
                text = f"forbidden: {expected_text(each)}"
                return replace(row, status=RowStatus.FORBIDDEN, difference=text)
        for each in () if self.assessment.holds else self.spec.forbidden:
            if why := self.facts.why_banned(each, call):
                return replace(row, status=RowStatus.UNKNOWN, difference=f"may be forbidden: {why}")
        return row

    def _missing_rows(self, number: int) -> Iterator[AlignedRow]:
        if self.assessment.assignment is None:
            return
        slots, made = self.assessment.assignment.slots, self.pairs.of_call.values()
        while number < len(slots) and number not in made:
            status, doubtful = RowStatus.MISSING, self.facts.cell(slots[number]).maybe
            why = next((why for call in bits(doubtful) if (why := self._why(number, call))), "")
            if self.spec.match_mode == "within":
                status, why = RowStatus.FREE, ""
            elif self.view.may_hide(each.name for each in slots[number]):
                status, why = RowStatus.UNKNOWN, "not seen"
            yield AlignedRow(
                expected=shortened(slot_text(slots[number]), _TEXT_CHARS),
                call=None,
                status=status,
                difference=shortened(why, _TEXT_CHARS),
                tool=slot_name(slots[number]) if status is RowStatus.MISSING else "",
            )
            number += 1


def pair_different_calls(
    assignment: Assignment, facts: CallFacts, missing: Sequence[int], others: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of expected and actual calls of one tool: calls that count first, then the most similar."""
    by_tool: defaultdict[str, list[int]] = defaultdict(list)
    for call in others:
        by_tool[assignment.calls[call].name].append(call)
    left = dict.fromkeys(missing)
    for calls in by_tool.values():
        rows = [row for row in left if facts.of_tool(assignment.slots[row], calls[0])]
        for pair in _nearest(assignment, facts, rows, calls):
            left.pop(pair[0])
            yield pair


def _nearest(
    assignment: Assignment, facts: CallFacts, rows: Sequence[int], calls: Sequence[int]
) -> Iterator[tuple[int, int]]:
    if len(rows) * len(calls) > _MOST_COMPARED:
        yield from zip(rows, calls, strict=False)
        return

    def distance(pair: tuple[int, int]) -> tuple[bool, int]:
        row, call = pair
        alternatives = facts.of_tool(assignment.slots[row], call)
        nearest = max(count_equal_arguments(each, assignment.calls[call]) for each in alternatives)
        return not assignment.counting >> call & 1, -nearest

    left_rows, left_calls = set(rows), set(calls)
    for row, call in sorted(product(rows, calls), key=distance):
        if row in left_rows and call in left_calls:
            left_rows.remove(row)
            left_calls.remove(call)
            yield row, call


def nearest_difference(
    slot: Sequence[ExpectedCall], call: int, facts: CallFacts, *, named: bool = True
) -> _TextAndValues:
    """Return how a call differs from the most similar alternative, which is `named` if there are several."""
    alternatives, made = facts.of_tool(slot, call), facts.calls[call]
    if not alternatives:
        return "", ()
    misplaced = {key for key, calls in facts.misplaced.items() if calls >> call & 1}
    near = max(alternatives, key=lambda each: (id(each) in misplaced, count_equal_arguments(each, made)))
    # A call without an arguments object does not count, even if any arguments would do.
    compared = replace(near, args=near.args or {}, arg_match_mode="exact") if is_unreadable(made) else near
    problems = [each for each in call_problems(compared, made) if each.path or not each.failed]
    shown = problems[:_MOST_DIFFERENCES]
    more = [f"{len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
    text = "; ".join([*(each.words for each in shown), *more])
    if not text and near.nth is not None and id(near) in misplaced:
        text = f"{place_text(near.nth)}: it came at another place among the calls of its tool that count"
    values = tuple(each.told for each in shown if not each.failed and not each.note)
    return f"nearest {expected_text(near)}: {text}" if named and len(slot) > 1 else text, values


def count_equal_arguments(expected: ExpectedCall, made: ToolCall) -> int:
    """Count matching arguments, among those that can be compared without users' code."""
    wanted = expected_arguments(expected) or {}
    if not isinstance(made.args, Mapping):
        return -1
    actual = {key: argument(made.args, key) for key in wanted}
    return sum(
        actual[key] is not MISSING and is_plain(value) and equal(value, actual[key])
        for key, value in wanted.items()
    )
