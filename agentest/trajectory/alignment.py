"""Align expected calls with actual calls, row by row, from the assignment that decides the result.

`align_calls` returns the rows; `pair_different_calls` pairs calls that differ from what was expected.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import product

from agentest.domain.results import AlignedRow, RowStatus
from agentest.domain.transcript import WAITS_FOR_APPROVAL, ToolCall
from agentest.scenarios.matchers.comparison import (
    MISSING,
    PredicateFailed,
    argument,
    argument_problems,
    equal,
    is_plain,
)
from agentest.scenarios.matchers.display import shown
from agentest.scenarios.trajectory import ANYTHING, ExpectedCall, Trajectory
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import shortened
from agentest.trajectory.call_facts import (
    ROUNDS_NOT_REPORTED,
    CallFacts,
    CallView,
    expected_arguments,
    expected_text,
    is_named,
    is_result_unknown,
    place_text,
    result_holds,
    slot_text,
    where_holds,
)
from agentest.trajectory.differences import Assessment, Assignment, over_limits
from agentest.trajectory.matching import best_in_order, union

MOST_ROWS = 200
"""Maximum number of rows; rows with a problem come before others."""
_TEXT_CHARS = 300
_FAILED_CALL = "answered with an error, so it is not the expected call (ignore_failed)"
_MOST_NEAR = 20
"""Number of allowed calls of one tool to compare with a call."""
_MOST_COMPARED = 400
"""Number of pairs of one tool to compare; if there are more, calls are paired in order."""
_MOST_DIFFERENCES = 5
"""Maximum number of differences in a message."""
_VALUE_CHARS = 80
_NONE: AbstractSet[int] = frozenset()


def align_calls(
    spec: Trajectory, assessment: Assessment, facts: CallFacts, view: CallView, *, undecided: bool = False
) -> tuple[tuple[AlignedRow, ...], int]:
    """Return the rows of an alignment, and the number of rows left out.

    Each call and each expected call is in one row. The rows are in the order of the actual calls; an expected
    call that was not made follows the one before it.

    Args:
        undecided: True if it is unknown whether the trajectory was met.
    """
    pairs = _pairs(spec, assessment, view, undecided) if assessment.assignment else _Pairs({})
    rows = list(_Rows(spec, assessment, facts, view, undecided, pairs).all())
    if len(rows) <= MOST_ROWS:
        return tuple(rows), 0
    numbers = sorted(sorted(range(len(rows)), key=lambda at: (rows[at].status.holds, at))[:MOST_ROWS])
    return tuple(rows[at] for at in numbers), len(rows) - len(numbers)


@dataclass(frozen=True, slots=True)
class _Pairs:
    of_call: Mapping[int, int]
    """Call → the expected call in its row."""
    late: AbstractSet[int] = _NONE
    """Calls that match an expected call, but in the wrong place."""
    different: AbstractSet[int] = _NONE
    """Calls that differ from the missing expected call in their row."""
    repeated: AbstractSet[int] = _NONE
    """Calls that were made more often than expected."""


def _pairs(spec: Trajectory, assessment: Assessment, view: CallView, undecided: bool) -> _Pairs:
    """Pair calls by the assignment that decides, then calls with missing expected calls of the same tool.

    Leaves out pairs in an order that hidden calls may correct.
    """
    assignment = assessment.assignment
    assert assignment
    partners = assignment.partners(ordered=spec.is_ordered)
    late: set[int] = set()
    if spec.is_ordered and (assessment.calls.problems or undecided):
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
        different = {call: row for row, call in pair_different_calls(assignment, missing, others)}
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
        if least is not None and any("at least" in problem for problem in self.assessment.limits.problems):
            text = f"min_calls: {least}"
            yield AlignedRow(expected=None, call=None, status=RowStatus.MISSING, difference=text)

    def _without_known_round(self, call: int, row: AlignedRow) -> AlignedRow:
        """Mark the row of a call in an unknown message as unknown, if the result depends on `rounds`."""
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
        why = assignment.reasons.get((number, call), "")
        if call in self.pairs.different:
            text = why or self._difference(assignment, number, call)
            return replace(row, status=RowStatus.DIFFERENT, difference=text)
        if call in self.pairs.late:
            rounds = "rounds: " if self.spec.rounds else ""
            text = f"{rounds}expected as number {number + 1}, made as call {call + 1}"
            return replace(row, status=RowStatus.OUT_OF_ORDER, difference=text)
        return _marked(row, RowStatus.UNKNOWN, why)

    def _difference(self, assignment: Assignment, number: int, call: int) -> str:
        made = assignment.calls[call]
        text = nearest_difference(assignment.slots[number], made, self._matches_in_other_places(call))
        if self.facts.failures.yes >> call & 1 and not text:
            return _FAILED_CALL if made.ran else WAITS_FOR_APPROVAL
        return "; ".join(filter(None, (text, self.facts.free_reasons.get(call, ""))))

    def _matches_in_other_places(self, call: int) -> frozenset[int]:
        """Return the `id`s of expected calls that a call would match in another place."""
        return frozenset(key for key, calls in self.facts.misplaced.items() if calls >> call & 1)

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
            whys = [
                assignment.reasons.get((number, call), "")
                for number, mask in enumerate(assignment.rows)
                if mask >> call & 1
            ]
            return _marked(row, RowStatus.UNKNOWN, whys[0] if all(whys) else "")
        why = next((why for (_, at), why in assignment.reasons.items() if at == call), "")
        allowed = [each for slot in assignment.slots for each in slot][: _MOST_NEAR * 10]
        why = why or nearest_difference(
            allowed, assignment.calls[call], self._matches_in_other_places(call), named=False
        )
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
        """Yield a row for each expected call from this number on, until one that was made."""
        if self.assessment.assignment is None:
            return
        slots, made = self.assessment.assignment.slots, self.pairs.of_call.values()
        while number < len(slots) and number not in made:
            status, reasons = RowStatus.MISSING, self.assessment.assignment.reasons
            why = next((why for (row, _), why in reasons.items() if row == number), "")
            if self.spec.match_mode == "within":
                status, why = RowStatus.FREE, ""
            elif self.view.may_hide(each.name for each in slots[number]):
                status, why = RowStatus.UNKNOWN, "not seen"
            yield AlignedRow(
                expected=shortened(slot_text(slots[number]), _TEXT_CHARS),
                call=None,
                status=status,
                difference=shortened(why, _TEXT_CHARS),
            )
            number += 1


def pair_different_calls(
    assignment: Assignment, missing: Sequence[int], others: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Yield pairs of expected and actual calls of one tool: calls that count first, then the most similar."""
    by_tool: defaultdict[str, list[int]] = defaultdict(list)
    for call in others:
        by_tool[assignment.calls[call].name].append(call)
    left = dict.fromkeys(missing)
    for name, calls in by_tool.items():
        rows = [row for row in left if alternatives_for_tool(assignment.slots[row], name)]
        for pair in _nearest(assignment, rows, calls):
            left.pop(pair[0])
            yield pair


