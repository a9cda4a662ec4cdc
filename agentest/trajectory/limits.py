"""Check the requirements of a trajectory that are independent of expected calls: forbidden calls, limits,
orders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentest.scenarios.calls import CallOrder, name_matches, names_in
from agentest.scenarios.trajectory import Trajectory, calls_in
from agentest.support.text import count
from agentest.trajectory.candidates import VisibleTools, are_always_visible
from agentest.trajectory.expected_text import step_text
from agentest.trajectory.known_calls import CallKnowledge
from agentest.trajectory.matching import bits


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitFindings:
    """Violations of these requirements."""

    forbidden: tuple[str, ...] = ()
    """The names of forbidden calls that were made."""
    broken: tuple[str, ...] = ()
    """Descriptions of broken limits and orders."""
    demands: int = 0
    """Number of requirements: each forbidden entry, each limit, each order."""
    unmet: int = 0
    misplaced: Mapping[int, str] = field(default_factory=dict)
    """Call → a description of the order that it breaks."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Descriptions of all violations."""
        made = ("forbidden calls were made: " + ", ".join(self.forbidden),) if self.forbidden else ()
        return (*made, *self.broken)


def check_limits(
    spec: Trajectory,
    seen: CallKnowledge,
    turns: int,
    *,
    best: bool,
    some: bool = False,
    blind: bool = False,
    listed: VisibleTools = None,
) -> LimitFindings:
    """Return the violations of forbidden calls, limits and orders.

    Args:
        turns: number of turns, for `max_turns`.
        best: True to decide unknowns in favor of the trajectory, False against it.
        some: True if further calls may have followed.
        blind: True if there may be hidden calls of tools that are not `listed`.
    """
    entries = [seen.banned[id(each)].surely(best) for each in spec.forbidden]
    hits = 0
    for entry in entries:
        hits |= entry
    forbidden = tuple(seen.calls[call].name for call in bits(hits))
    limits = _exceeded_limits(spec, seen, turns, best=best, some=some or blind)
    found = [
        broken_order(
            order, seen, best=best, blind=blind and not are_always_visible(names_in(order.first), listed)
        )
        for order in spec.orders
    ]
    orders = [each for each in found if each]
    return LimitFindings(
        forbidden=forbidden,
        broken=(*limits, *(words for _, words in orders)),
        demands=len(spec.forbidden) + _count_limits(spec) + len(spec.orders),
        unmet=sum(map(bool, entries)) + _count_unmet_limits(spec, limits, seen) + len(orders),
        misplaced=dict(reversed(orders)),
    )


def _count_limits(spec: Trajectory) -> int:
    per_tool = spec.max_calls_per_tool
    single = (spec.max_calls, spec.max_turns, spec.min_calls)
    of_tools = len(per_tool) if isinstance(per_tool, Mapping) else int(per_tool is not None)
    return sum(each is not None for each in single) + of_tools


def _count_unmet_limits(spec: Trajectory, problems: list[str], seen: CallKnowledge) -> int:
    """Count broken limits; one number for all tools is one limit."""
    over = _tools_over(spec, seen)
    return len(problems) - len(over) + len({key for key, _ in over.values()})


def _exceeded_limits(
    spec: Trajectory, seen: CallKnowledge, turns: int, *, best: bool, some: bool
) -> list[str]:
    problems = []
    least, most = seen.counting(True).bit_count(), seen.counting(False).bit_count()
    upper, lower = (least, most) if best else (most, least)
    if spec.max_calls is not None and upper > spec.max_calls:
        problems.append(f"{_calls_made_text(upper, seen)}, at most {spec.max_calls} are allowed")
    if spec.min_calls is not None and lower < spec.min_calls and not some:
        problems.append(f"{_calls_made_text(lower, seen)}, at least {_calls_text(spec.min_calls)} are needed")
    if spec.max_turns is not None and turns > spec.max_turns:
        problems.append(f"the conversation took {turns} turns, at most {spec.max_turns} are allowed")
    for tool, (_, (made, limit)) in _tools_over(spec, seen).items():
        problems.append(f"{tool} was called {count(made, 'time')}, at most {limit} are allowed")
    return problems


def _calls_text(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"


def _calls_made_text(count: int, seen: CallKnowledge) -> str:
    free = len(seen.calls) - count
    words = f"{_calls_text(count)} {'was' if count == 1 else 'were'} made"
    return f"{words} ({free} more {'is' if free == 1 else 'are'} free)" if free else words


def _tools_over(spec: Trajectory, seen: CallKnowledge) -> dict[str, tuple[str, tuple[int, int]]]:
    """Return a mapping from a tool to its limit's key, the number of calls, and the limit."""
    over: dict[str, tuple[str, tuple[int, int]]] = {}
    if spec.max_calls_per_tool is None:
        return over
    for tool, made in Counter(call.name for call in seen.calls).items():
        found = limit_of(spec, tool)
        if found and made > found[1]:
            over[tool] = found[0], (made, found[1])
    return over


def limit_of(spec: Trajectory, tool: str) -> tuple[str, int] | None:
    """Return the key and value of a tool's limit: its own name, else the lowest of the matching globs."""
    limits = spec.max_calls_per_tool
    if limits is None or not isinstance(limits, Mapping):
        return None if limits is None else ("", limits)
    if tool in limits:
        return tool, limits[tool]
    globs = [(limit, key) for key, limit in limits.items() if name_matches(key, tool)]
    return min(globs)[::-1] if globs else None


def broken_order(
    order: CallOrder,
    seen: CallKnowledge,
    *,
    best: bool,
    blind: bool = False,
    groups: Sequence[int] = (),
) -> tuple[int, str] | None:
    """Return the first call that breaks an order, with a description; None if none does."""
    first, then = (seen.cell(tuple(calls_in((step,)))) for step in (order.first, order.then))
    if order.kind == "before":
        if blind:  # the first call may have been hidden
            return None
        groups = groups or (seen.fine if best else seen.coarse)
        call = _without_before(groups, first.surely(not best), then.surely(best))
        if call is None:
            return None
        return call, f"before: {_call_text(seen, call)} without {step_text(order.first)} before it"
    groups = groups or (seen.coarse if best else seen.fine)
    late = _first_after(groups, first.surely(best), then.surely(best))
    if late is None:
        return None
    call, since = late
    return call, f"never_after: {_call_text(seen, call)} came after {_call_text(seen, since)}"


def _call_text(seen: CallKnowledge, call: int) -> str:
    return f"{seen.calls[call].name} (call {call + 1})"


def _without_before(groups: Sequence[int], first: int, then: int) -> int | None:
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


def over_limits(spec: Trajectory, seen: CallKnowledge) -> dict[int, str]:
    """Return a mapping from a call to a description of the limit that it certainly exceeds."""
    over: dict[int, str] = {}
    made: Counter[str] = Counter()
    counting = list(bits(seen.counting(True)))
    for call, each in enumerate(seen.calls):
        made[each.name] += 1
        found = limit_of(spec, each.name)
        if found and made[each.name] > found[1]:
            over[call] = f"call {made[each.name]} of {each.name}, at most {found[1]} are allowed"
    if spec.max_calls is not None:
        for number, call in enumerate(counting[spec.max_calls :], spec.max_calls + 1):
            over.setdefault(call, f"call {number}, at most {spec.max_calls} are allowed")
    return over
