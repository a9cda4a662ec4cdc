"""What is known of the calls that were made: which may be which expected call, and which are free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentest.evaluate.calls.expected_text import place_text
from agentest.evaluate.calls.matches import RESULT_UNTOLD, any_call, call_matches, is_named, result_untold
from agentest.evaluate.calls.matching import bits, mask_of
from agentest.evaluate.calls.rounds import coarse_groups, fine_groups, single_groups
from agentest.matchers.comparison import PredicateFailed
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.names import name_matches, name_text
from agentest.scenarios.trajectories import Trajectory
from agentest.support.patterns import PatternTimeout
from agentest.transcript import ToolCall, failed

ROUNDS_UNTOLD = "rounds: the agent does not tell which of its calls came in one message"


@dataclass(frozen=True, slots=True)
class Known:
    """Of which calls something is true, and of which that is not known, as bits."""

    yes: int = 0
    maybe: int = 0

    @property
    def at_most(self) -> int:
        return self.yes | self.maybe

    def surely(self, sure: bool) -> int:
        """The calls of which it is surely true; else those of which it may be."""
        return self.yes if sure else self.at_most


NOTHING = Known()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sightings:
    """All that decides about a trajectory, but for what it makes of it."""

    calls: Sequence[ToolCall]
    cells: Mapping[int, Known]
    """`id` of an expected call → the calls that it may be."""
    whys: Mapping[tuple[int, int], str]
    """`id` of an expected call and position of a call → why it is not known whether they match."""
    free: Known
    failed: Known
    """Calls that were answered with an error, where the trajectory ignores these."""
    free_whys: Mapping[int, str]
    """Call → why it is free, or may be."""
    anywhere: Mapping[int, Known]
    """`id` of an expected call → the calls that it may be, or would be were they the n-th."""
    places: Mapping[int, int]
    """`id` of an expected call → which of the calls that count it must be, where it says so."""
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
    ) -> Sightings:
        """What is known of these calls, for all that a trajectory expects, forbids and puts in order.

        Args:
            complete: False: further calls may have followed.
            blind: whether there may have been further calls anywhere.
        """
        free = _Free(spec, calls)
        by_tool: defaultdict[str, list[int]] = defaultdict(list)
        for at, call in enumerate(calls):
            by_tool[call.name].append(at)
        found = _Cells(calls, _Counted(free.known, len(calls), complete, blind), by_tool)
        for each in wanted:
            found.add(each)
        singles = single_groups(len(calls))
        return cls(
            calls=calls,
            cells=found.cells,
            whys=found.whys,
            anywhere=found.anywhere,
            places=found.places,
            free=free.known,
            failed=free.failed,
            free_whys=free.whys,
            fine=fine_groups(calls) if spec.rounds else singles,
            coarse=coarse_groups(calls) if spec.rounds else singles,
        )

    @property
    def all(self) -> int:
        """All calls."""
        return (1 << len(self.calls)) - 1

    def counting(self, best: bool) -> int:
        """The calls that count, as few as may be or as many."""
        return self.all & ~(self.free.at_most if best else self.free.yes)

    def cell(self, expected: Sequence[ExpectedCall]) -> Known:
        """The calls that may be any of these."""
        yes = maybe = 0
        for each in expected:
            known = self.cells[id(each)]
            yes, maybe = yes | known.yes, maybe | known.maybe
        return Known(yes, maybe & ~yes)

    def why(self, expected: Sequence[ExpectedCall], call: int) -> str:
        """Why it is not known whether a call is any of these; "" where it is."""
        if not self.cell(expected).maybe >> call & 1:
            return ""
        return next(filter(None, (self.whys.get((id(each), call)) for each in expected)), "")

    def elsewhere(self, key: int) -> int:
        """The calls that an expected call, by its `id`, would be were they at its place, as bits."""
        return self.anywhere[key].yes & ~self.cells[key].at_most if key in self.places else 0

    @property
    def open_cells(self) -> tuple[tuple[int, int], ...]:
        """`id` of an expected call and position of a call of which it is not known whether they match."""
        return tuple(
            (key, call)
            for key, known in self.anywhere.items()
            for call in bits(known.maybe & self.cells[key].at_most)
        )

    def decided(self, answers: Mapping[object, bool]) -> Sightings:
        """The same with an answer for each of the `open_cells`, and for each call that may be free.

        Raises KeyError where one is missing.
        """
        free, failed = (
            Known(known.yes | sum(answers[call] << call for call in bits(known.maybe)))
            for known in (self.free, self.failed)
        )
        counted = _Counted(free, len(self.calls), True, False)
        yes = {key: known.yes for key, known in self.anywhere.items()}
        for key, call in self.open_cells:
            yes[key] |= answers[key, call] << call
        cells = {
            key: Known(mask & counted.at(self.places[key]).yes if key in self.places else mask)
            for key, mask in yes.items()
        }
        return replace(self, cells=cells, free=free, failed=failed, whys={})

    @property
    def undecided(self) -> tuple[str, ...]:
        """Why something is not known."""
        frees = [self.free_whys[call] for call in bits(self.free.maybe)]
        return tuple(dict.fromkeys([*self.whys.values(), *frees]))


class _Free:
    """Which calls are free, and why."""

    def __init__(self, spec: Trajectory, calls: Sequence[ToolCall]) -> None:
        self.whys: dict[int, str] = {}
        reads = failures = NOTHING
        for at, call in enumerate(calls):
            reads = _with(reads, at, self._reads(spec, at, call))
            if spec.ignore_failed:
                failures = _with(failures, at, self._failed(at, call))
        self.failed = failures
        yes = reads.yes | failures.yes
        self.known = Known(yes, (reads.maybe | failures.maybe) & ~yes)

    def _reads(self, spec: Trajectory, at: int, call: ToolCall) -> bool | None:
        for name in spec.reads:
            try:
                if name_matches(name, call.name):
                    self.whys[at] = f"free: a read ({name_text(name)})"
                    return True
            except PatternTimeout as error:
                self.whys[at] = f"reads: {error}"
                return None
        return False

    def _failed(self, at: int, call: ToolCall) -> bool | None:
        if failed(call):
            self.whys[at] = "free: answered with an error"
            return True
        if result_untold(call):
            self.whys.setdefault(at, f"ignore_failed: {call.name}: {RESULT_UNTOLD}")
            return None
        return False


def _with(known: Known, at: int, answer: bool | None) -> Known:
    if answer is None:
        return Known(known.yes, known.maybe | 1 << at)
    return Known(known.yes | 1 << at, known.maybe) if answer else known


@dataclass(frozen=True, slots=True)
class _Counted:
    """The places of calls among those that count."""

    free: Known
    size: int
    complete: bool
    blind: bool

    def at(self, nth: int) -> Known:
        """Which call is the n-th of those that count, the last for -1."""
        if self.blind or (nth < 0 and not self.complete):
            return Known(0, ((1 << self.size) - 1) & ~self.free.yes)
        order = range(self.size) if nth > 0 else range(self.size - 1, -1, -1)
        yes = maybe = least = most = 0
        for call in order:
            bit = 1 << call
            if self.free.yes & bit:
                continue
            sure = not self.free.maybe & bit
            if least < abs(nth) <= most + 1:
                if sure and least == most:
                    yes |= bit
                else:
                    maybe |= bit
            least, most = least + sure, most + 1
        return Known(yes, maybe)


@dataclass(slots=True)
class _Cells:
    calls: Sequence[ToolCall]
    counted: _Counted
    by_tool: Mapping[str, list[int]]
    cells: dict[int, Known] = field(default_factory=dict)
    whys: dict[tuple[int, int], str] = field(default_factory=dict)
    anywhere: dict[int, Known] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)

    def add(self, expected: ExpectedCall) -> None:
        """Hold an expected call against all calls."""
        if id(expected) in self.cells:
            return
        known = NOTHING
        for name, positions in self.by_tool.items():
            named = self._named(expected, name)
            if named and any_call(expected):
                known = Known(known.yes | mask_of(positions), known.maybe)
            elif named is not False:
                for at in positions:
                    known = _with(known, at, self._matches(expected, at))
        self.anywhere[id(expected)] = known
        if expected.nth is not None:
            self.places[id(expected)] = expected.nth
            known = self._at_its_place(expected, known)
        self.cells[id(expected)] = known

    def _named(self, expected: ExpectedCall, name: str) -> bool | None:
        try:
            return is_named(expected, name)
        except PredicateFailed:
            return None

    def _matches(self, expected: ExpectedCall, at: int) -> bool | None:
        try:
            return call_matches(expected, self.calls[at])
        except PredicateFailed as error:
            self.whys[id(expected), at] = f"{name_text(expected.name)}: {error}"
            return None

    def _at_its_place(self, expected: ExpectedCall, known: Known) -> Known:
        assert expected.nth is not None
        place = self.counted.at(expected.nth)
        at_most = known.at_most & place.at_most
        yes = known.yes & place.yes
        for call in bits(known.at_most & ~place.at_most):
            self.whys.pop((id(expected), call), None)
        for call in bits(at_most & ~yes & place.maybe):
            why = f"{name_text(expected.name)}: {place_text(expected.nth)}: which calls count is not known"
            self.whys.setdefault((id(expected), call), why)
        return Known(yes, at_most & ~yes)
