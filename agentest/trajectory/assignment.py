"""Assign actual calls to the expected calls of one path, and find what differs.

The calls are columns and the expected calls are rows. The differences are those that remain if every unknown
is decided in favor of the trajectory, or against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall
from agentest.scenarios.calls import ExpectedCall, name_text
from agentest.scenarios.trajectory import Slot, Trajectory
from agentest.support.lazy_dataclasses import dataclass
from agentest.trajectory.call_facts import CallFacts, CallView
from agentest.trajectory.expected_text import place_text, slot_name, slot_text
from agentest.trajectory.matching import (
    Matching,
    Partners,
    best_in_order,
    bits,
    columns_saturated,
    count_in_order,
    exactly_in_order,
    first_out_of_place,
    maximum_matching,
    union,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The actual calls that match each expected call, with every unknown decided."""

    slots: Sequence[Slot]
    calls: Sequence[ToolCall]
    rows: tuple[int, ...]
    """For each expected call the calls that match it, as bits."""
    members: Sequence[int]
    """The same with unknowns decided the opposite way, to find calls that are repeated."""
    counting: int
    """The calls that count, as bits; free calls do not."""
    groups: tuple[int, ...]
    """Groups of calls in any order, as bits (`rounds`)."""
    reasons: Mapping[tuple[int, int], str]
    """Row and call → why it is unknown whether they match."""

    @classmethod
    def of(
        cls, slots: Sequence[Slot], facts: CallFacts, *, best: bool, groups: tuple[int, ...] = ()
    ) -> Assignment:
        """Decide unknowns in favor of the trajectory (`best`) or against it, as for the default `groups`."""
        cells = [facts.cell(slot) for slot in slots]
        return cls(
            slots=slots,
            calls=facts.calls,
            rows=tuple(cell.surely(not best) for cell in cells),
            members=[cell.surely(best) for cell in cells],
            counting=facts.counting(best),
            groups=groups or (facts.coarse if best else facts.fine),
            reasons={
                (row, call): facts.why(slots[row], call)
                for row, cell in enumerate(cells)
                for call in bits(cell.maybe)
            },
        )

    @property
    def matched(self) -> int:
        """The calls that match any expected call."""
        return union(self.rows)

    def partners(self, *, ordered: bool = False) -> Partners:
        """Return an assignment in which as many expected calls as possible have their own call.

        Among these, it pairs as many calls that count as possible.

        Args:
            ordered: True to pair as many as possible in the expected order.
        """
        begin = best_in_order(self.rows, self.groups, self.counting) if ordered else ()
        return maximum_matching(self.rows, self.counting, begin) if None in begin or not begin else begin

    def missing_and_extra(self, *, ordered: bool = False) -> tuple[list[int], list[int]]:
        """Return rows without a call, and calls that count without a row, according to `partners`."""
        partners = self.partners(ordered=ordered)
        missing = [row for row, call in enumerate(partners) if call is None]
        return missing, list(bits(self.counting & ~_mask(partners)))

    def repeated(self) -> list[int]:
        """Return calls that count and match an expected call, but have none of their own."""
        wanted = union(self.members) & self.counting
        return list(bits(wanted & ~_mask(maximum_matching([row & wanted for row in self.rows]))))


def _mask(partners: Partners) -> int:
    return union([1 << call for call in partners if call is not None])


