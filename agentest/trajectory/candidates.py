"""Find the calls that may match each expected call, by its conditions, its place and the outcome of the call.

Results have three values: `KnownCalls` contains the calls for which something is true and those for which it
is unknown. The module also decides which calls are free, and what hidden calls could change.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import (
    ARGUMENTS_UNTOLD,
    WAITS_FOR_APPROVAL,
    ToolCall,
    arguments_untold,
    failed,
)
from agentest.scenarios.calls import (
    ANYTHING,
    ExpectedCall,
    ToolName,
    is_one_tool,
    name_matches,
    name_text,
    names_in,
)
from agentest.scenarios.matchers.comparison import ComparisonUnknown, PredicateFailed, arguments_hold, equal
from agentest.scenarios.matchers.display import FUNCTIONS
from agentest.scenarios.trajectory import Trajectory, calls_in
from agentest.support.patterns import PatternTimeout
from agentest.trajectory.expected_text import expected_arguments, place_text
from agentest.trajectory.matching import bits, mask_of

RESULT_NOT_REPORTED = "the agent does not tell what the tool answered"
_REPORTED_BY_AGENT = (SeenBy.AGENT, SeenBy.SPANS)
_CLOSED_MODES = ("strict", "unordered", "within")


def matches_any_arguments(expected: ExpectedCall) -> bool:
    """Return True if every call of the tool matches, apart from its place."""
    return only_arguments_decide(expected) and expected_arguments(expected) is None


def only_arguments_decide(expected: ExpectedCall) -> bool:
    """Return True if only name and arguments decide, apart from the place."""
    return expected.where is None and expected.result is ANYTHING


def call_matches(expected: ExpectedCall, made: ToolCall) -> bool:
    """Return True if a call matches an expected call, apart from its place among the others.

    A condition that is not met decides, even if others are unknown. Raises PredicateFailed, CannotTell.
    """
    if only_arguments_decide(expected) and isinstance(expected.name, str):
        if not is_named(expected, made.name):
            return False
        wanted = expected_arguments(expected)
        return wanted is None or _arguments_hold(wanted, made, expected.arg_match_mode == "exact")
    doubts: list[PredicateFailed] = []
    for part in _conditions(expected, made):
        try:
            if not part():
                return False
        except PredicateFailed as error:
            doubts.append(error)
    if doubts:
        raise doubts[0]
    return True


def is_named(expected: ExpectedCall, name: str) -> bool:
    """Return True if the expected call applies to a tool of this name. Raises CannotTell."""
    try:
        return name_matches(expected.name, name)
    except PatternTimeout as error:
        raise ComparisonUnknown(str(error)) from None


def _conditions(expected: ExpectedCall, made: ToolCall) -> Iterator[Callable[[], bool]]:
    """Yield the conditions for a call; those without users' code come first."""
    yield functools.partial(is_named, expected, made.name)
    if expected.result is not ANYTHING:
        yield functools.partial(result_holds, expected, made)
    wanted = expected_arguments(expected)
    if wanted is not None:
        yield functools.partial(_arguments_hold, wanted, made, expected.arg_match_mode == "exact")
    if expected.where is not None:
        yield functools.partial(where_holds, expected.where, made)


def _arguments_hold(wanted: Mapping[str, Any], made: ToolCall, exact: bool) -> bool:
    if arguments_untold(made):
        raise ComparisonUnknown(ARGUMENTS_UNTOLD)
    if not isinstance(made.args, Mapping):
        return False
    return arguments_hold(wanted, made.args, exact)


def where_holds(where: Callable[[dict[str, Any]], Any], made: ToolCall) -> bool:
    """Return the answer of a function about all arguments. Raises PredicateFailed, CannotTell."""
    if arguments_untold(made):
        raise ComparisonUnknown(ARGUMENTS_UNTOLD)
    if not isinstance(made.args, Mapping):
        return False
    asked = where if isinstance(where, FUNCTIONS) else functools.partial(where)
    return equal(asked, dict(made.args))


def result_holds(expected: ExpectedCall, made: ToolCall) -> bool:
    """Return True if the tool's result is as expected. Raises PredicateFailed, CannotTell."""
    if not made.ran:
        return False
    if is_result_unknown(made):
        raise ComparisonUnknown(RESULT_NOT_REPORTED)
    wanted, actual = expected.result, made.result
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        return arguments_hold(wanted, actual, expected.arg_match_mode == "exact")
    return equal(wanted, actual)


def is_result_unknown(made: ToolCall) -> bool:
    """Return True if a call's result, and therefore its success, is unknown.

    An agent that reports no result cannot be distinguished from one that reports the result null.
    """
    no_result = made.result is None and made.error is None and not made.mocked
    return no_result and made.seen_by in _REPORTED_BY_AGENT and not failed(made)


def why_failure_unknown(call: ToolCall) -> str:
    """Explain why it is unknown whether a call failed."""
    return f"ignore_failed: {call.name}: {RESULT_NOT_REPORTED}"


