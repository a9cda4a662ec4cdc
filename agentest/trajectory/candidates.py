"""Which calls each expected call may be: by its own words, by its place, and by how the call went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentest.domain.transcript import ToolCall
from agentest.scenarios.calls import ANYTHING, ExpectedCall
from agentest.scenarios.matchers.comparison import PredicateFailed
from agentest.scenarios.names import name_text
from agentest.trajectory.expected_text import place_text
from agentest.trajectory.free_calls import failure_untold
from agentest.trajectory.known import NOTHING, Known
from agentest.trajectory.listed import Listed, is_listed
from agentest.trajectory.matches import any_call, call_matches, is_named
from agentest.trajectory.matching import bits, mask_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An expected or forbidden call, and the calls that it would be wherever they came, however they went."""

    expected: ExpectedCall
    anywhere: Known
    named: Known = NOTHING
    """The calls of its tool, where it says which of them it must be."""
    whys: Mapping[int, str] = field(default_factory=dict)
    """Call → why it is not known whether the two match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Which calls count, and whether there were others."""

    calls: Sequence[ToolCall]
    free: Known
    failed: Known
    """Calls that were answered with an error, where the trajectory ignores these."""
    complete: bool = True
    """False: further calls may have followed."""
    blind: bool = False
    """Whether there may have been further calls anywhere, of tools that are not `listed`."""
    listed: Listed = None

    def met_by(self, wanted: Wanted) -> Known:
        """The calls that meet an expectation: at its place, and worked unless it speaks of the result."""
        failed = self._failed_for(wanted)
        worked = wanted.anywhere.without(failed) if failed.at_most else wanted.anywhere
        return self.at_its_place(wanted, worked)

    def _failed_for(self, wanted: Wanted) -> Known:
        return self.failed if wanted.expected.result is ANYTHING else NOTHING

    def only_failed(self, wanted: Wanted) -> int:
        """The calls that would meet it, had they worked, as bits."""
        return wanted.anywhere.yes & self._failed_for(wanted).yes

    def only_elsewhere(self, wanted: Wanted) -> int:
        """The calls that would meet it, had they come at its place, as bits."""
        worked = wanted.anywhere.without(self._failed_for(wanted))
        return worked.yes & ~self.at_its_place(wanted, worked).at_most

    def at_its_place(self, wanted: Wanted, known: Known) -> Known:
        """Of some calls those that are the n-th of their tool, where an expected call says so."""
        nth = wanted.expected.nth
        return known if nth is None else known.both(self._place(nth, wanted))

    def _place(self, nth: int, wanted: Wanted) -> Known:
        """Which call is the n-th of those of a tool that count, the last for -1."""
        of_tool = wanted.named.without(self.free)
        hidden = self.blind and not is_listed(wanted.expected.name, self.listed)
        if hidden or (nth < 0 and not self.complete):
            return Known(0, of_tool.at_most)
        order = list(bits(of_tool.at_most))
        yes = maybe = least = most = 0
        for call in order if nth > 0 else reversed(order):
            bit = 1 << call
            sure = bool(of_tool.yes & bit)
            if least < abs(nth) <= most + 1:
                if sure and least == most:
                    yes |= bit
                else:
                    maybe |= bit
            least, most = least + sure, most + 1
        return Known(yes, maybe)

    def why(self, wanted: Wanted, call: int) -> str:
        """Why it is not known whether a call meets it."""
        if call in wanted.whys:
            return wanted.whys[call]
        if self._failed_for(wanted).maybe >> call & 1:
            return failure_untold(self.calls[call])
        assert wanted.expected.nth is not None
        name, place = name_text(wanted.expected.name), place_text(wanted.expected.nth)
        return f"{name}: {place}: which calls count is not known"


@dataclass(slots=True)
class Search:
    """Holds expected calls against all calls; one that stands in several places once."""

    calls: Sequence[ToolCall]
    by_tool: dict[str, list[int]] = field(default_factory=dict)
    found: dict[int, Wanted] = field(default_factory=dict)
    """`id` of an expected call → what is known of it."""

    def __post_init__(self) -> None:
        for at, call in enumerate(self.calls):
            self.by_tool.setdefault(call.name, []).append(at)

    def add(self, expected: ExpectedCall) -> int:
        """Its `id`."""
        if id(expected) not in self.found:
            self.found[id(expected)] = self._wanted(expected)
        return id(expected)

    def _wanted(self, expected: ExpectedCall) -> Wanted:
        known, whys = NOTHING, dict[int, str]()
        every = any_call(expected)
        for name, positions in self.by_tool.items():
            named = _named(expected, name)
            if named and every:
                known = Known(known.yes | mask_of(positions), known.maybe)
            elif named is not False:
                for at in positions:
                    known = known.answered(at, self._matches(expected, at, whys))
        place = NOTHING if expected.nth is None else self._of_tool(expected)
        return Wanted(expected=expected, anywhere=known, named=place, whys=whys)

    def _of_tool(self, expected: ExpectedCall) -> Known:
        known = NOTHING
        for name, positions in self.by_tool.items():
            named = _named(expected, name)
            for at in positions:
                known = known.answered(at, named)
        return known

    def _matches(self, expected: ExpectedCall, at: int, whys: dict[int, str]) -> bool | None:
        try:
            return call_matches(expected, self.calls[at])
        except PredicateFailed as error:
            whys[at] = f"{name_text(expected.name)}: {error}"
            return None


def _named(expected: ExpectedCall, name: str) -> bool | None:
    try:
        return is_named(expected, name)
    except PredicateFailed:
        return None
