"""What is known about the actual calls: which match which expected call, and which are free.

Every fact has three values: `KnownCalls` contains the calls for which something is true and those for which
it is unknown. The texts of expected calls show them as they were written.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from agentest.domain.tool_visibility import ToolOutcome
from agentest.domain.transcript import (
    ARGUMENTS_UNKNOWN,
    WAITS_FOR_APPROVAL,
    ToolCall,
    are_arguments_unknown,
    is_unreadable,
)
from agentest.scenarios.matchers.comparison import DifferenceSearch, ValueDifference, outcome_of
from agentest.scenarios.matchers.display import FUNCTIONS, shown
from agentest.scenarios.trajectory import (
    ANYTHING,
    ExpectedCall,
    Step,
    ToolName,
    Trajectory,
    is_one_tool,
    name_matches,
    name_text,
)
from agentest.support.json_text import safe_repr
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout
from agentest.support.text import shortened
from agentest.trajectory.matching import bits, union

RESULT_NOT_REPORTED = "the agent does not report what the tool answered"
ROUNDS_NOT_REPORTED = "rounds: the agent does not report which of its calls came in one message"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """What is known about a list of calls as a whole.

    Attributes:
        complete: False if something other than the agent cut the conversation short. Then only violations
            that no later call could correct count.
        blind: why there may be hidden calls; None if all calls are visible.
        listed: the tools whose calls are all visible even so; None: any call may be hidden.
        of_turn: True if the calls are those of one turn; a call that waits for approval belongs to a later
            turn.
    """

    complete: bool = True
    blind: str | None = None
    listed: frozenset[str] | None = None
    of_turn: bool = False

    def lists(self, names: Iterable[ToolName]) -> bool:
        """Return True if all these tools are listed. A glob or pattern may match other tools."""
        listed = self.listed or ()
        return all(isinstance(name, str) and is_one_tool(name) and name in listed for name in names)

    def may_hide(self, names: Iterable[ToolName]) -> bool:
        """Return True if there may be hidden calls of one of these tools."""
        return bool(self.blind) and not self.lists(names)


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

    def without(self, other: KnownCalls) -> KnownCalls:
        """Return the calls for which this is true and the other is not."""
        yes = self.yes & ~other.at_most
        return KnownCalls(yes, self.at_most & ~other.yes & ~yes)

    def both(self, other: KnownCalls) -> KnownCalls:
        """Return the calls for which both are true."""
        yes = self.yes & other.yes
        return KnownCalls(yes, self.at_most & other.at_most & ~yes)


_NONE = KnownCalls()


def _collected(answers: Iterable[tuple[int, bool | None]]) -> KnownCalls:
    yes = maybe = 0
    for call, answer in answers:
        if answer:
            yes |= 1 << call
        elif answer is None:
            maybe |= 1 << call
    return KnownCalls(yes, maybe)


def call_problems(expected: ExpectedCall, made: ToolCall) -> Iterator[ValueDifference]:
    """Yield what differs between a call and an expected one of its tool, apart from their places.

    A part that is not reported has no path.
    """
    search = DifferenceSearch()
    wanted, where, args = expected_arguments(expected), expected.where, made.args
    if where is not None or wanted is not None:
        if are_arguments_unknown(made):
            yield search.problem("", wanted, args, ARGUMENTS_UNKNOWN)
        elif not isinstance(args, Mapping):
            text = shortened(safe_repr(args), _VALUE_CHARS)
            yield search.problem("", wanted, args, note=f"the arguments are not an object: {text}")
        elif wanted is not None:
            yield from search.arguments(wanted, args, exact=expected.arg_match_mode == "exact")
    if expected.result is not ANYTHING:
        yield from _result_problems(expected, made, search)
    if where is not None and isinstance(args, Mapping):
        function = where if isinstance(where, FUNCTIONS) else functools.partial(where)
        note = f"{shortened(shown(where), _VALUE_CHARS)} said no"
        yield from search.whole(function, dict(args), "where", note)


def _result_problems(
    expected: ExpectedCall, made: ToolCall, search: DifferenceSearch
) -> Iterator[ValueDifference]:
    wanted, actual = expected.result, made.result
    if not made.ran:
        yield search.problem("result", wanted, actual)
    elif made.outcome is ToolOutcome.UNREPORTED:
        yield search.problem("", wanted, actual, RESULT_NOT_REPORTED)
    elif isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        exact = expected.arg_match_mode == "exact"
        yield from search.arguments(wanted, actual, exact=exact, inside="result")
    else:
        yield from search.whole(wanted, actual, "result")


def _why_failure_unknown(call: ToolCall) -> str:
    return f"ignore_failed: {call.name}: {RESULT_NOT_REPORTED}"


@dataclass(slots=True, kw_only=True)
class CallFacts:
    """Everything known about the calls that decides a trajectory. Expected calls are known by their `id`."""

    calls: Sequence[ToolCall]
    view: CallView
    expected: Mapping[int, ExpectedCall]
    forbidden: Mapping[int, ExpectedCall]
    anywhere: Mapping[int, KnownCalls]
    """Expected or forbidden call → the calls that match, apart from their place and their failure."""
    named: Mapping[int, KnownCalls]  # expected or forbidden call → the calls of its tool
    reasons: Mapping[tuple[int, int], str]  # expected call and call → why it is unknown whether they match
    free: KnownCalls
    failures: KnownCalls
    """Calls that failed, if the trajectory ignores these, and calls that wait for approval."""
    free_reasons: Mapping[int, str]  # call → why it is free, or may be
    fine: tuple[int, ...]  # groups of calls in any order, as bits, each as small as possible (`rounds`)
    coarse: tuple[int, ...]  # the same groups, each as large as possible
    unreadable: int = field(init=False)
    """Calls without an arguments object, as bits: they meet no expectation, but count for bans and limits."""
    cells: dict[int, KnownCalls] = field(init=False)  # expected call → the calls that meet it
    banned: dict[int, KnownCalls] = field(init=False)
    """Forbidden call → the calls that match it, including failed ones."""
    misplaced: dict[int, int] = field(init=False)
    """Expected call with a place → the calls that would match in another place, as bits."""

    def __post_init__(self) -> None:
        self.unreadable = sum(1 << at for at, call in enumerate(self.calls) if is_unreadable(call))
        anywhere, unreadable = self.anywhere, KnownCalls(self.unreadable)
        worked = {
            key: anywhere[key].without(self._failed_for(each)).without(unreadable)
            for key, each in self.expected.items()
        }
        self.cells = {key: self._at_its_place(key, each, worked[key]) for key, each in self.expected.items()}
        self.banned = {
            key: self._at_its_place(key, each, anywhere[key]) for key, each in self.forbidden.items()
        }
        self.misplaced = {
            key: worked[key].yes & ~self.cells[key].at_most
            for key, each in self.expected.items()
            if each.nth is not None
        }

    @classmethod
    def of(
        cls, spec: Trajectory, expected: Iterable[ExpectedCall], calls: Sequence[ToolCall], view: CallView
    ) -> CallFacts:
        """Compare calls with those that a trajectory forbids, and expects or puts in order (`expected`)."""
        wanted = {id(each): each for each in expected}
        forbidden = {id(each): each for each in spec.forbidden}
        by_tool: dict[str, list[int]] = {}
        for at, call in enumerate(calls):
            by_tool.setdefault(call.name, []).append(at)
        anywhere, named, reasons = {}, {}, dict[tuple[int, int], str]()
        for key, each in (wanted | forbidden).items():
            named[key] = _calls_of_tool(each, by_tool, reasons)
            anywhere[key] = _collected(_answers(each, named[key], calls, reasons))
        single = tuple(1 << at for at in range(len(calls)))
        free, failures, free_reasons = _free_calls(spec, calls, view)
        return cls(
            calls=calls,
            view=view,
            expected=wanted,
            forbidden=forbidden,
            anywhere=anywhere,
            named=named,
            reasons=reasons,
            free=free,
            failures=failures,
            free_reasons=free_reasons,
            fine=_groups(calls, fine=True) if spec.rounds else single,
            coarse=_groups(calls, fine=False) if spec.rounds else single,
        )

    def decided(self, answers: Mapping[object, bool]) -> CallFacts:
        """Return a copy with an answer for each of `open_cells` and each call that may be free."""
        free, failures = (
            KnownCalls(known.yes | sum(answers[call] << call for call in bits(known.maybe)))
            for known in (self.free, self.failures)
        )
        anywhere = {key: known.yes for key, known in self.anywhere.items()}
        for key, call in self.open_cells:
            anywhere[key] |= answers[key, call] << call
        known = {key: KnownCalls(calls) for key, calls in anywhere.items()}
        return replace(self, free=free, failures=failures, anywhere=known)

    def _failed_for(self, expected: ExpectedCall) -> KnownCalls:
        return self.failures if expected.result is ANYTHING else _NONE

    def _at_its_place(self, key: int, expected: ExpectedCall, known: KnownCalls) -> KnownCalls:
        nth = expected.nth
        if nth is None:
            return known
        of_tool = self.named[key].without(self.free)
        if self.view.may_hide([expected.name]) or (nth < 0 and not self.view.complete):
            return known.both(KnownCalls(0, of_tool.at_most))
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
        return known.both(KnownCalls(yes, maybe))

    @property
    def certain(self) -> bool:
        """True if nothing is unknown, so that best and worst case are the same."""
        known = (self.free, self.failures, *self.cells.values(), *self.banned.values())
        return self.fine == self.coarse and not any(each.maybe for each in known)

    def counting(self, best: bool) -> int:
        """Return the calls that count: with `best` as few as possible, else as many as possible."""
        return (1 << len(self.calls)) - 1 & ~self.free.surely(not best)

    def counting_by_tool(self, best: bool) -> int:
        """Return the calls that `max_calls_per_tool` counts: reads too, but no ignored failures."""
        waiting = sum(1 << at for at, call in enumerate(self.calls) if call.outcome is ToolOutcome.WAITING)
        return (1 << len(self.calls)) - 1 & ~(self.free.both(self.failures).surely(not best) & ~waiting)

    def cell(self, slot: Sequence[ExpectedCall]) -> KnownCalls:
        """Return the calls that meet any of these alternatives."""
        if len(slot) == 1:
            return self.cells[id(slot[0])]
        cells = [self.cells[id(each)] for each in slot]
        yes = union([each.yes for each in cells])
        return KnownCalls(yes, union([each.maybe for each in cells]) & ~yes)

    def of_tool(self, slot: Sequence[ExpectedCall], call: int) -> list[ExpectedCall]:
        """Return the alternatives that may apply to the tool of a call."""
        return [each for each in slot if self.named[id(each)].at_most >> call & 1]

    def only_failed(self, expected: ExpectedCall) -> int:
        """Return the calls that would match if they had succeeded, as bits."""
        return self.anywhere[id(expected)].yes & (self._failed_for(expected).yes | self.unreadable)

    @property
    def open_cells(self) -> tuple[tuple[int, int], ...]:
        """Pairs of an expected or forbidden call and a call for which a match is unknown."""
        return tuple(
            (key, call)
            for key, known in self.anywhere.items()
            for call in bits(
                known.maybe & (self.cells.get(key, _NONE).at_most | self.banned.get(key, _NONE).at_most)
            )
        )

    def why(self, slot: Sequence[ExpectedCall], call: int) -> str:
        """Explain why it is unknown whether a call meets any of these alternatives; "" if it is known."""
        if not self.cell(slot).maybe >> call & 1:
            return ""
        return next(self._why(each, call) for each in slot if self.cells[id(each)].maybe >> call & 1)

    def why_banned(self, forbidden: ExpectedCall, call: int) -> str:
        """Explain why it is unknown whether a call is forbidden; "" if it is known."""
        return self._why(forbidden, call) if self.banned[id(forbidden)].maybe >> call & 1 else ""

    def _why(self, expected: ExpectedCall, call: int) -> str:
        if why := self.reasons.get((id(expected), call)):
            return why
        if self._failed_for(expected).maybe >> call & 1:
            return _why_failure_unknown(self.calls[call])
        assert expected.nth is not None
        return f"{name_text(expected.name)}: {place_text(expected.nth)}: which calls count is not known"

    def doubts(self) -> Iterator[tuple[int, str]]:
        """Yield calls about which something is unknown, with the reason."""
        for wanted, known_calls in ((self.expected, self.cells), (self.forbidden, self.banned)):
            for key, known in known_calls.items():
                for call in bits(known.maybe):
                    yield call, self._why(wanted[key], call)
        for call in bits(self.free.maybe):
            yield call, self.free_reasons[call]


def _calls_of_tool(
    expected: ExpectedCall, by_tool: Mapping[str, Sequence[int]], reasons: dict[tuple[int, int], str]
) -> KnownCalls:
    yes = maybe = 0
    for name, calls in by_tool.items():
        try:
            yes |= sum(1 << call for call in calls) if name_matches(expected.name, name) else 0
        except PatternTimeout as error:
            maybe |= sum(1 << call for call in calls)
            why = f"{name_text(expected.name)}: {error}"
            reasons |= dict.fromkeys(((id(expected), call) for call in calls), why)
    return KnownCalls(yes, maybe)


def _answers(
    expected: ExpectedCall,
    of_tool: KnownCalls,
    calls: Sequence[ToolCall],
    reasons: dict[tuple[int, int], str],
) -> Iterator[tuple[int, bool | None]]:
    for call in bits(of_tool.at_most):
        matches, why = outcome_of(call_problems(expected, calls[call]))
        if why:
            reasons.setdefault((id(expected), call), f"{name_text(expected.name)}: {why}")
        yield call, None if matches and of_tool.maybe >> call & 1 else matches


def _free_calls(
    spec: Trajectory, calls: Sequence[ToolCall], view: CallView
) -> tuple[KnownCalls, KnownCalls, Mapping[int, str]]:
    reasons: dict[int, str] = {}
    if not (spec.reads or spec.ignore_failed or any(call.approval for call in calls)):
        return _NONE, _NONE, {}
    waiting = {at for at, call in enumerate(calls) if call.outcome is ToolOutcome.WAITING}
    others = [(at, call) for at, call in enumerate(calls) if at not in waiting]
    reads = _collected((at, _is_read(spec, at, call, reasons)) for at, call in others)
    failures = _collected((at, _is_failure(at, call, reasons)) for at, call in others if spec.ignore_failed)
    waits = _collected((at, True) for at in waiting)
    if view.of_turn:
        reasons |= dict.fromkeys(waiting, f"free: {WAITS_FOR_APPROVAL}")
    yes = reads.yes | failures.yes | (waits.yes if view.of_turn else 0)
    free = KnownCalls(yes, (reads.maybe | failures.maybe) & ~yes)
    return free, KnownCalls(failures.yes | waits.yes, failures.maybe), reasons


def _is_read(spec: Trajectory, at: int, call: ToolCall, reasons: dict[int, str]) -> bool | None:
    for name in spec.reads:
        try:
            if name_matches(name, call.name):
                reasons[at] = f"free: a read ({name_text(name)})"
                return True
        except PatternTimeout as error:
            reasons[at] = f"reads: {error}"
            return None
    return False


def _is_failure(at: int, call: ToolCall, reasons: dict[int, str]) -> bool | None:
    if call.failed:
        reasons[at] = "free: answered with an error"
        return True
    if call.outcome is ToolOutcome.UNREPORTED:
        reasons.setdefault(at, _why_failure_unknown(call))
        return None
    return False


def _groups(calls: Sequence[ToolCall], *, fine: bool) -> tuple[int, ...]:
    """Return one group per message.

    A call in an unknown message is its own group (`fine`), or its whole turn is one group.
    """
    unknown = {call.turn_index for call in calls if call.round is None}
    keys: list[object] = [
        (call.turn_index, at if call.round is None else -1, call.round)
        if fine
        else (call.turn_index, None if call.turn_index in unknown else call.round)
        for at, call in enumerate(calls)
    ]
    groups: list[int] = []
    for at, key in enumerate(keys):
        if at and key == keys[at - 1]:
            groups[-1] |= 1 << at
        else:
            groups.append(1 << at)
    return tuple(groups)


_MOST_SHOWN = 20
_VALUE_CHARS = 80
_MOST_CHARS = 2_000  # limit for one value, because a result repeats each expected call for every conversation


def expected_arguments(expected: ExpectedCall) -> Mapping[str, Any] | None:
    """Return the expected arguments; None: any arguments match."""
    if expected.arg_match_mode == "ignore" or (expected.arg_match_mode == "partial" and not expected.args):
        return None
    return expected.args


def expected_text(expected: ExpectedCall) -> str:
    """Format an expected call as `name(key=value, …)` with its other conditions."""
    name, wanted = _cut(name_text(expected.name)), expected_arguments(expected)
    conditions = []
    if expected.where is not None:
        conditions.append(f"where={_cut(shown(expected.where))}")
    if expected.result is not ANYTHING:
        conditions.append(f"result={_cut(shown(expected.result))}")
    if expected.nth is not None:
        conditions.append(place_text(expected.nth))
    if wanted is None and not conditions:
        return name
    arguments = [_argument(key, value) for key, value in (wanted or {}).items()]
    more = ["…"] if wanted is None or expected.arg_match_mode == "partial" else []
    written = f"{name}({', '.join([*arguments, *more, *conditions])})"
    return f"exactly({written})" if conditions and not more else written


def _argument(key: str, value: Any) -> str:
    text = _cut(shown(value))
    return f"{key}={text}" if str(key).isidentifier() else f"{key!r}: {text}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}… ({len(text):,} characters)"


def place_text(nth: int) -> str:
    """Format the expected place among the calls of a tool that count: `first`, `last`, `nth=2`."""
    return {1: "first", -1: "last"}.get(nth, f"nth={nth}")


def slot_text(slot: Sequence[ExpectedCall]) -> str:
    """Format alternatives for one call."""
    texts = [expected_text(each) for each in slot]
    return texts[0] if len(texts) == 1 else f"any_of({', '.join(texts)})"


def slot_name(slot: Sequence[ExpectedCall]) -> str:
    """Return the name of the tool, or of all alternatives."""
    return " or ".join(dict.fromkeys(_cut(name_text(each.name)) for each in slot))


def step_text(step: Step) -> str:
    """Format an expected call, or alternatives, as written."""
    if isinstance(step, ExpectedCall):
        return expected_text(step)
    paths = (
        ", ".join(map(step_text, path)) if len(path) == 1 else f"[{', '.join(map(step_text, path))}]"
        for path in step.paths
    )
    return f"any_of({', '.join(paths)})"


NO_CALLS = "no calls"


def listed(texts: Iterable[str], nothing: str = NO_CALLS) -> str:
    """Join texts with commas; beyond the first twenty, only their number is given."""
    items = list(texts)
    more = f", … {len(items) - _MOST_SHOWN} more" if len(items) > _MOST_SHOWN else ""
    return (", ".join(items[:_MOST_SHOWN]) + more) or nothing
