"""What differs between the actual calls and a trajectory, with every unknown decided.

`Assignment` assigns calls (columns) to the expected calls of one path (rows), and `compare_calls` finds what
differs. `check_limits` checks what is independent of expected calls: forbidden calls, limits and orders. The
last functions find the requirements that hidden calls could break or meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice

from agentest.domain.tool_visibility import ToolOutcome
from agentest.domain.transcript import ToolCall
from agentest.scenarios.trajectory import CallOrder, Slot, ToolName, Trajectory, calls_in, name_text, names_in
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count
from agentest.trajectory.call_facts import CallFacts, CallView, place_text, slot_name, slot_text, step_text
from agentest.trajectory.matching import (
    Matching,
    Partners,
    best_in_order,
    bits,
    count_in_order,
    exactly_in_order,
    first_out_of_place,
    least_rows,
    maximum_matching,
    union,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The actual calls that match each expected call, with every unknown decided."""

    slots: Sequence[Slot]
    calls: Sequence[ToolCall]
    rows: tuple[int, ...]  # for each expected call the calls that match it, as bits
    members: Sequence[int]  # the same with unknowns decided the opposite way, to find calls that are repeated
    counting: int  # the calls that count, as bits; free calls do not
    groups: tuple[int, ...]  # groups of calls in any order, as bits (`rounds`)

    @classmethod
    def of(
        cls, slots: Sequence[Slot], facts: CallFacts, *, best: bool, groups: tuple[int, ...] = ()
    ) -> Assignment:
        """Decide unknowns in favor of the trajectory (`best`) or against it, as for the default `groups`."""
        cells = [facts.cell(slot) for slot in slots]
        return cls(
            slots=slots,
            calls=facts.calls,
            rows=tuple(cell.surely(not best) for cell in cells),
            members=[cell.surely(best) for cell in cells],
            counting=facts.counting(best),
            groups=groups or (facts.coarse if best else facts.fine),
        )

    @property
    def matched(self) -> int:
        """The calls that match any expected call."""
        return union(self.rows)

    def partners(self, *, ordered: bool = False) -> Partners:
        """Return an assignment in which as many expected calls as possible have their own call.

        Among these, it pairs as many calls that count as possible.

        Args:
            ordered: True to pair as many as possible in the expected order.
        """
        begin = best_in_order(self.rows, self.groups, self.counting) if ordered else ()
        return maximum_matching(self.rows, self.counting, begin) if None in begin or not begin else begin

    def missing_and_extra(self, *, ordered: bool = False) -> tuple[list[int], list[int]]:
        """Return rows without a call, and calls that count without a row, according to `partners`."""
        partners = self.partners(ordered=ordered)
        missing = [row for row, call in enumerate(partners) if call is None]
        return missing, list(bits(self.counting & ~_mask(partners)))

    def names_of(self, calls: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.calls[call].name for call in calls)

    def names_of_slots(self, rows: Iterable[int]) -> tuple[str, ...]:
        return tuple(slot_name(self.slots[row]) for row in rows)

    def repeated(self) -> list[int]:
        """Return calls that count and match an expected call, but have none of their own."""
        wanted = union(self.members) & self.counting
        return list(bits(wanted & ~_mask(maximum_matching([row & wanted for row in self.rows]))))


def _mask(partners: Partners) -> int:
    return union([1 << call for call in partners if call is not None])


