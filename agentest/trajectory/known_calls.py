"""What is known of the calls that were made: which may be which expected call, and which are free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentest.domain.transcript import ToolCall
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.trajectory import Trajectory
from agentest.trajectory.candidates import Counted, FreeCalls, Known, Listed, Search, Wanted
from agentest.trajectory.matching import bits, coarse_groups, fine_groups, single_groups, union

ROUNDS_UNTOLD = "rounds: the agent does not tell which of its calls came in one message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """All that decides about a trajectory, but for what it makes of it."""

    counted: Counted
    wanted: Mapping[int, Wanted]
    """`id` of an expected or forbidden call → what is known of it."""
    cells: Mapping[int, Known]
    """`id` of an expected call → the calls that meet it."""
    banned: Mapping[int, Known]
    """`id` of a forbidden call → the calls that it is: those that failed, too."""
    elsewhere: Mapping[int, int]
    """`id` of an expected call that says its place → the calls that would meet it there, as bits."""
    free_whys: Mapping[int, str]
    """Call → why it is free, or may be."""
    fine: tuple[int, ...]
    """Groups of calls whose order is free, as bits: as few in one as may be (`rounds`)."""
    coarse: tuple[int, ...]
    """As many in one as may be."""

    @classmethod
    def of(
        cls,
        spec: Trajectory,
        wanted: Iterable[ExpectedCall],
        calls: Sequence[ToolCall],
        *,
        complete: bool = True,
        blind: bool = False,
        listed: Listed = None,
        of_turn: bool = False,
    ) -> Sightings:
        """What is known of these calls, for all that a trajectory expects, forbids and puts in order.

        Args:
            wanted: what it expects and puts in order.
            complete: False: further calls may have followed.
            blind: whether there may have been further calls anywhere, of tools that are not `listed`.
            of_turn: whether they are the calls of one turn.
        """
        free = FreeCalls(spec, calls, of_turn=of_turn)
        search = Search(calls)
        expected = [search.add(each) for each in wanted]
        banned = [search.add(each) for each in spec.forbidden]
        singles = single_groups(len(calls))
        counted = Counted(
            calls=calls, free=free.known, failed=free.failed, complete=complete, blind=blind, listed=listed
        )
        return cls(
            counted=counted,
            wanted=search.found,
            cells={key: counted.met_by(search.found[key]) for key in expected},
            banned={key: _banned(counted, search.found[key]) for key in banned},
            elsewhere={
                key: counted.only_elsewhere(search.found[key])
                for key in expected
                if search.found[key].expected.nth is not None
            },
            free_whys=free.whys,
            fine=fine_groups(calls) if spec.rounds else singles,
            coarse=coarse_groups(calls) if spec.rounds else singles,
        )

    @property
    def calls(self) -> Sequence[ToolCall]:
        return self.counted.calls

    @property
    def free(self) -> Known:
        return self.counted.free

    @property
    def failed(self) -> Known:
        """Calls that were answered with an error, where the trajectory ignores these."""
        return self.counted.failed

    @property
    def certain(self) -> bool:
        """Whether all is known: then it is no question of what a trajectory wants."""
        told = (self.free, self.failed, *self.cells.values(), *self.banned.values())
        return self.fine == self.coarse and not any(each.maybe for each in told)

    @property
    def all(self) -> int:
        """All calls."""
        return (1 << len(self.calls)) - 1

    def counting(self, best: bool) -> int:
        """The calls that count, as few as may be or as many."""
        return self.all & ~(self.free.at_most if best else self.free.yes)

    def cell(self, expected: Sequence[ExpectedCall]) -> Known:
        """The calls that meet any of these."""
        if len(expected) == 1:
            return self.cells[id(expected[0])]
        yes = maybe = 0
        for each in expected:
            known = self.cells[id(each)]
            yes, maybe = yes | known.yes, maybe | known.maybe
        return Known(yes, maybe & ~yes)

    def why(self, expected: Sequence[ExpectedCall], call: int) -> str:
        """Why it is not known whether a call meets any of these; "" where it is."""
        if not self.cell(expected).maybe >> call & 1:
            return ""
        return next(
            self.counted.why(self.wanted[id(each)], call)
            for each in expected
            if self.cells[id(each)].maybe >> call & 1
        )

    def why_banned(self, forbidden: ExpectedCall, call: int) -> str:
        """Why it is not known whether a call is one that is forbidden; "" where it is."""
        if not self.banned[id(forbidden)].maybe >> call & 1:
            return ""
        return self.counted.why(self.wanted[id(forbidden)], call)

    def only_failed(self, expected: ExpectedCall) -> int:
        """The calls that would meet it, had they worked, as bits."""
        return self.counted.only_failed(self.wanted[id(expected)])

    @property
    def open_cells(self) -> tuple[tuple[int, int], ...]:
        """`id` of an expected call and position of a call of which it is not known whether they match."""
        return tuple(
            (key, call)
            for key, wanted in self.wanted.items()
            for call in bits(wanted.anywhere.maybe & self._at_most(key))
        )

    def _at_most(self, key: int) -> int:
        return union([known[key].at_most for known in (self.cells, self.banned) if key in known])

    @property
    def names_untold(self) -> bool:
        """Whether it is not known of which tool some calls are that are counted by their tool."""
        return any(wanted.named.maybe for wanted in self.wanted.values())

    def decided(self, answers: Mapping[object, bool]) -> Sightings:
        """The same with an answer for each of the `open_cells`, and for each call that may be free.

        Raises KeyError where one is missing.
        """
        free, failed = (
            Known(known.yes | sum(answers[call] << call for call in bits(known.maybe)))
            for known in (self.free, self.failed)
        )
        yes = {key: wanted.anywhere.yes for key, wanted in self.wanted.items()}
        for key, call in self.open_cells:
            yes[key] |= answers[key, call] << call
        counted = replace(self.counted, free=free, failed=failed)
        wanted = {key: replace(old, anywhere=Known(yes[key])) for key, old in self.wanted.items()}
        return replace(
            self,
            counted=counted,
            wanted=wanted,
            cells={key: counted.met_by(wanted[key]) for key in self.cells},
            elsewhere={key: counted.only_elsewhere(wanted[key]) for key in self.elsewhere},
            banned={key: _banned(counted, wanted[key]) for key in self.banned},
        )

    @property
    def undecided(self) -> tuple[str, ...]:
        """Why something is not known."""
        whys = [
            self.counted.why(self.wanted[key], call)
            for several in (self.cells, self.banned)
            for key, known in several.items()
            for call in bits(known.maybe)
        ]
        frees = [self.free_whys[call] for call in bits(self.free.maybe)]
        return tuple(dict.fromkeys([*whys, *frees]))

    def undecided_of(self, call: int) -> str:
        """Why something is not known of a call; "" where all is."""
        for several in (self.cells, self.banned):
            for key, known in several.items():
                if known.maybe >> call & 1:
                    return self.counted.why(self.wanted[key], call)
        return self.free_whys[call] if self.free.maybe >> call & 1 else ""


def _banned(counted: Counted, wanted: Wanted) -> Known:
    return counted.at_its_place(wanted, wanted.anywhere)
