"""Calls held against a trajectory, with an answer for all that is not known of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product

from agentest.domain.tool_visibility import Approval
from agentest.scenarios.calls import ExpectedCall, name_text
from agentest.scenarios.trajectory import Path, Trajectory
from agentest.trajectory.candidates import Listed, all_listed, is_closed
from agentest.trajectory.expected_text import place_text
from agentest.trajectory.known_calls import Sightings
from agentest.trajectory.limits import Bounds, broken_bounds
from agentest.trajectory.matching import (
    Matching,
    bits,
    columns_saturated,
    done_in_order,
    exactly_in_order,
    first_without_place,
)
from agentest.trajectory.table import CallTable

_ORDERED = ("strict", "in_order")


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong with the calls that are expected; nothing where there are no `problems`."""

    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How much is wrong: the path of which least is wrong is the nearest."""
        return len(self.missing) + len(self.extra) + len(self.ordering)


FINE = Findings()


def is_ordered(mode: str) -> bool:
    """Whether a mode asks for an order."""
    return mode in _ORDERED


def surely_wrong(spec: Trajectory, table: CallTable) -> int:
    """How much is wrong at least, as can be seen at once."""
    missing = 0 if spec.match_mode == "within" else sum(not row for row in table.rows)
    extra = (table.counting & ~table.found).bit_count() if is_closed(spec.match_mode) else 0
    return missing + extra


def may_hold(spec: Trajectory, table: CallTable) -> bool:
    """False where the order is wrong, as can be seen without finding out how: there may be many paths."""
    if spec.match_mode == "strict":
        return exactly_in_order(table.rows, table.groups, table.counting)
    return spec.match_mode != "in_order" or done_in_order(table.rows, table.groups) == len(table.rows)


def compare(spec: Trajectory, table: CallTable) -> Findings:
    """What is wrong with all calls that were made."""
    mode = spec.match_mode
    if mode == "within":
        return _within(spec, table)
    found = _in_order(spec, table) if mode == "in_order" else _assigned(spec, table)
    return _made_again(spec, table, found)


def compare_some(spec: Trajectory, table: CallTable, listed: Listed) -> Findings:
    """What is wrong with some of the calls, whichever there were besides of tools that are not `listed`."""
    mode = spec.match_mode
    if mode == "within":
        return _within(spec, table)
    if is_closed(mode) and not columns_saturated(table.rows, table.counting):
        _, extra = table.missing_and_extra()
        return _unexpected(table, extra)
    found = _missing_of_listed(spec, table, listed)
    if found.problems or not is_closed(mode):
        return _made_again(spec, table, found)
    return _out_of_order(table) if mode == "strict" else FINE


def _missing_of_listed(spec: Trajectory, table: CallTable, listed: Listed) -> Findings:
    """What is wrong with the expected calls that would have been seen: the others may have been made."""
    rows = [row for row, slot in enumerate(table.slots) if all_listed((each.name for each in slot), listed)]
    if not rows:
        return FINE
    seen = table.of_rows(rows)
    if is_ordered(spec.match_mode):
        return _in_order(spec, seen)
    missing, problems = _missing(seen, seen.missing_and_extra()[0])
    return Findings(problems, missing)


def _unexpected(table: CallTable, calls: Sequence[int]) -> Findings:
    names = table.names(calls)
    return Findings(("unexpected calls were made: " + ", ".join(names),), extra=names)


def _out_of_order(table: CallTable) -> Findings:
    """The first call that has no place among the expected ones after the call before it."""
    call = first_without_place(table.rows, table.groups, table.counting)
    if call is None:
        return FINE
    issue = f"{table.calls[call].name} (call {call + 1}) is not expected after the calls before it"
    return Findings((f"the order is wrong: {issue}",), ordering=(issue,))


def _within(spec: Trajectory, table: CallTable) -> Findings:
    extra = table.names(tuple(bits(table.counting & ~table.found)))
    problems = ("calls beyond the allowed ones: " + ", ".join(extra),) if extra else ()
    return _made_again(spec, table, Findings(problems, extra=extra))


def _made_again(spec: Trajectory, table: CallTable, found: Findings) -> Findings:
    """With the calls that were made more often than they are expected (`at_most_once`)."""
    again = table.names(table.beyond_their_own()) if spec.at_most_once else ()
    if not again or spec.match_mode in ("strict", "unordered"):  # there they are extra calls anyhow
        return found
    problem = "at_most_once: calls were made more often than they are expected: " + ", ".join(again)
    return replace(found, problems=(*found.problems, problem), extra=(*found.extra, *again))


def _missing(table: CallTable, rows: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of missing calls, and the problem."""
    names = tuple(map(table.row_name, rows))
    return names, ("expected calls are missing: " + ", ".join(names),) if names else ()