@dataclass(frozen=True, slots=True)
class CallDifferences:
    """How the calls differ from the expected calls; they do not if `problems` is empty."""

    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of differences; the path with the fewest is the nearest."""
        return len(self.missing) + len(self.extra) + len(self.ordering)


NO_DIFFERENCES = CallDifferences()


def min_differences(spec: Trajectory, assignment: Assignment) -> int:
    """Return a lower bound for the number of differences, without matching."""
    missing = 0 if spec.match_mode == "within" else sum(not row for row in assignment.rows)
    extra = assignment.counting & ~assignment.matched if spec.forbids_others else 0
    return missing + extra.bit_count()


def may_hold(spec: Trajectory, assignment: Assignment) -> bool:
    """Return False if the order is wrong, by a cheap test, because there may be many paths."""
    rows, groups = assignment.rows, assignment.groups
    if spec.match_mode == "strict":
        return exactly_in_order(rows, groups, assignment.counting)
    return spec.match_mode != "in_order" or count_in_order(rows, groups) == len(rows)


def compare_calls(spec: Trajectory, assignment: Assignment, view: CallView) -> CallDifferences:
    """Return the differences that remain whatever hidden calls were made."""
    if spec.match_mode == "within":
        beyond = bits(assignment.counting & ~assignment.matched)
        differences = _extra("calls beyond the allowed ones", assignment, beyond)
    elif view.blind:
        differences = _differences_of_visible_calls(spec, assignment, view)
    elif spec.match_mode == "in_order":
        differences = _differences_in_order(spec, assignment)
    else:
        differences = _differences_of_assigned_calls(spec, assignment)
    if not spec.at_most_once or spec.match_mode in ("strict", "unordered"):  # reported as extra calls
        return differences
    problem = "at_most_once: calls were made more often than they are expected"
    again = _extra(problem, assignment, assignment.repeated())
    return replace(
        differences, problems=differences.problems + again.problems, extra=differences.extra + again.extra
    )


def _extra(problem: str, assignment: Assignment, calls: Iterable[int]) -> CallDifferences:
    names = tuple(assignment.calls[call].name for call in calls)
    return CallDifferences((f"{problem}: {', '.join(names)}",), extra=names) if names else NO_DIFFERENCES


def _unexpected(assignment: Assignment, calls: Iterable[int]) -> CallDifferences:
    return _extra("unexpected calls were made", assignment, calls)


def _missing(assignment: Assignment, rows: Iterable[int]) -> CallDifferences:
    names = tuple(slot_name(assignment.slots[row]) for row in rows)
    problem = "expected calls are missing: " + ", ".join(names)
    return CallDifferences((problem,), missing=names) if names else NO_DIFFERENCES


def _disordered(problem: str, issues: Sequence[str]) -> CallDifferences:
    return CallDifferences((f"{problem}: {', '.join(issues)}",), ordering=tuple(issues))


def _order_problem(spec: Trajectory) -> str:
    return "the order of rounds is wrong" if spec.rounds else "the order is wrong"


def _differences_of_visible_calls(
    spec: Trajectory, assignment: Assignment, view: CallView
) -> CallDifferences:
    closed = spec.forbids_others
    if closed and not columns_saturated(assignment.rows, assignment.counting):
        return _unexpected(assignment, assignment.missing_and_extra()[1])
    differences = _differences_of_listed_calls(spec, assignment, view)
    if differences.problems or spec.match_mode != "strict":
        return differences
    call = first_out_of_place(assignment.rows, assignment.groups, assignment.counting)
    if call is None:
        return NO_DIFFERENCES
    name = assignment.calls[call].name
    issue = f"{name} (call {call + 1}) is not expected after the calls before it"
    return _disordered("the order is wrong", [issue])


def _differences_of_listed_calls(spec: Trajectory, assignment: Assignment, view: CallView) -> CallDifferences:
    """Compare expected calls whose tools are all listed; others may have hidden calls."""
    slots = assignment.slots
    rows = [row for row, slot in enumerate(slots) if view.lists(each.name for each in slot)]
    if not rows:
        return NO_DIFFERENCES
    listed = replace(
        assignment, slots=[slots[row] for row in rows], rows=tuple(assignment.rows[row] for row in rows)
    )
    if spec.is_ordered:
        return _differences_in_order(spec, listed)
    return _missing(listed, listed.missing_and_extra()[0])


def _differences_in_order(spec: Trajectory, assignment: Assignment) -> CallDifferences:
    at = count_in_order(assignment.rows, assignment.groups)
    if at == len(assignment.rows):
        return NO_DIFFERENCES
    missing = _missing(assignment, assignment.missing_and_extra(ordered=True)[0])
    if missing.problems:
        return missing
    late, before = slot_text(assignment.slots[at]), slot_text(assignment.slots[at - 1])
    issue = f"{late} was expected after {before}, but came only before it"
    return _disordered(_order_problem(spec), [issue])


def _differences_of_assigned_calls(spec: Trajectory, assignment: Assignment) -> CallDifferences:
    mode = spec.match_mode
    if mode == "strict" and exactly_in_order(assignment.rows, assignment.groups, assignment.counting):
        return NO_DIFFERENCES
    rows, calls = assignment.missing_and_extra(ordered=spec.is_ordered)
    differences = _missing(assignment, rows)
    if mode == "contains":
        return differences
    extra = _unexpected(assignment, calls)
    differences = replace(extra, problems=differences.problems + extra.problems, missing=differences.missing)
    if mode == "unordered" or differences.problems:
        return differences
    return _disordered(_order_problem(spec), _ordering_issues(assignment))


def _ordering_issues(assignment: Assignment) -> list[str]:
    """List the calls in each message that match no expected call at that position, with the expected call."""
    paired = _mask(assignment.partners(ordered=True))
    issues, begin = [], 0
    for group in assignment.groups:
        mask = group & paired
        calls = list(bits(mask))
        matching = Matching([row & mask for row in assignment.rows[begin : begin + len(calls)]])
        rows = [begin + row for row in range(len(calls)) if not matching.add(row)]
        others = [call for call in calls if not matching.taken >> call & 1]
        issues += [_issue(assignment, row, call) for row, call in zip(rows, others, strict=True)]
        begin += len(calls)
    return issues


def _issue(assignment: Assignment, row: int, call: int) -> str:
    name, wanted = assignment.calls[call].name, slot_name(assignment.slots[row])
    other = " with other arguments" if name == wanted else ""
    return f"call {call + 1} was {name}, expected {wanted}{other}"


def failed_options(assignment: Assignment, facts: CallFacts) -> tuple[str, ...]:
    """Return why calls do not count as an expected call: the option that failed (`nth`, …)."""
    lone = [
        slot[0] for row, slot in enumerate(assignment.slots) if len(slot) == 1 and not assignment.rows[row]
    ]
    return tuple(filter(None, (_failed_option(expected, facts) for expected in lone)))


def _failed_option(expected: ExpectedCall, facts: CallFacts) -> str:
    name = name_text(expected.name)
    if calls := facts.misplaced.get(id(expected)):
        assert expected.nth is not None
        return f"{place_text(expected.nth)}: {name} came as {_call_numbers(calls)}"
    if calls := facts.only_failed(expected):
        if any(facts.calls[call].approval is Approval.PENDING for call in bits(calls)):
            return f"{name} waits for the user's approval ({_call_numbers(calls)})"
        return f"ignore_failed: {name} was answered with an error ({_call_numbers(calls)})"
    return ""


def _call_numbers(calls: int) -> str:
    return ", ".join(f"call {call + 1}" for call in islice(bits(calls), 3))