_PROBLEMS = {
    "missing": "not called as expected",
    "beyond": "calls beyond the allowed ones",
    "unexpected": "unexpected calls were made",
    "ordering": "the order is wrong",
    "rounds": "the order of rounds is wrong",
    "repeated": "at_most_once: calls were made more often than they are expected",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDifferences:
    """How the calls differ from the expected calls: names of tools, and descriptions of wrong orders."""

    missing: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    rounds: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def extra(self) -> tuple[str, ...]:
        return self.beyond + self.unexpected + self.repeated

    @property
    def size(self) -> int:
        """Number of differences; the path with the fewest is the nearest."""
        return len(self.missing + self.extra + self.ordering + self.rounds)

    @property
    def problems(self) -> tuple[str, ...]:
        """Descriptions of all differences."""
        found = ((text, getattr(self, key)) for key, text in _PROBLEMS.items())
        return tuple(f"{text}: {', '.join(names)}" for text, names in found if names)


def min_differences(spec: Trajectory, assignment: Assignment) -> int:
    """Return a lower bound for the number of differences, without matching."""
    missing = 0 if spec.match_mode == "within" else sum(not row for row in assignment.rows)
    extra = assignment.counting & ~assignment.matched if spec.forbids_others else 0
    return missing + extra.bit_count()


def may_hold(spec: Trajectory, assignment: Assignment) -> bool:
    """Return False if the order is wrong, by a cheap test, because there may be many paths."""
    rows, groups = assignment.rows, assignment.groups
    if spec.match_mode == "strict":
        return exactly_in_order(rows, groups, assignment.counting)
    return spec.match_mode != "in_order" or count_in_order(rows, groups) == len(rows)


def compare_calls(spec: Trajectory, assignment: Assignment, view: CallView) -> CallDifferences:
    """Return the differences that remain whatever hidden calls were made."""
    if spec.match_mode == "within":
        beyond = bits(assignment.counting & ~assignment.matched)
        differences = CallDifferences(beyond=assignment.names_of(beyond))
    elif view.blind:
        differences = _differences_of_visible_calls(spec, assignment, view)
    elif spec.match_mode == "in_order":
        differences = _differences_in_order(spec, assignment)
    else:
        differences = _differences_of_assigned_calls(spec, assignment)
    if not spec.at_most_once or spec.match_mode in ("strict", "unordered"):  # reported as extra calls
        return differences
    return replace(differences, repeated=assignment.names_of(assignment.repeated()))


def _differences_of_visible_calls(
    spec: Trajectory, assignment: Assignment, view: CallView
) -> CallDifferences:
    rows, counting = assignment.rows, assignment.counting
    if spec.forbids_others and least_rows(rows, counting) is None:
        return CallDifferences(unexpected=assignment.names_of(assignment.missing_and_extra()[1]))
    differences = _differences_of_listed_calls(spec, assignment, view)
    if differences.size or spec.match_mode != "strict":
        return differences
    call = first_out_of_place(rows, assignment.groups, counting)
    if call is None:
        return differences
    name = f"{assignment.calls[call].name} (call {call + 1})"
    return CallDifferences(ordering=(f"{name} is not expected after the calls before it",))


def _differences_of_listed_calls(spec: Trajectory, assignment: Assignment, view: CallView) -> CallDifferences:
    slots = assignment.slots
    rows = [row for row, slot in enumerate(slots) if view.lists(each.name for each in slot)]
    listed = replace(
        assignment, slots=[slots[row] for row in rows], rows=tuple(assignment.rows[row] for row in rows)
    )
    if spec.is_ordered:
        return _differences_in_order(spec, listed)
    return CallDifferences(missing=listed.names_of_slots(listed.missing_and_extra()[0]))


def _differences_in_order(spec: Trajectory, assignment: Assignment) -> CallDifferences:
    at = count_in_order(assignment.rows, assignment.groups)
    if at == len(assignment.rows):
        return CallDifferences()
    missing = assignment.missing_and_extra(ordered=True)[0]
    if missing:
        return CallDifferences(missing=assignment.names_of_slots(missing))
    late, before = slot_text(assignment.slots[at]), slot_text(assignment.slots[at - 1])
    return _disordered(spec, [f"{late} was expected after {before}, but came only before it"])


def _differences_of_assigned_calls(spec: Trajectory, assignment: Assignment) -> CallDifferences:
    mode = spec.match_mode
    if mode == "strict" and exactly_in_order(assignment.rows, assignment.groups, assignment.counting):
        return CallDifferences()
    rows, calls = assignment.missing_and_extra(ordered=spec.is_ordered)
    unexpected = () if mode == "contains" else assignment.names_of(calls)
    if mode != "strict" or rows or unexpected:
        return CallDifferences(missing=assignment.names_of_slots(rows), unexpected=unexpected)
    return _disordered(spec, _ordering_issues(assignment))


def _disordered(spec: Trajectory, issues: Iterable[str]) -> CallDifferences:
    return CallDifferences(**{"rounds" if spec.rounds else "ordering": tuple(issues)})


def _ordering_issues(assignment: Assignment) -> list[str]:
    paired = _mask(assignment.partners(ordered=True))
    issues: list[str] = []
    begin = 0
    for group in assignment.groups:
        mask = group & paired
        calls = list(bits(mask))
        matching = Matching([row & mask for row in assignment.rows[begin : begin + len(calls)]])
        rows = [begin + row for row in range(len(calls)) if not matching.add(row)]
        others = [call for call in calls if not matching.taken >> call & 1]
        for row, call in zip(rows, others, strict=True):
            name, wanted = assignment.calls[call].name, slot_name(assignment.slots[row])
            other = " with other arguments" if name == wanted else ""
            issues.append(f"call {call + 1} was {name}, expected {wanted}{other}")
        begin += len(calls)
    return issues


def failed_options(assignment: Assignment, facts: CallFacts) -> tuple[str, ...]:
    """Return why calls do not count as an expected call: the option that failed (`nth`, …)."""
    options: list[str] = []
    for row, slot in enumerate(assignment.slots):
        if len(slot) != 1 or assignment.rows[row]:
            continue
        expected, name = slot[0], name_text(slot[0].name)
        misplaced = facts.misplaced.get(id(expected), 0)
        calls = misplaced or facts.only_failed(expected)
        numbers = ", ".join(f"call {call + 1}" for call in islice(bits(calls), 3))
        if misplaced and expected.nth is not None:
            options.append(f"{place_text(expected.nth)}: {name} came as {numbers}")
        elif any(facts.calls[call].outcome is ToolOutcome.WAITING for call in bits(calls)):
            options.append(f"{name} waits for the user's approval ({numbers})")
        elif calls & facts.unreadable:
            options.append(f"{name} came without readable arguments ({numbers})")
        elif calls:
            options.append(f"ignore_failed: {name} was answered with an error ({numbers})")
    return tuple(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDifferences:
    """Violations of these requirements."""

    forbidden: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    requirements: int = 0  # number of requirements: each forbidden entry, each limit, each order
    unmet: int = 0
    too_few: bool = False  # True if `min_calls` is not met
    misplaced: Mapping[int, str] = field(default_factory=dict)
    """Call → a description of the order that it breaks."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Descriptions of all violations."""
        made = ("forbidden calls were made: " + ", ".join(self.forbidden),) if self.forbidden else ()
        return (*made, *self.broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The differences from the trajectory, by the path that fits best."""

    assignment: Assignment | None  # None: no calls are expected
    calls: CallDifferences
    limits: LimitDifferences
    hints: tuple[str, ...] = ()  # options that prevent calls from matching missing expected calls

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.calls.problems, *self.hints, *self.limits.problems)

    @property
    def holds(self) -> bool:
        return not self.problems


def check_limits(
    spec: Trajectory, facts: CallFacts, turns: int, view: CallView, *, best: bool
) -> LimitDifferences:
    """Return the violations of bans, limits and orders, with unknowns decided for the trajectory or not."""
    banned = [facts.banned[id(each)].surely(best) for each in spec.forbidden]
    limits = list(_exceeded_limits(spec, facts, turns, view, best=best))
    problems = (
        broken_order(order, facts, best=best, blind=view.may_hide(names_in(order.first)))
        for order in spec.orders
    )
    orders = [each for each in problems if each]
    return LimitDifferences(
        forbidden=tuple(facts.calls[call].name for call in bits(union(banned))),
        broken=(*(text for _, text in limits), *(text for _, text in orders)),
        requirements=len(spec.forbidden) + _count_limits(spec) + len(spec.orders),
        unmet=sum(map(bool, banned)) + len({key for key, _ in limits}) + len(orders),
        too_few="min_calls" in dict(limits),
        misplaced=dict(reversed(orders)),
    )


def _count_limits(spec: Trajectory) -> int:
    per_tool = spec.max_calls_per_tool
    of_tools = len(per_tool) if isinstance(per_tool, Mapping) else int(per_tool is not None)
    return sum(each is not None for each in (spec.max_calls, spec.max_turns, spec.min_calls)) + of_tools


def _exceeded_limits(
    spec: Trajectory, facts: CallFacts, turns: int, view: CallView, *, best: bool
) -> Iterator[tuple[str, str]]:
    upper, lower = (facts.counting(fewest).bit_count() for fewest in (best, not best))
    if spec.max_calls is not None and upper > spec.max_calls:
        yield "max_calls", f"{_calls_made_text(upper, facts)}, at most {spec.max_calls} are allowed"
    may_have_more = bool(view.blind) or not view.complete
    if spec.min_calls is not None and lower < spec.min_calls and not may_have_more:
        least = count(spec.min_calls, "call")
        yield "min_calls", f"{_calls_made_text(lower, facts)}, at least {least} are needed"
    if spec.max_turns is not None and turns > spec.max_turns:
        yield ("max_turns", f"the conversation took {turns} turns, at most {spec.max_turns} are allowed")
    per_tool = facts.counting_by_tool(best) if spec.max_calls_per_tool is not None else 0
    for tool, made in Counter(facts.calls[at].name for at in bits(per_tool)).items():
        key, limit = spec.limit_entry_of(tool) or ("", made)
        if made > limit:
            text = f"{tool} was called {count(made, 'time')}, at most {limit} are allowed"
            yield f"max_calls_per_tool.{key}", text


def _calls_made_text(made: int, facts: CallFacts) -> str:
    free = len(facts.calls) - made
    text = f"{count(made, 'call')} {'was' if made == 1 else 'were'} made"
    return f"{text} ({free} more {'is' if free == 1 else 'are'} free)" if free else text


def over_limits(spec: Trajectory, facts: CallFacts) -> dict[int, str]:
    """Return a mapping from a call to a description of the limit that it certainly exceeds."""
    over: dict[int, str] = {}
    if spec.max_calls is None and spec.max_calls_per_tool is None:
        return over
    made: Counter[str] = Counter()
    for at in bits(facts.counting_by_tool(True)):
        call = facts.calls[at]
        made[call.name] += 1
        _, limit = spec.limit_entry_of(call.name) or ("", made[call.name])
        if made[call.name] > limit:
            over[at] = f"call {made[call.name]} of {call.name}, at most {limit} are allowed"
    for number, at in enumerate(bits(facts.counting(True)), 1):
        if spec.max_calls is not None and number > spec.max_calls:
            over.setdefault(at, f"call {number}, at most {spec.max_calls} are allowed")
    return over


def broken_order(
    order: CallOrder, facts: CallFacts, *, best: bool, blind: bool = False, groups: Sequence[int] = ()
) -> tuple[int, str] | None:
    """Return the first call that breaks an order, with a description; None if none does."""

    def text(call: int) -> str:
        return f"{facts.calls[call].name} (call {call + 1})"

    known_first, known_then = (facts.cell(tuple(calls_in((step,)))) for step in (order.first, order.then))
    then = known_then.surely(best)
    if order.kind == "before":
        if blind:  # the first call may have been hidden
            return None
        first = known_first.surely(not best)
        for group in groups or (facts.fine if best else facts.coarse):
            if group & then:
                call = next(bits(group & then))
                return call, f"before: {text(call)} without {step_text(order.first)} before it"
            if group & first:
                return None
        return None
    first, since = known_first.surely(best), None
    for group in groups or (facts.coarse if best else facts.fine):
        if since is not None and group & first:
            call = next(bits(group & first))
            return call, f"never_after: {text(call)} came after {text(since)}"
        if since is None and group & then:
            since = next(bits(group & then))
    return None


def breakable_by_hidden_calls(spec: Trajectory, view: CallView) -> Iterator[str]:
    """Yield descriptions of the requirements that a hidden call could break."""
    if spec.expected is not None:
        if spec.forbids_others:
            yield f"match_mode: {spec.match_mode}"
        elif spec.at_most_once:
            yield from _open_requirement("at_most_once", _expected_names(spec), view)
    yield from _open_requirement("forbidden", (call.name for call in spec.forbidden), view)
    if spec.max_calls is not None:
        yield "max_calls"
    limits = spec.max_calls_per_tool
    if isinstance(limits, Mapping):
        yield from _open_requirement("max_calls_per_tool", limits, view)
    elif limits is not None:
        yield "max_calls_per_tool"
    for order in spec.orders:
        # With `before`, a hidden first call breaks nothing.
        steps = (order.then,) if order.kind == "before" else (order.first, order.then)
        yield from _open_requirement(order.kind, (name for step in steps for name in names_in(step)), view)


def meetable_by_hidden_calls(spec: Trajectory, view: CallView) -> Iterator[str]:
    """Yield descriptions of the requirements that a hidden call could meet."""
    yield from _open_requirement("expected", _expected_names(spec), view)
    if spec.min_calls is not None:
        yield "min_calls"
    for order in spec.orders:
        if order.kind == "before":
            yield from _open_requirement("before", names_in(order.first), view)


def _expected_names(spec: Trajectory) -> Iterator[ToolName]:
    return (call.name for call in calls_in(spec.expected or ()))


def _open_requirement(key: str, names: Iterable[ToolName], view: CallView) -> Iterator[str]:
    open_names = dict.fromkeys(name_text(name) for name in names if not view.lists([name]))
    if open_names:
        yield f"{key}: {', '.join(open_names)}"
