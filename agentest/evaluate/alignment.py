"""Expected calls and calls that were made, side by side, by the matching that decides about them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentest.evaluate.call_table import CallTable, expected_text
from agentest.evaluate.differences import alike, difference
from agentest.evaluate.matching import longest_rise
from agentest.results import AlignedRow, RowStatus
from agentest.scenarios.trajectories import Trajectory
from agentest.support.text import shortened

MOST_ROWS = 200
"""Rows that are kept: those with which something is wrong before others."""
_TEXT_CHARS = 300
_MOST_COMPARED = 400
"""Pairs of one tool that are compared for the nearest; beyond that they are taken as they come."""
_MOST_NEAR = 20
"""Allowed calls of one tool among which the nearest to a call is looked for."""
_ORDERED = ("strict", "in_order")
_CLOSED = ("strict", "unordered", "within")
"""The modes in which calls that are not expected must not be made."""


def aligned(
    spec: Trajectory, expected: CallTable | None, banned: CallTable, *, blind: bool = False
) -> tuple[tuple[AlignedRow, ...], int]:
    """The rows of an alignment, and how many more there are.

    Each call and each expected call is in one row. The rows are in the order of the calls that were made; an
    expected call that was not made follows the one before it.

    Args:
        expected: all decided; None: the trajectory says nothing of single calls.
        banned: the forbidden ones, as above.
        blind: whether there may be calls that nobody saw.
    """
    sheet = _Sheet(spec=spec, expected=expected, banned=banned, blind=blind)
    rows = sheet.rows()
    if len(rows) <= MOST_ROWS:
        return rows, 0
    kept = sorted(sorted(range(len(rows)), key=lambda at: (rows[at].status.holds, at))[:MOST_ROWS])
    return tuple(rows[at] for at in kept), len(rows) - len(kept)


def is_ordered(mode: str) -> bool:
    """Whether a mode asks for an order."""
    return mode in _ORDERED


@dataclass(slots=True, kw_only=True)
class _Sheet:
    spec: Trajectory
    expected: CallTable | None
    banned: CallTable
    blind: bool
    of_call: dict[int, int] = field(default_factory=dict)
    """Call → the expected call beside it."""
    late: set[int] = field(default_factory=set)
    """Calls that are as expected, but at another place."""
    raised: dict[int, str] = field(default_factory=dict)
    """Expected call → why it could not be told whether a call is it."""
    different: set[int] = field(default_factory=set)
    """Calls that are not as expected, beside one that is missing."""

    def rows(self) -> tuple[AlignedRow, ...]:
        if self.expected:
            self.raised = {wanted: why for (wanted, _), why in self.expected.whys.items()}
            self._pair(self.expected)
            self._pair_different(self.expected)
        over = _over_limits(self.spec, self.banned)
        found = [
            self._forbidden(call, _limited(self._row(call), over.get(call, "")))
            for call in range(len(self.banned.calls))
        ]
        return tuple(self._with_missing(found))

    def _pair(self, table: CallTable) -> None:
        """Pair by the assignment of the verdict; an order that calls we did not see may mend is none."""
        ordered = is_ordered(self.spec.match_mode)
        pairs = [
            (wanted, call) for wanted, call in enumerate(table.partners(ordered=ordered)) if call is not None
        ]
        rise = longest_rise([call for _, call in pairs]) if ordered else set(range(len(pairs)))
        late = {pairs[at][1] for at in range(len(pairs)) if at not in rise}
        undone = late if self.blind and self.spec.match_mode == "in_order" else set()
        self.of_call = {call: wanted for wanted, call in pairs if call not in undone}
        self.late = late - undone

    def _pair_different(self, table: CallTable) -> None:
        """Put calls beside missing ones of the same tool, the nearest first."""
        if self.blind and self.spec.match_mode not in _CLOSED:
            return
        within = self.spec.match_mode == "within"
        allowed = table.columns() if within else []
        by_tool: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        paired = set(self.of_call.values())
        for wanted, each in enumerate(table.expected):
            if wanted not in paired:
                by_tool[str(each.name)][0].append(wanted)
        for call, made in enumerate(table.calls):
            if call not in self.of_call and not (within and allowed[call]):
                by_tool[made.name][1].append(call)
        for missing, others in by_tool.values():
            for wanted, call in _nearest(table, missing, others):
                self.of_call[call] = wanted
                self.different.add(call)

    def _row(self, call: int) -> AlignedRow:
        wanted = self.of_call.get(call)
        if self.expected is None or wanted is None:
            return self._alone(call)
        row = AlignedRow(
            expected=shortened(expected_text(self.expected.expected[wanted]), _TEXT_CHARS),
            call=call,
            status=RowStatus.MATCHED,
        )
        why = self.expected.whys.get((wanted, call), "")
        if call in self.different:
            words = why or difference(self.expected.expected[wanted], self.expected.calls[call])
            return replace(row, status=RowStatus.DIFFERENT, difference=words)
        if call in self.late:
            place = f"expected as number {wanted + 1}, made as call {call + 1}"
            return replace(row, status=RowStatus.OUT_OF_ORDER, difference=place)
        return replace(row, status=RowStatus.UNKNOWN, difference=why) if why else row

    def _alone(self, call: int) -> AlignedRow:
        """A call that stands beside none."""
        row = AlignedRow(expected=None, call=call, status=RowStatus.FREE)
        if self.expected is None or self.spec.match_mode not in _CLOSED:
            return row
        if self.spec.match_mode != "within":
            return replace(row, status=RowStatus.EXTRA)
        hit, why = _found(self.expected, call)
        if hit:
            return replace(row, status=RowStatus.UNKNOWN, difference=why) if why else row
        return replace(row, status=RowStatus.EXTRA, difference=why or self._nearest_difference(call))

    def _nearest_difference(self, call: int) -> str:
        """How the call differs from what is allowed of its tool."""
        table = self.expected
        mine = [each for each in table.expected if each.name == table.calls[call].name] if table else []
        if table is None or not mine:
            return ""
        made = table.calls[call]
        return difference(max(mine[:_MOST_NEAR], key=lambda each: alike(each, made)), made)

    def _forbidden(self, call: int, row: AlignedRow) -> AlignedRow:
        hit, why = _found(self.banned, call)
        if not hit and not why:
            return row
        if why:
            return replace(row, status=RowStatus.UNKNOWN, difference=f"may be forbidden: {why}")
        banned = next(self.banned.expected[i] for i, line in enumerate(self.banned.matches) if line[call])
        words = f"forbidden: {expected_text(banned)}"
        return replace(row, status=RowStatus.FORBIDDEN, difference=words)

    def _with_missing(self, found: Sequence[AlignedRow]) -> Iterator[AlignedRow]:
        """The rows of calls, and between them what was expected and not made, after what it should follow."""
        count = len(self.expected.expected) if self.expected else 0
        made = set(self.of_call.values())

        def following(wanted: int) -> Iterator[AlignedRow]:
            while wanted < count and wanted not in made:
                yield self._missing(wanted)
                wanted += 1

        yield from following(0)
        for row in found:
            yield replace(row, difference=shortened(row.difference, _TEXT_CHARS))
            if row.call in self.of_call:
                yield from following(self.of_call[row.call] + 1)

    def _missing(self, wanted: int) -> AlignedRow:
        table = self.expected
        assert table
        row = AlignedRow(
            expected=shortened(expected_text(table.expected[wanted]), _TEXT_CHARS),
            call=None,
            status=RowStatus.MISSING,
            difference=shortened(self.raised.get(wanted, ""), _TEXT_CHARS),
        )
        if self.spec.match_mode == "within":
            return replace(row, status=RowStatus.FREE, difference="")
        return replace(row, status=RowStatus.UNKNOWN, difference="not seen") if self.blind else row


def _found(table: CallTable, call: int) -> tuple[bool, str]:
    """Whether a call is any of a table's, and why that is not certain."""
    lines = [at for at, line in enumerate(table.matches) if line[call]]
    whys = [table.whys[at, call] for at in range(len(table.expected)) if (at, call) in table.whys]
    certain = any((at, call) not in table.whys for at in lines)
    return bool(lines), "" if certain or not whys else whys[0]