def _nearest(assignment: Assignment, rows: Sequence[int], calls: Sequence[int]) -> Iterator[tuple[int, int]]:
    if len(rows) * len(calls) > _MOST_COMPARED:
        yield from zip(rows, calls, strict=False)
        return

    def distance(pair: tuple[int, int]) -> tuple[bool, int]:
        row, call = pair
        made = assignment.calls[call]
        alternatives = alternatives_for_tool(assignment.slots[row], made.name)
        nearest = max(count_equal_arguments(each, made) for each in alternatives)
        return not assignment.counting >> call & 1, -nearest

    left_rows, left_calls = set(rows), set(calls)
    for row, call in sorted(product(rows, calls), key=distance):
        if row in left_rows and call in left_calls:
            left_rows.remove(row)
            left_calls.remove(call)
            yield row, call


def alternatives_for_tool(slot: Sequence[ExpectedCall], name: str) -> list[ExpectedCall]:
    """Return the alternatives that may apply to a tool of this name."""
    return [each for each in slot if _holds_or_unknown(partial(is_named, each, name))]


def nearest_difference(
    slot: Sequence[ExpectedCall],
    made: ToolCall,
    misplaced: AbstractSet[int] = _NONE,
    *,
    named: bool = True,
) -> str:
    """Describe how a call differs from the most similar alternative, `named` if there are several."""
    alternatives = alternatives_for_tool(slot, made.name)
    if not alternatives:
        return ""
    near = max(alternatives, key=lambda each: (id(each) in misplaced, count_equal_arguments(each, made)))
    text = difference(near, made)
    if not text and near.nth is not None and id(near) in misplaced:
        text = f"{place_text(near.nth)}: it came at another place among the calls of its tool that count"
    return f"nearest {expected_text(near)}: {text}" if named and len(slot) > 1 else text


def difference(expected: ExpectedCall, made: ToolCall) -> str:
    """Describe each difference: `amount: expected 5, got 500`.

    Users' functions and patterns are called no more often than for the match itself: only the first that does
    not hold is named, so that none can hang here that did not hang before.
    """
    wanted, is_exact = expected_arguments(expected), expected.arg_match_mode == "exact"
    texts: list[str] = []
    if wanted is not None and not isinstance(made.args, Mapping):
        texts = [f"the arguments are not an object: {_shortened(safe_repr(made.args))}"]
    elif wanted is not None:
        texts = [problem.words for problem in argument_problems(wanted, made.args, exact=is_exact)]
    if not texts or all(map(is_plain, (wanted or {}).values())):
        texts += _result_differences(expected, made, is_exact)
    where = expected.where
    if not texts and where is not None and not _holds_or_unknown(partial(where_holds, where, made)):
        texts = [f"where: {_shortened(shown(where))} said no"]
    more = [f"{len(texts) - _MOST_DIFFERENCES} more"] if len(texts) > _MOST_DIFFERENCES else []
    return "; ".join([*texts[:_MOST_DIFFERENCES], *more])


def _result_differences(expected: ExpectedCall, made: ToolCall, is_exact: bool) -> list[str]:
    if expected.result is ANYTHING or is_result_unknown(made):
        return []
    wanted, actual = expected.result, made.result
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        problems = argument_problems(wanted, actual, exact=is_exact, inside="result")
        return [problem.words for problem in problems]
    if _holds_or_unknown(partial(result_holds, expected, made)):
        return []
    return [f"result: expected {_shortened(shown(wanted))}, got {_shortened(safe_repr(actual))}"]


def _holds_or_unknown(question: Callable[[], bool]) -> bool:
    try:
        return question()
    except PredicateFailed:
        return True


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


def _shortened(text: str) -> str:
    return shortened(text, _VALUE_CHARS)
