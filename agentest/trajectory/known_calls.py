"""Collect everything known about the actual calls: which match which expected call, and which are free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentest.domain.transcript import ToolCall
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.trajectory import Trajectory
from agentest.trajectory.candidates import (
    CandidateCalls,
    CandidateSearch,
    CountedCalls,
    FreeCalls,
    KnownCalls,
    VisibleTools,
)
from agentest.trajectory.matching import bits, coarse_groups, fine_groups, single_groups, union

ROUNDS_NOT_REPORTED = "rounds: the agent does not tell which of its calls came in one message"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKnowledge:
    """Everything known about the calls that decides a trajectory."""

    counted: CountedCalls
    wanted: Mapping[int, CandidateCalls]
    """`id` of an expected or forbidden call → the calls that match it."""
    cells: Mapping[int, KnownCalls]
    """`id` of an expected call → the calls that meet it."""
    banned: Mapping[int, KnownCalls]
    """`id` of a forbidden call → the calls that match it, including failed ones."""
    elsewhere: Mapping[int, int]
    """`id` of an expected call with a place → the calls that would match in another place, as bits."""
    free_whys: Mapping[int, str]
    """Call → why it is free, or may be."""
    fine: tuple[int, ...]
    """Groups of calls in any order, as bits, each as small as possible (`rounds`)."""
    coarse: tuple[int, ...]
    """The same groups, each as large as possible."""

    @classmethod
    def of(
        cls,
        spec: Trajectory,
        wanted: Iterable[ExpectedCall],
        calls: Sequence[ToolCall],
        *,
        complete: bool = True,
        blind: bool = False,
        listed: VisibleTools = None,
        of_turn: bool = False,
    ) -> CallKnowledge:
        """Collect everything known about these calls for a trajectory.

        Args:
            wanted: the calls that it expects and puts in order.
            complete: False if further calls may have followed.
            blind: True if there may be hidden calls of tools that are not `listed`.
            listed: the tools whose calls are all visible.
            of_turn: True if the calls are those of one turn.
        """
        free = FreeCalls(spec, calls, of_turn=of_turn)
        search = CandidateSearch(calls)
        expected = [search.add(each) for each in wanted]
        banned = [search.add(each) for each in spec.forbidden]
        singles = single_groups(len(calls))
        counted = CountedCalls(
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
    def free(self) -> KnownCalls:
        return self.counted.free

    @property
    def failed(self) -> KnownCalls:
        """Calls answered with an error, if the trajectory ignores these."""
        return self.counted.failed

    @property
    def certain(self) -> bool:
        """True if nothing is unknown, so that best and worst case are the same."""
        known = (self.free, self.failed, *self.cells.values(), *self.banned.values())
        return self.fine == self.coarse and not any(each.maybe for each in known)

    @property
    def all(self) -> int:
        """All calls, as bits."""
        return (1 << len(self.calls)) - 1

    def counting(self, best: bool) -> int:
        """Return the calls that count: with `best` as few as possible, else as many as possible."""
        return self.all & ~(self.free.at_most if best else self.free.yes)

    def cell(self, expected: Sequence[ExpectedCall]) -> KnownCalls:
        """Return the calls that meet any of these alternatives."""
        if len(expected) == 1:
            return self.cells[id(expected[0])]
        yes = maybe = 0
        for each in expected:
            known = self.cells[id(each)]
            yes, maybe = yes | known.yes, maybe | known.maybe
        return KnownCalls(yes, maybe & ~yes)

    def why(self, expected: Sequence[ExpectedCall], call: int) -> str:
        """Explain why it is unknown whether a call meets any of these alternatives; "" if it is known."""
        if not self.cell(expected).maybe >> call & 1:
            return ""
        return next(
            self.counted.why(self.wanted[id(each)], call)
            for each in expected
            if self.cells[id(each)].maybe >> call & 1
        )

    def why_banned(self, forbidden: ExpectedCall, call: int) -> str:
        """Explain why it is unknown whether a call is forbidden; "" if it is known."""
        if not self.banned[id(forbidden)].maybe >> call & 1:
            return ""
        return self.counted.why(self.wanted[id(forbidden)], call)

    def only_failed(self, expected: ExpectedCall) -> int:
        """Return the calls that would match if they had succeeded, as bits."""
        return self.counted.only_failed(self.wanted[id(expected)])

    @property
    def open_cells(self) -> tuple[tuple[int, int], ...]:
        """Pairs of an expected call's `id` and a call's position for which a match is unknown."""
        return tuple(
            (key, call)
            for key, wanted in self.wanted.items()
            for call in bits(wanted.anywhere.maybe & self._at_most(key))
        )

    def _at_most(self, key: int) -> int:
        return union([known[key].at_most for known in (self.cells, self.banned) if key in known])

    @property
    def names_untold(self) -> bool:
        """True if it is unknown to which tool some calls belong that are counted by tool."""
        return any(wanted.named.maybe for wanted in self.wanted.values())

    def decided(self, answers: Mapping[object, bool]) -> CallKnowledge:
        """Return a copy with an answer for each of the `open_cells` and each call that may be free.

        Raises KeyError if an answer is missing.
        """
        free, failed = (
            KnownCalls(known.yes | sum(answers[call] << call for call in bits(known.maybe)))
            for known in (self.free, self.failed)
        )
        yes = {key: wanted.anywhere.yes for key, wanted in self.wanted.items()}
        for key, call in self.open_cells:
            yes[key] |= answers[key, call] << call
        counted = replace(self.counted, free=free, failed=failed)
        wanted = {key: replace(old, anywhere=KnownCalls(yes[key])) for key, old in self.wanted.items()}
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
        """The reasons why something is unknown."""
        whys = [
            self.counted.why(self.wanted[key], call)
            for several in (self.cells, self.banned)
            for key, known in several.items()
            for call in bits(known.maybe)
        ]
        frees = [self.free_whys[call] for call in bits(self.free.maybe)]
        return tuple(dict.fromkeys([*whys, *frees]))

    def undecided_of(self, call: int) -> str:
        """Return why something about a call is unknown, or ""."""
        for several in (self.cells, self.banned):
            for key, known in several.items():
                if known.maybe >> call & 1:
                    return self.counted.why(self.wanted[key], call)
        return self.free_whys[call] if self.free.maybe >> call & 1 else ""


def _banned(counted: CountedCalls, wanted: CandidateCalls) -> KnownCalls:
    return counted.at_its_place(wanted, wanted.anywhere)
