"""Assess calls against a trajectory: what is missing, extra or out of order, by the nearest path.

A trajectory with alternatives has several paths. What is unknown about a call is decided for or against the
trajectory (`best`), or tried in all combinations (`whatever_is_so`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product

from agentest.domain.tool_visibility import Approval
from agentest.scenarios.calls import ExpectedCall, name_text
from agentest.scenarios.trajectory import Path, Trajectory
from agentest.trajectory.candidates import VisibleTools, are_always_visible, is_closed
from agentest.trajectory.expected_text import place_text
from agentest.trajectory.known_calls import CallKnowledge
from agentest.trajectory.limits import LimitFindings, check_limits
from agentest.trajectory.matching import (
    Matching,
    bits,
    columns_saturated,
    count_in_order,
    exactly_in_order,
    first_out_of_place,
)
from agentest.trajectory.table import CallTable

_ORDERED = ("strict", "in_order")
_MOST_NEAR = 20
"""Number of paths among which the nearest is searched; fewer if they are long."""
_MOST_COMPARED = 400_000
"""Pairs of expected and actual calls to compare in this search."""
_MOST_COMBINATIONS = 64
_MOST_CELLS = 400_000
"""Pairs of expected and actual calls to compare in all combinations of answers together."""


@dataclass(frozen=True, slots=True)
class CallFindings:
    """Violations of the expected calls; none if `problems` is empty."""

    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of violations; the path with the fewest is the nearest."""
        return len(self.missing) + len(self.extra) + len(self.ordering)