def _nearest(table: CallTable, missing: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of expected calls and calls of one tool, those with most in common first."""
    if len(missing) * len(others) > _MOST_COMPARED:
        yield from zip(missing, others, strict=False)
        return
    pairs = sorted(
        (-alike(table.expected[wanted], table.calls[call]), wanted, call)
        for wanted in missing
        for call in others
    )
    taken: set[tuple[str, int]] = set()
    for _, wanted, call in pairs:
        if not {("wanted", wanted), ("call", call)} & taken:
            taken |= {("wanted", wanted), ("call", call)}
            yield wanted, call


def _over_limits(spec: Trajectory, table: CallTable) -> dict[int, str]:
    """Call → the limit that it exceeds, in words."""
    over: dict[int, str] = {}
    made: Counter[str] = Counter()
    for call, each in enumerate(table.calls):
        made[each.name] += 1
        limits = spec.max_calls_per_tool
        limit = limits.get(each.name) if isinstance(limits, Mapping) else limits
        if limit is not None and made[each.name] > limit:
            over[call] = f"call {made[each.name]} of {each.name}, at most {limit} are allowed"
        elif spec.max_calls is not None and call >= spec.max_calls:
            over[call] = f"call {call + 1}, at most {spec.max_calls} are allowed"
    return over


def _limited(row: AlignedRow, limit: str) -> AlignedRow:
    if not limit:
        return row
    words = "; ".join(filter(None, (row.difference, limit)))
    return replace(row, status=RowStatus.EXTRA if row.status.holds else row.status, difference=words)