class FreeCalls:
    """Calls that are free, with the reasons.

    Args:
        of_turn: True if the calls are those of one turn.
    """

    def __init__(self, spec: Trajectory, calls: Sequence[ToolCall], *, of_turn: bool = False) -> None:
        self.whys: dict[int, str] = {}
        """Call → why it is free, or may be."""
        reads = failures = waiting = NO_KNOWN_CALLS
        is_needed = spec.reads or spec.ignore_failed or any(call.approval for call in calls)
        for at, call in enumerate(calls if is_needed else ()):
            if call.approval is Approval.PENDING:
                waiting = waiting.answered(at, True)
                if of_turn:
                    self.whys[at] = f"free: {WAITS_FOR_APPROVAL}"
                continue
            reads = reads.answered(at, self._reads(spec, at, call))
            if spec.ignore_failed:
                failures = failures.answered(at, self._failed(at, call))
        self.failed = KnownCalls(failures.yes | waiting.yes, failures.maybe)
        yes = reads.yes | failures.yes | (waiting.yes if of_turn else 0)
        self.known = KnownCalls(yes, (reads.maybe | failures.maybe) & ~yes)

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
        if is_result_unknown(call):
            self.whys.setdefault(at, why_failure_unknown(call))
            return None
        return False


@dataclass(frozen=True, slots=True)
class KnownCalls:
    """Calls for which something is true and calls for which it is unknown, as bits."""

    yes: int = 0
    maybe: int = 0

    @property
    def at_most(self) -> int:
        return self.yes | self.maybe

    def surely(self, sure: bool) -> int:
        """Return the calls for which it is true, or with `sure=False` also those for which it is unknown."""
        return self.yes if sure else self.at_most

    def answered(self, at: int, answer: bool | None) -> KnownCalls:
        """Add the answer for one more call; None: unknown."""
        if answer is False:
            return self
        return (
            KnownCalls(self.yes | 1 << at, self.maybe)
            if answer
            else KnownCalls(self.yes, self.maybe | 1 << at)
        )

    def without(self, other: KnownCalls) -> KnownCalls:
        """Return the calls for which this is true and the other is not."""
        yes = self.yes & ~other.at_most
        return KnownCalls(yes, self.at_most & ~other.yes & ~yes)

    def both(self, other: KnownCalls) -> KnownCalls:
        """Return the calls for which both are true."""
        yes = self.yes & other.yes
        return KnownCalls(yes, self.at_most & other.at_most & ~yes)


NO_KNOWN_CALLS = KnownCalls()


VisibleTools = frozenset[str] | None
"""The tools whose calls are all visible; None: any call may be hidden."""


def is_closed(mode: str) -> bool:
    """Return True if the mode forbids calls that count and are not expected."""
    return mode in _CLOSED_MODES


def is_always_visible(name: ToolName, listed: VisibleTools) -> bool:
    """Return True if all calls of a named tool are visible. A glob or pattern may match other tools."""
    return isinstance(name, str) and is_one_tool(name) and name in (listed or ())


def are_always_visible(names: Iterable[ToolName], listed: VisibleTools) -> bool:
    """Return True if all calls of all these tools are visible."""
    return all(is_always_visible(name, listed) for name in names)


def breakable_by_hidden_calls(spec: Trajectory, listed: VisibleTools) -> Iterator[str]:
    """Yield descriptions of the requirements that a hidden call could break."""
    if spec.expected is not None:
        if is_closed(spec.match_mode):
            yield f"match_mode: {spec.match_mode}"
        elif spec.at_most_once:
            yield from _open_requirement(
                "at_most_once", (call.name for call in calls_in(spec.expected)), listed
            )
    yield from _open_requirement("forbidden", (call.name for call in spec.forbidden), listed)
    if spec.max_calls is not None:
        yield "max_calls"
    limits = spec.max_calls_per_tool
    if isinstance(limits, Mapping):
        yield from _open_requirement("max_calls_per_tool", limits, listed)
    elif limits is not None:
        yield "max_calls_per_tool"
    for order in spec.orders:
        # With `before`, a hidden first call breaks nothing.
        steps = (order.then,) if order.kind == "before" else (order.first, order.then)
        yield from _open_requirement(order.kind, (name for step in steps for name in names_in(step)), listed)


def meetable_by_hidden_calls(spec: Trajectory, listed: VisibleTools) -> Iterator[str]:
    """Yield descriptions of the requirements that a hidden call could meet."""
    if spec.expected is not None:
        yield from _open_requirement("expected", (call.name for call in calls_in(spec.expected)), listed)
    if spec.min_calls is not None:
        yield "min_calls"
    for order in spec.orders:
        if order.kind == "before":
            yield from _open_requirement("before", names_in(order.first), listed)