def _in_order(spec: Trajectory, table: CallTable) -> Findings:
    at = done_in_order(table.rows, table.groups)
    if at == len(table.rows):
        return FINE
    rows, _ = table.missing_and_extra(ordered=True)
    missing, problems = _missing(table, rows)
    if missing:
        return Findings(problems, missing)
    issue = f"{table.row_text(at)} was expected after {table.row_text(at - 1)}, but came only before it"
    return Findings((f"{_order(spec)}: {issue}",), ordering=(issue,))


def _order(spec: Trajectory) -> str:
    return "the order of rounds is wrong" if spec.rounds else "the order is wrong"


def _assigned(spec: Trajectory, table: CallTable) -> Findings:
    mode = spec.match_mode
    if mode == "strict" and exactly_in_order(table.rows, table.groups, table.counting):
        return FINE
    rows, calls = table.missing_and_extra(ordered=is_ordered(mode))
    missing, problems = _missing(table, rows)
    if mode == "contains":
        return Findings(problems, missing)
    extra = table.names(calls)
    problems += _unexpected(table, calls).problems if extra else ()
    ordering = () if mode == "unordered" or problems else _ordering(table)
    if ordering:
        problems += (f"{_order(spec)}: {', '.join(ordering)}",)
    return Findings(problems, missing, extra, ordering)


def _ordering(table: CallTable) -> tuple[str, ...]:
    """Where the right calls came in the wrong order: each beside the expected call of its place."""
    taken = {call for call in table.partners(ordered=True) if call is not None}
    issues, at = [], 0
    for group in table.groups:
        calls = [call for call in bits(group) if call in taken]
        block = range(at, at + len(calls))
        issues += _misplaced(table, block, calls)
        at += len(calls)
    return tuple(issues)


def _misplaced(table: CallTable, block: range, calls: Sequence[int]) -> list[str]:
    """Of the calls of one message those that none of the expected calls of its place is."""
    mask = sum(1 << call for call in calls)
    matching = Matching([table.rows[row] & mask for row in block])
    rows = [row for row in block if not matching.add(row - block.start)]
    others = [call for call in calls if not matching.taken >> call & 1]
    return [_issue(table, row, call) for row, call in zip(rows, others, strict=True)]


def _issue(table: CallTable, row: int, call: int) -> str:
    name, wanted = table.calls[call].name, table.row_name(row)
    other = " with other arguments" if name == wanted else ""
    return f"call {call + 1} was {name}, expected {wanted}{other}"


def words_missed(table: CallTable, seen: Sightings) -> tuple[str, ...]:
    """Of expected calls that were made and do not count as such, why: which word broke (`nth`, …)."""
    return tuple(
        words
        for row, slot in enumerate(table.slots)
        if len(slot) == 1 and not table.rows[row] and (words := _word_missed(slot[0], seen))
    )


def _word_missed(wanted: ExpectedCall, seen: Sightings) -> str:
    name = name_text(wanted.name)
    if calls := seen.elsewhere.get(id(wanted)):
        assert wanted.nth is not None
        return f"{place_text(wanted.nth)}: {name} came as {_numbered(calls)}"
    if calls := seen.only_failed(wanted):
        if any(seen.calls[call].approval is Approval.PENDING for call in bits(calls)):
            return f"{name} waits for the user's approval ({_numbered(calls)})"
        return f"ignore_failed: {name} was answered with an error ({_numbered(calls)})"
    return ""


