"""Which calls are which expected calls, and which of them are paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentest.domain.transcript import ToolCall
from agentest.scenarios.trajectory import Slot
from agentest.trajectory.expected_text import slot_name, slot_text
from agentest.trajectory.known_calls import Sightings
from agentest.trajectory.matching import Matching, Partners, best_in_order, bits, maximum_matching, union

Cell = tuple[int, int]
"""Position of an expected call and of a call that was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTable:
    """Which calls made (columns) are which expected calls (rows), with an answer for what is not known."""

    slots: Sequence[Slot]
    calls: Sequence[ToolCall]
    rows: Sequence[int]
    """For each expected call the calls that it may be, as bits."""
    members: Sequence[int]
    """The same, where a call that is among the expected is one too many."""
    counting: int
    """The calls that count, as bits: not the free ones."""
    groups: Sequence[int]
    """Calls whose order is free, as bits (`rounds`)."""
    whys: Mapping[Cell, str]
    """Why it is not known whether a call is the expected one, where that is so."""

    @classmethod
    def of(
        cls, slots: Sequence[Slot], seen: Sightings, *, best: bool, groups: Sequence[int] = ()
    ) -> CallTable:
        """A table of these rows.

        Args:
            best: what is not known is taken for what the trajectory wants; else for the opposite.
            groups: the default is those for `best`.
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
        """The table of these rows alone."""
        return replace(
            self,
            slots=[self.slots[row] for row in rows],
            rows=[self.rows[row] for row in rows],
            members=[self.members[row] for row in rows],
            whys={(rows.index(of), call): why for (of, call), why in self.whys.items() if of in rows},
        )

    @property
    def found(self) -> int:
        """The calls that are any of those expected."""
        return union(self.rows)

    def partners(self, *, ordered: bool = False) -> Partners:
        """The best assignment there is: as many expected calls as can have a call of their own.

        Of these, one in which as many calls that count as can be are some expected call.

        Args:
            ordered: whether as many as possible are in the order in which they are expected.
        """
        begin = best_in_order(self.rows, self.groups, self.counting) if ordered else None
        return begin if begin and None not in begin else self._matching(begin).of_row

    def _matching(self, begin: Partners | None) -> Matching:
        matching = maximum_matching(self.rows, begin)
        if self.counting & ~matching.taken and matching.taken & ~self.counting:
            matching.prefer(self.counting)
        return matching

    def missing_and_extra(self, *, ordered: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows without a call, and calls that count without a row, by the `partners`."""
        partners = self.partners(ordered=ordered)
        taken = {each for each in partners if each is not None}
        missing = tuple(row for row, call in enumerate(partners) if call is None)
        return missing, tuple(call for call in bits(self.counting) if call not in taken)

    def beyond_their_own(self) -> tuple[int, ...]:
        """The calls that count and are among the expected, but find no expected call of their own."""
        wanted = union(self.members) & self.counting
        matching = maximum_matching([row & wanted for row in self.rows])
        return tuple(bits(wanted & ~matching.taken))

    def row_text(self, row: int) -> str:
        """An expected call as it is shown."""
        return slot_text(self.slots[row])

    def row_name(self, row: int) -> str:
        """The name of its tool."""
        return slot_name(self.slots[row])

    def names(self, calls: Sequence[int]) -> tuple[str, ...]:
        """The tools of some calls."""
        return tuple(self.calls[call].name for call in calls)
