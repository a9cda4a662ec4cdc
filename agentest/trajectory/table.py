"""Table of expected calls (rows) and actual calls (columns), and the pairs in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentest.domain.transcript import ToolCall
from agentest.scenarios.trajectory import Slot
from agentest.trajectory.expected_text import slot_name, slot_text
from agentest.trajectory.known_calls import CallKnowledge
from agentest.trajectory.matching import Matching, Partners, best_in_order, bits, maximum_matching, union

Cell = tuple[int, int]
"""Positions of an expected call and an actual call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTable:
    """The actual calls (columns) that match each expected call (rows), with every unknown decided."""

    slots: Sequence[Slot]
    calls: Sequence[ToolCall]
    rows: Sequence[int]
    """For each expected call the calls that match it, as bits."""
    members: Sequence[int]
    """The same with unknowns decided the opposite way, to find calls that are repeated."""
    counting: int
    """The calls that count, as bits; free calls do not."""
    groups: Sequence[int]
    """Groups of calls in any order, as bits (`rounds`)."""
    whys: Mapping[Cell, str]
    """Why it is unknown whether a call matches an expected call."""

    @classmethod
    def of(
        cls, slots: Sequence[Slot], seen: CallKnowledge, *, best: bool, groups: Sequence[int] = ()
    ) -> CallTable:
        """Build the table for these rows.

        Args:
            best: True to decide unknowns in favor of the trajectory, False against it.
            groups: groups of calls; the default depends on `best`.
        """
        known = [seen.cell(slot) for slot in slots]
        return cls(
            slots=slots,
            calls=seen.calls,
            rows=[each.surely(not best) for each in known],
            members=[each.surely(best) for each in known],
            counting=seen.counting(best),
            groups=groups or (seen.coarse if best else seen.fine),
            whys={
                (row, call): seen.why(slots[row], call)
                for row, each in enumerate(known)
                for call in bits(each.maybe)
            },
        )

    def of_rows(self, rows: Sequence[int]) -> CallTable:
        """Return the table of these rows only."""
        return replace(
            self,
            slots=[self.slots[row] for row in rows],
            rows=[self.rows[row] for row in rows],
            members=[self.members[row] for row in rows],
            whys={(rows.index(of), call): why for (of, call), why in self.whys.items() if of in rows},
        )

    @property
    def found(self) -> int:
        """The calls that match any expected call."""
        return union(self.rows)

    def partners(self, *, ordered: bool = False) -> Partners:
        """Return an assignment in which as many expected calls as possible have their own call.

        Among these, it pairs as many calls that count as possible.

        Args:
            ordered: True to pair as many as possible in the expected order.
        """
        begin = best_in_order(self.rows, self.groups, self.counting) if ordered else None
        return begin if begin and None not in begin else self._matching(begin).of_row

    def _matching(self, begin: Partners | None) -> Matching:
        matching = maximum_matching(self.rows, begin)
        if self.counting & ~matching.taken and matching.taken & ~self.counting:
            matching.prefer(self.counting)
        return matching

    def missing_and_extra(self, *, ordered: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return rows without a call, and calls that count without a row, according to `partners`."""
        partners = self.partners(ordered=ordered)
        taken = {each for each in partners if each is not None}
        missing = tuple(row for row, call in enumerate(partners) if call is None)
        return missing, tuple(call for call in bits(self.counting) if call not in taken)

    def beyond_their_own(self) -> tuple[int, ...]:
        """Return calls that count and match an expected call, but have none of their own."""
        wanted = union(self.members) & self.counting
        matching = maximum_matching([row & wanted for row in self.rows])
        return tuple(bits(wanted & ~matching.taken))

    def row_text(self, row: int) -> str:
        """Format an expected call."""
        return slot_text(self.slots[row])

    def row_name(self, row: int) -> str:
        """Return the name of an expected call's tool."""
        return slot_name(self.slots[row])

    def names(self, calls: Sequence[int]) -> tuple[str, ...]:
        """Return the tools of some calls."""
        return tuple(self.calls[call].name for call in calls)