NO_FINDINGS = CallFindings()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryQuestion:
    """A trajectory with the conditions under which it is assessed."""

    spec: Trajectory
    paths: tuple[Path, ...] | None
    """The alternative sequences of expected calls; None: no calls are expected."""
    turns: int
    complete: bool
    blind: bool
    """True if there may be hidden calls of tools that are not `listed`."""
    listed: VisibleTools = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The assessment of the calls by the nearest path."""

    table: CallTable | None
    found: CallFindings
    bounds: LimitFindings
    hints: tuple[str, ...] = ()
    """Options that prevent calls from matching missing expected calls."""

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.found.problems, *self.hints, *self.bounds.problems)

    @property
    def holds(self) -> bool:
        return not self.problems


def assess(
    question: TrajectoryQuestion, seen: CallKnowledge, *, best: bool, groups: Sequence[int] = ()
) -> Assessment:
    """Assess the calls.

    Each requirement is assessed separately. With `best`, unknowns are decided in favor of the requirement, so
    that a failure is certain; without it, they are decided against it, so that a pass is certain.
    """
    table, found = _nearest_path(question, seen, best=best, groups=groups)
    bounds = check_limits(
        question.spec,
        seen,
        question.turns,
        best=best,
        some=not question.complete,
        blind=question.blind,
        listed=question.listed,
    )
    hints = options_missed(table, seen) if table and found.problems else ()
    return Assessment(table=table, found=found, bounds=bounds, hints=hints)


def _nearest_path(
    question: TrajectoryQuestion, seen: CallKnowledge, *, best: bool, groups: Sequence[int]
) -> tuple[CallTable | None, CallFindings]:
    """Return the first path that holds, else the one with the fewest violations."""
    if question.paths is None:
        return None, NO_FINDINGS
    wrong: list[tuple[int, int, CallTable]] = []
    compared = partial(compare_visible_calls, listed=question.listed) if question.blind else compare_calls
    for at, path in enumerate(question.paths):
        table = CallTable.of(path, seen, best=best, groups=groups)
        least = 0 if question.blind else min_violations(question.spec, table)
        able = question.blind or (not least and may_hold(question.spec, table))
        if able and not (found := compared(question.spec, table)).problems:
            return table, found
        wrong.append((least, at, table))
    looks = 1 + len(seen.calls) * max(map(len, question.paths), default=0)
    most = max(1, min(_MOST_NEAR, _MOST_COMPARED // looks))
    near = sorted(wrong, key=lambda each: each[:2])[:most]
    pairs = [(table, compared(question.spec, table)) for _, _, table in near]
    return min(pairs, key=lambda pair: pair[1].size)


def assess_all_cases(question: TrajectoryQuestion, seen: CallKnowledge) -> Assessment | None:
    """Return the assessment if all combinations of unknowns agree, else None.

    Requirements may need opposite answers, and one path may hold where another does not, so no single
    combination is the best. If few things are unknown, all combinations are tried.
    """
    found: Assessment | None = None
    for world in _combinations(seen, question):
        best = assess(question, world, best=True)
        if found and best.holds is not found.holds:
            return None
        if best.holds and not assess(question, world, best=False).holds:
            return None
        found = best if found is None or len(best.problems) < len(found.problems) else found
    return found


def _combinations(seen: CallKnowledge, question: TrajectoryQuestion) -> Iterator[CallKnowledge]:
    """Yield all combinations of answers to the unknowns, if there are few."""
    unknown = [*seen.open_cells, *bits(seen.free.maybe | seen.failed.maybe)]
    worlds = 1 << min(len(unknown), 30)
    looks = worlds * sum(map(len, question.paths or ())) * len(seen.calls)
    if worlds > _MOST_COMBINATIONS or looks > _MOST_CELLS or seen.names_untold:
        return
    for answers in product((True, False), repeat=len(unknown)):
        yield seen.decided(dict(zip(unknown, answers, strict=True)))


def is_ordered(mode: str) -> bool:
    """Return True if the mode requires an order."""
    return mode in _ORDERED


def min_violations(spec: Trajectory, table: CallTable) -> int:
    """Return a lower bound for the number of violations, without matching."""
    missing = 0 if spec.match_mode == "within" else sum(not row for row in table.rows)
    extra = (table.counting & ~table.found).bit_count() if is_closed(spec.match_mode) else 0
    return missing + extra


def may_hold(spec: Trajectory, table: CallTable) -> bool:
    """Return False if the order is wrong, by a cheap test, because there may be many paths."""
    if spec.match_mode == "strict":
        return exactly_in_order(table.rows, table.groups, table.counting)
    return spec.match_mode != "in_order" or count_in_order(table.rows, table.groups) == len(table.rows)


def compare_calls(spec: Trajectory, table: CallTable) -> CallFindings:
    """Return the violations if all calls are visible."""
    mode = spec.match_mode
    if mode == "within":
        return _within_findings(spec, table)
    found = _in_order_findings(spec, table) if mode == "in_order" else _assigned_findings(spec, table)
    return _with_repeated_calls(spec, table, found)


def compare_visible_calls(spec: Trajectory, table: CallTable, listed: VisibleTools) -> CallFindings:
    """Return the violations that remain whatever hidden calls of tools that are not `listed` were made."""
    mode = spec.match_mode
    if mode == "within":
        return _within_findings(spec, table)
    if is_closed(mode) and not columns_saturated(table.rows, table.counting):
        _, extra = table.missing_and_extra()
        return _unexpected(table, extra)
    found = _listed_findings(spec, table, listed)
    if found.problems or not is_closed(mode):
        return _with_repeated_calls(spec, table, found)
    return _order_findings(table) if mode == "strict" else NO_FINDINGS


def _listed_findings(spec: Trajectory, table: CallTable, listed: VisibleTools) -> CallFindings:
    """Return the violations of expected calls whose tools are all listed; others may have hidden calls."""
    rows = [
        row
        for row, slot in enumerate(table.slots)
        if are_always_visible((each.name for each in slot), listed)
    ]
    if not rows:
        return NO_FINDINGS
    seen = table.of_rows(rows)
    if is_ordered(spec.match_mode):
        return _in_order_findings(spec, seen)
    missing, problems = _missing(seen, seen.missing_and_extra()[0])
    return CallFindings(problems, missing)


def _unexpected(table: CallTable, calls: Sequence[int]) -> CallFindings:
    names = table.names(calls)
    return CallFindings(("unexpected calls were made: " + ", ".join(names),), extra=names)


def _order_findings(table: CallTable) -> CallFindings:
    """Find the first call that has no place among the expected calls after the calls before it."""
    call = first_out_of_place(table.rows, table.groups, table.counting)
    if call is None:
        return NO_FINDINGS
    issue = f"{table.calls[call].name} (call {call + 1}) is not expected after the calls before it"
    return CallFindings((f"the order is wrong: {issue}",), ordering=(issue,))


def _within_findings(spec: Trajectory, table: CallTable) -> CallFindings:
    extra = table.names(tuple(bits(table.counting & ~table.found)))
    problems = ("calls beyond the allowed ones: " + ", ".join(extra),) if extra else ()
    return _with_repeated_calls(spec, table, CallFindings(problems, extra=extra))


def _with_repeated_calls(spec: Trajectory, table: CallTable, found: CallFindings) -> CallFindings:
    """Add the calls that were made more often than expected (`at_most_once`)."""
    again = table.names(table.beyond_their_own()) if spec.at_most_once else ()
    if not again or spec.match_mode in ("strict", "unordered"):  # these modes report them as extra calls
        return found
    problem = "at_most_once: calls were made more often than they are expected: " + ", ".join(again)
    return replace(found, problems=(*found.problems, problem), extra=(*found.extra, *again))


def _missing(table: CallTable, rows: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of missing calls, and the problem."""
    names = tuple(map(table.row_name, rows))
    return names, ("expected calls are missing: " + ", ".join(names),) if names else ()