def _numbered(calls: int) -> str:
    return ", ".join(f"call {call + 1}" for call in islice(bits(calls), 3))


_MOST_NEAR = 20
"""Paths among which the nearest is looked for, of those that may be near; fewer where they are long."""
_MOST_LOOKED_AT = 400_000
"""Pairs of expected calls and calls that are looked at for it."""
_MOST_WORLDS = 64
_MOST_CELLS = 400_000
"""Pairs of expected calls and calls that are looked at in all worlds together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the calls."""

    spec: Trajectory
    paths: tuple[Path, ...] | None
    """The ways to make the expected calls; None: it says nothing of single calls."""
    turns: int
    complete: bool
    blind: bool
    """Whether there may have been further calls, of tools that are not `listed`."""
    listed: Listed = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found of the calls, by the path that is nearest to them."""

    table: CallTable | None
    found: Findings
    bounds: Bounds
    hints: tuple[str, ...] = ()
    """Which word keeps calls from being the expected ones that are missing."""

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.found.problems, *self.hints, *self.bounds.problems)

    @property
    def holds(self) -> bool:
        return not self.problems


def judged(question: Question, seen: Sightings, *, best: bool, groups: Sequence[int] = ()) -> Judged:
    """What is wrong with the calls.

    Each demand is judged for itself: with `best`, what is not known is taken for what that demand wants, so
    that what fails fails whatever is not known; without it for the opposite, so that what holds holds.
    """
    table, found = _nearest(question, seen, best=best, groups=groups)
    bounds = broken_bounds(
        question.spec,
        seen,
        question.turns,
        best=best,
        some=not question.complete,
        blind=question.blind,
        listed=question.listed,
    )
    hints = words_missed(table, seen) if table and found.problems else ()
    return Judged(table=table, found=found, bounds=bounds, hints=hints)


def _nearest(
    question: Question, seen: Sightings, *, best: bool, groups: Sequence[int]
) -> tuple[CallTable | None, Findings]:
    """The first path that holds, else the one of which least is wrong."""
    if question.paths is None:
        return None, FINE
    wrong: list[tuple[int, int, CallTable]] = []
    compared = partial(compare_some, listed=question.listed) if question.blind else compare
    for at, path in enumerate(question.paths):
        table = CallTable.of(path, seen, best=best, groups=groups)
        least = 0 if question.blind else surely_wrong(question.spec, table)
        able = question.blind or (not least and may_hold(question.spec, table))
        if able and not (found := compared(question.spec, table)).problems:
            return table, found
        wrong.append((least, at, table))
    looks = 1 + len(seen.calls) * max(map(len, question.paths), default=0)
    most = max(1, min(_MOST_NEAR, _MOST_LOOKED_AT // looks))
    near = sorted(wrong, key=lambda each: each[:2])[:most]
    pairs = [(table, compared(question.spec, table)) for _, _, table in near]
    return min(pairs, key=lambda pair: pair[1].size)


def whatever_is_so(question: Question, seen: Sightings) -> Judged | None:
    """What is found in every case that may be, where that is the same: all fail, or all hold; else None.

    Demands may want opposite answers, and one path may do where another does not: then no single answer is
    the best. Where few things are not known, all answers are tried.
    """
    found: Judged | None = None
    for world in _worlds(seen, question):
        best = judged(question, world, best=True)
        if found and best.holds is not found.holds:
            return None
        if best.holds and not judged(question, world, best=False).holds:
            return None
        found = best if found is None or len(best.problems) < len(found.problems) else found
    return found


def _worlds(seen: Sightings, question: Question) -> Iterator[Sightings]:
    """What may be so, where it is little."""
    unknown = [*seen.open_cells, *bits(seen.free.maybe | seen.failed.maybe)]
    worlds = 1 << min(len(unknown), 30)
    looks = worlds * sum(map(len, question.paths or ())) * len(seen.calls)
    if worlds > _MOST_WORLDS or looks > _MOST_CELLS or seen.names_untold:
        return
    for answers in product((True, False), repeat=len(unknown)):
        yield seen.decided(dict(zip(unknown, answers, strict=True)))