def _open_requirement(key: str, names: Iterable[ToolName], listed: VisibleTools) -> Iterator[str]:
    found = dict.fromkeys(name_text(name) for name in names if not is_always_visible(name, listed))
    if found:
        yield f"{key}: {', '.join(found)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateCalls:
    """An expected or forbidden call with the calls that match it regardless of place and outcome."""

    expected: ExpectedCall
    anywhere: KnownCalls
    named: KnownCalls = NO_KNOWN_CALLS
    """The calls of its tool, if it expects a certain place among them."""
    whys: Mapping[int, str] = field(default_factory=dict)
    """Call → why it is unknown whether it matches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedCalls:
    """The calls that count, and whether there may be others."""

    calls: Sequence[ToolCall]
    free: KnownCalls
    failed: KnownCalls
    """Calls answered with an error, if the trajectory ignores these."""
    complete: bool = True
    """False: further calls may have followed."""
    blind: bool = False
    """True if there may be hidden calls of tools that are not `listed`."""
    listed: VisibleTools = None

    def met_by(self, wanted: CandidateCalls) -> KnownCalls:
        """Return the calls that match in the expected place and succeeded, unless a result is expected."""
        failed = self._failed_for(wanted)
        worked = wanted.anywhere.without(failed) if failed.at_most else wanted.anywhere
        return self.at_its_place(wanted, worked)

    def _failed_for(self, wanted: CandidateCalls) -> KnownCalls:
        return self.failed if wanted.expected.result is ANYTHING else NO_KNOWN_CALLS

    def only_failed(self, wanted: CandidateCalls) -> int:
        """Return the calls that would match if they had succeeded, as bits."""
        return wanted.anywhere.yes & self._failed_for(wanted).yes

    def only_elsewhere(self, wanted: CandidateCalls) -> int:
        """Return the calls that would match in another place, as bits."""
        worked = wanted.anywhere.without(self._failed_for(wanted))
        return worked.yes & ~self.at_its_place(wanted, worked).at_most

    def at_its_place(self, wanted: CandidateCalls, known: KnownCalls) -> KnownCalls:
        """Return those of the given calls that have the expected place among the calls of their tool."""
        nth = wanted.expected.nth
        return known if nth is None else known.both(self._place(nth, wanted))

    def _place(self, nth: int, wanted: CandidateCalls) -> KnownCalls:
        """Return the n-th of the calls of a tool that count, from the end if negative."""
        of_tool = wanted.named.without(self.free)
        hidden = self.blind and not is_always_visible(wanted.expected.name, self.listed)
        if hidden or (nth < 0 and not self.complete):
            return KnownCalls(0, of_tool.at_most)
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
        return KnownCalls(yes, maybe)

    def why(self, wanted: CandidateCalls, call: int) -> str:
        """Explain why it is unknown whether a call matches."""
        if call in wanted.whys:
            return wanted.whys[call]
        if self._failed_for(wanted).maybe >> call & 1:
            return why_failure_unknown(self.calls[call])
        assert wanted.expected.nth is not None
        name, place = name_text(wanted.expected.name), place_text(wanted.expected.nth)
        return f"{name}: {place}: which calls count is not known"


@dataclass(slots=True)
class CandidateSearch:
    """Compares expected calls with all calls, each expected call once even if it occurs several times."""

    calls: Sequence[ToolCall]
    by_tool: dict[str, list[int]] = field(default_factory=dict)
    found: dict[int, CandidateCalls] = field(default_factory=dict)
    """`id` of an expected call → the calls that match it."""

    def __post_init__(self) -> None:
        for at, call in enumerate(self.calls):
            self.by_tool.setdefault(call.name, []).append(at)

    def add(self, expected: ExpectedCall) -> int:
        """Add an expected call and return its `id`."""
        if id(expected) not in self.found:
            self.found[id(expected)] = self._wanted(expected)
        return id(expected)

    def _wanted(self, expected: ExpectedCall) -> CandidateCalls:
        known, whys = NO_KNOWN_CALLS, dict[int, str]()
        every = matches_any_arguments(expected)
        for name, positions in self.by_tool.items():
            named = _name_matches(expected, name)
            if named and every:
                known = KnownCalls(known.yes | mask_of(positions), known.maybe)
            elif named is not False:
                for at in positions:
                    known = known.answered(at, self._matches(expected, at, whys))
        place = NO_KNOWN_CALLS if expected.nth is None else self._of_tool(expected)
        return CandidateCalls(expected=expected, anywhere=known, named=place, whys=whys)

    def _of_tool(self, expected: ExpectedCall) -> KnownCalls:
        known = NO_KNOWN_CALLS
        for name, positions in self.by_tool.items():
            named = _name_matches(expected, name)
            for at in positions:
                known = known.answered(at, named)
        return known

    def _matches(self, expected: ExpectedCall, at: int, whys: dict[int, str]) -> bool | None:
        try:
            return call_matches(expected, self.calls[at])
        except PredicateFailed as error:
            whys[at] = f"{name_text(expected.name)}: {error}"
            return None


def _name_matches(expected: ExpectedCall, name: str) -> bool | None:
    try:
        return is_named(expected, name)
    except PredicateFailed:
        return None