def _in_order_findings(spec: Trajectory, table: CallTable) -> CallFindings:
    at = count_in_order(table.rows, table.groups)
    if at == len(table.rows):
        return NO_FINDINGS
    rows, _ = table.missing_and_extra(ordered=True)
    missing, problems = _missing(table, rows)
    if missing:
        return CallFindings(problems, missing)
    issue = f"{table.row_text(at)} was expected after {table.row_text(at - 1)}, but came only before it"
    return CallFindings((f"{_order_problem(spec)}: {issue}",), ordering=(issue,))


def _order_problem(spec: Trajectory) -> str:
    return "the order of rounds is wrong" if spec.rounds else "the order is wrong"


def _assigned_findings(spec: Trajectory, table: CallTable) -> CallFindings:
    mode = spec.match_mode
    if mode == "strict" and exactly_in_order(table.rows, table.groups, table.counting):
        return NO_FINDINGS
    rows, calls = table.missing_and_extra(ordered=is_ordered(mode))
    missing, problems = _missing(table, rows)
    if mode == "contains":
        return CallFindings(problems, missing)
    extra = table.names(calls)
    problems += _unexpected(table, calls).problems if extra else ()
    ordering = () if mode == "unordered" or problems else _ordering_issues(table)
    if ordering:
        problems += (f"{_order_problem(spec)}: {', '.join(ordering)}",)
    return CallFindings(problems, missing, extra, ordering)


def _ordering_issues(table: CallTable) -> tuple[str, ...]:
    """List calls in the wrong order, each with the expected call of its position."""
    taken = {call for call in table.partners(ordered=True) if call is not None}
    issues, at = [], 0
    for group in table.groups:
        calls = [call for call in bits(group) if call in taken]
        block = range(at, at + len(calls))
        issues += _misplaced_issues(table, block, calls)
        at += len(calls)
    return tuple(issues)


def _misplaced_issues(table: CallTable, block: range, calls: Sequence[int]) -> list[str]:
    """Return issues for the calls in one message that match no expected call at that position."""
    mask = sum(1 << call for call in calls)
    matching = Matching([table.rows[row] & mask for row in block])
    rows = [row for row in block if not matching.add(row - block.start)]
    others = [call for call in calls if not matching.taken >> call & 1]
    return [_issue(table, row, call) for row, call in zip(rows, others, strict=True)]


def _issue(table: CallTable, row: int, call: int) -> str:
    name, wanted = table.calls[call].name, table.row_name(row)
    other = " with other arguments" if name == wanted else ""
    return f"call {call + 1} was {name}, expected {wanted}{other}"


def options_missed(table: CallTable, seen: CallKnowledge) -> tuple[str, ...]:
    """Return why calls do not count as an expected call: the option that failed (`nth`, …)."""
    return tuple(
        words
        for row, slot in enumerate(table.slots)
        if len(slot) == 1 and not table.rows[row] and (words := _option_missed(slot[0], seen))
    )


def _option_missed(wanted: ExpectedCall, seen: CallKnowledge) -> str:
    name = name_text(wanted.name)
    if calls := seen.elsewhere.get(id(wanted)):
        assert wanted.nth is not None
        return f"{place_text(wanted.nth)}: {name} came as {_call_numbers(calls)}"
    if calls := seen.only_failed(wanted):
        if any(seen.calls[call].approval is Approval.PENDING for call in bits(calls)):
            return f"{name} waits for the user's approval ({_call_numbers(calls)})"
        return f"ignore_failed: {name} was answered with an error ({_call_numbers(calls)})"
    return ""


def _call_numbers(calls: int) -> str:
    return ", ".join(f"call {call + 1}" for call in islice(bits(calls), 3))
