"""Check the requirements of a trajectory that are independent of expected calls: forbidden calls, limits,
orders. Also finds the requirements that hidden calls could break or meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from agentest.scenarios.calls import CallOrder, ToolName, name_text, names_in
from agentest.scenarios.trajectory import Trajectory, calls_in
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import count
from agentest.trajectory.assignment import Assignment, CallDifferences
from agentest.trajectory.call_facts import CallFacts, CallView
from agentest.trajectory.expected_text import step_text
from agentest.trajectory.matching import bits, union


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitDifferences:
    """Violations of these requirements."""

    forbidden: tuple[str, ...] = ()
    """The names of forbidden calls that were made."""
    broken: tuple[str, ...] = ()
    """Descriptions of broken limits and orders."""
    requirements: int = 0
    """Number of requirements: each forbidden entry, each limit, each order."""
    unmet: int = 0
    misplaced: Mapping[int, str] = field(default_factory=dict)
    """Call → a description of the order that it breaks."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Descriptions of all violations."""
        made = ("forbidden calls were made: " + ", ".join(self.forbidden),) if self.forbidden else ()
        return (*made, *self.broken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What differs from the trajectory, by the path that fits best."""

    assignment: Assignment | None
    """None: no calls are expected."""
    calls: CallDifferences
    limits: LimitDifferences
    hints: tuple[str, ...] = ()
    """Options that prevent calls from matching missing expected calls."""

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
        misplaced=dict(reversed(orders)),
    )


def _count_limits(spec: Trajectory) -> int:
    per_tool = spec.max_calls_per_tool
    of_tools = len(per_tool) if isinstance(per_tool, Mapping) else int(per_tool is not None)
    return sum(each is not None for each in (spec.max_calls, spec.max_turns, spec.min_calls)) + of_tools


def _exceeded_limits(
    spec: Trajectory, facts: CallFacts, turns: int, view: CallView, *, best: bool
) -> Iterator[tuple[str, str]]:
    """Yield a key of each exceeded limit, and a description."""
    upper, lower = (facts.counting(fewest).bit_count() for fewest in (best, not best))
    if spec.max_calls is not None and upper > spec.max_calls:
        yield "max_calls", f"{_calls_made_text(upper, facts)}, at most {spec.max_calls} are allowed"
    may_have_more = bool(view.blind) or not view.complete
    if spec.min_calls is not None and lower < spec.min_calls and not may_have_more:
        least = count(spec.min_calls, "call")
        yield "min_calls", f"{_calls_made_text(lower, facts)}, at least {least} are needed"
    if spec.max_turns is not None and turns > spec.max_turns:
        yield (
            "max_turns",
            f"the conversation took {turns} turns, at most {spec.max_turns} are allowed",
        )
    per_tool = spec.max_calls_per_tool is not None
    for tool, made in Counter(call.name for call in facts.calls if per_tool).items():
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
    for at, call in enumerate(facts.calls):
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
    first, then = (facts.cell(tuple(calls_in((step,)))) for step in (order.first, order.then))
    if order.kind == "before":
        if blind:  # the first call may have been hidden
            return None
        groups = groups or (facts.fine if best else facts.coarse)
        call = _first_without_before(groups, first.surely(not best), then.surely(best))
        if call is None:
            return None
        return call, f"before: {_call_text(facts, call)} without {step_text(order.first)} before it"
    groups = groups or (facts.coarse if best else facts.fine)
    late = _first_after(groups, first.surely(best), then.surely(best))
    if late is None:
        return None
    call, since = late
    return call, f"never_after: {_call_text(facts, call)} came after {_call_text(facts, since)}"


def _call_text(facts: CallFacts, call: int) -> str:
    return f"{facts.calls[call].name} (call {call + 1})"


def _first_without_before(groups: Sequence[int], first: int, then: int) -> int | None:
    """Return the first call of `then` without a call of `first` in an earlier group."""
    for group in groups:
        if group & then:
            return next(bits(group & then))
        if group & first:
            return None
    return None


def _first_after(groups: Sequence[int], first: int, then: int) -> tuple[int, int] | None:
    """Return the first call of `first` in a group after a call of `then`, and the latter."""
    since: int | None = None
    for group in groups:
        if since is not None and group & first:
            return next(bits(group & first)), since
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
