"""What a trajectory demands besides the calls that it expects: forbidden calls, limits, orders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentest.scenarios.calls import CallOrder, name_matches, names_in
from agentest.scenarios.trajectory import Trajectory, calls_in
from agentest.support.text import count
from agentest.trajectory.candidates import Listed, all_listed
from agentest.trajectory.expected_text import step_text
from agentest.trajectory.known_calls import Sightings
from agentest.trajectory.matching import bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Which of these demands are broken."""

    forbidden: tuple[str, ...] = ()
    """The names of forbidden calls that were made."""
    broken: tuple[str, ...] = ()
    """The limits and orders that are broken, in words."""
    demands: int = 0
    """How many there are: each forbidden entry, each limit, each order."""
    unmet: int = 0
    misplaced: Mapping[int, str] = field(default_factory=dict)
    """Call → the order that it breaks, in words."""

    @property
    def problems(self) -> tuple[str, ...]:
        """All that is broken, in words."""
        made = ("forbidden calls were made: " + ", ".join(self.forbidden),) if self.forbidden else ()
        return (*made, *self.broken)


def broken_bounds(
    spec: Trajectory,
    seen: Sightings,
    turns: int,
    *,
    best: bool,
    some: bool = False,
    blind: bool = False,
    listed: Listed = None,
) -> Bounds:
    """What of it is broken.

    Args:
        best: what is not known is taken for what the trajectory wants; else for the opposite.
        some: whether there may have been further calls after these; `blind`: anywhere, of tools that are not
            `listed`.
    """
    entries = [seen.banned[id(each)].surely(best) for each in spec.forbidden]
    hits = 0
    for entry in entries:
        hits |= entry
    forbidden = tuple(seen.calls[call].name for call in bits(hits))
    limits = _exceeded(spec, seen, turns, best=best, some=some or blind)
    found = [
        broken_order(order, seen, best=best, blind=blind and not all_listed(names_in(order.first), listed))
        for order in spec.orders
    ]
    orders = [each for each in found if each]
    return Bounds(
        forbidden=forbidden,
        broken=(*limits, *(words for _, words in orders)),
        demands=len(spec.forbidden) + _how_many_limits(spec) + len(spec.orders),
        unmet=sum(map(bool, entries)) + _unmet_limits(spec, limits, seen) + len(orders),
        misplaced=dict(reversed(orders)),
    )


def _how_many_limits(spec: Trajectory) -> int:
    per_tool = spec.max_calls_per_tool
    single = (spec.max_calls, spec.max_turns, spec.min_calls)
    of_tools = len(per_tool) if isinstance(per_tool, Mapping) else int(per_tool is not None)
    return sum(each is not None for each in single) + of_tools


def _unmet_limits(spec: Trajectory, problems: list[str], seen: Sightings) -> int:
    """How many limits are broken: one number for all tools is one of them."""
    over = _tools_over(spec, seen)
    return len(problems) - len(over) + len({key for key, _ in over.values()})


def _exceeded(spec: Trajectory, seen: Sightings, turns: int, *, best: bool, some: bool) -> list[str]:
    problems = []
    least, most = seen.counting(True).bit_count(), seen.counting(False).bit_count()
    upper, lower = (least, most) if best else (most, least)
    if spec.max_calls is not None and upper > spec.max_calls:
        problems.append(f"{_made(upper, seen)}, at most {spec.max_calls} are allowed")
    if spec.min_calls is not None and lower < spec.min_calls and not some:
        problems.append(f"{_made(lower, seen)}, at least {_calls(spec.min_calls)} are needed")
    if spec.max_turns is not None and turns > spec.max_turns:
        problems.append(f"the conversation took {turns} turns, at most {spec.max_turns} are allowed")
    for tool, (_, (made, limit)) in _tools_over(spec, seen).items():
        problems.append(f"{tool} was called {count(made, 'time')}, at most {limit} are allowed")
    return problems


def _calls(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"


def _made(count: int, seen: Sightings) -> str:
    free = len(seen.calls) - count
    words = f"{_calls(count)} {'was' if count == 1 else 'were'} made"
    return f"{words} ({free} more {'is' if free == 1 else 'are'} free)" if free else words


def _tools_over(spec: Trajectory, seen: Sightings) -> dict[str, tuple[str, tuple[int, int]]]:
    """Tool → the limit's key, how often it was called, and how often it may be."""
    over: dict[str, tuple[str, tuple[int, int]]] = {}
    if spec.max_calls_per_tool is None:
        return over
    for tool, made in Counter(call.name for call in seen.calls).items():
        found = limit_of(spec, tool)
        if found and made > found[1]:
            over[tool] = found[0], (made, found[1])
    return over


def limit_of(spec: Trajectory, tool: str) -> tuple[str, int] | None:
    """What limits a tool, and how often it may be called: its own name, else of the globs the least."""
    limits = spec.max_calls_per_tool
    if limits is None or not isinstance(limits, Mapping):
        return None if limits is None else ("", limits)
    if tool in limits:
        return tool, limits[tool]
    globs = [(limit, key) for key, limit in limits.items() if name_matches(key, tool)]
    return min(globs)[::-1] if globs else None


def broken_order(
    order: CallOrder,
    seen: Sightings,
    *,
    best: bool,
    blind: bool = False,
    groups: Sequence[int] = (),
) -> tuple[int, str] | None:
    """The first call that breaks an order, and how; None: none does."""
    first, then = (seen.cell(tuple(calls_in((step,)))) for step in (order.first, order.then))
    if order.kind == "before":
        if blind:  # what should be before may have been there unseen
            return None
        groups = groups or (seen.fine if best else seen.coarse)
        call = _without_before(groups, first.surely(not best), then.surely(best))
        if call is None:
            return None
        return call, f"before: {_call(seen, call)} without {step_text(order.first)} before it"
    groups = groups or (seen.coarse if best else seen.fine)
    late = _after(groups, first.surely(best), then.surely(best))
    if late is None:
        return None
    call, since = late
    return call, f"never_after: {_call(seen, call)} came after {_call(seen, since)}"


def _call(seen: Sightings, call: int) -> str:
    return f"{seen.calls[call].name} (call {call + 1})"


def _without_before(groups: Sequence[int], first: int, then: int) -> int | None:
    """The first call of `then` with none of `first` in an earlier group."""
    for group in groups:
        if group & then:
            return next(bits(group & then))
        if group & first:
            return None
    return None


def _after(groups: Sequence[int], first: int, then: int) -> tuple[int, int] | None:
    """The first call of `first` in a group after one of `then`, and that."""
    since: int | None = None
    for group in groups:
        if since is not None and group & first:
            return next(bits(group & first)), since
        if since is None and group & then:
            since = next(bits(group & then))
    return None


def over_limits(spec: Trajectory, seen: Sightings) -> dict[int, str]:
    """Call → the limit that it surely exceeds, in words."""
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
