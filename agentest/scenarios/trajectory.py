"""The trajectory value: which tool calls a conversation, or one turn, must contain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, product
from math import prod
from typing import Literal

from agentest.scenarios.calls import (
    AnyOf,
    CallOrder,
    ExpectedCall,
    Step,
    ToolName,
    is_one_tool,
    name_matches,
    names_in,
)
from agentest.support.lazy_dataclasses import dataclass

MatchMode = Literal["strict", "unordered", "contains", "in_order", "within"]
MATCH_MODES = ("strict", "unordered", "contains", "in_order", "within")
MOST_PATHS = 1_000


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Required, allowed and forbidden tool calls."""

    match_mode: MatchMode = "strict"
    expected: tuple[Step, ...] | None = None
    """None: the match mode allows any calls."""
    forbidden: tuple[ExpectedCall, ...] = ()
    max_calls: int | None = None
    max_turns: int | None = None
    max_calls_per_tool: int | Mapping[str, int] | None = None
    """Limit for each tool; names in a mapping may be globs, and an exact name has priority."""
    name: str = ""
    min_calls: int | None = None
    ignore_failed: bool = False
    """True if calls answered with an error are free. They then match only expected calls with a `result`."""
    reads: tuple[ToolName, ...] = ()
    """Tools whose calls are free."""
    at_most_once: bool = False
    """True if each expected call may be made at most once, even if the mode allows repetition."""
    rounds: bool = False
    """True if the order is free within one message of the agent, and fixed between messages."""
    orders: tuple[CallOrder, ...] = ()
    writes: bool = field(default=False, compare=False)
    """True if the expected calls were given as `expected_writes`."""

    @property
    def about_calls(self) -> bool:
        """True if it has requirements about calls, not only `max_turns`."""
        limits = (self.expected, self.max_calls, self.max_calls_per_tool, self.min_calls)
        return bool(self.forbidden or self.orders) or any(each is not None for each in limits)

    @property
    def is_ordered(self) -> bool:
        """True if the mode requires an order."""
        return self.match_mode in ("strict", "in_order")

    @property
    def forbids_others(self) -> bool:
        """True if the mode forbids calls that count and are not expected."""
        return self.match_mode in ("strict", "unordered", "within")

    @property
    def named_tools(self) -> frozenset[str]:
        """Tools that it mentions by name, without globs and patterns."""
        wanted = [name for step in self.expected or () for name in names_in(step)]
        named = (*wanted, *self.reads, *self.banned_tools)
        return frozenset(name for name in named if isinstance(name, str) and is_one_tool(name))

    @property
    def banned_tools(self) -> frozenset[ToolName]:
        """Tools that are forbidden, limited or ordered, some by glob or pattern.

        Hidden calls of these tools break nothing.
        """
        return frozenset(self._banned())

    def _banned(self) -> Iterator[ToolName]:
        for each in self.forbidden:
            yield each.name
        for order in self.orders:
            yield from names_in(order.first)
            yield from names_in(order.then)
        if isinstance(self.max_calls_per_tool, Mapping):
            yield from self.max_calls_per_tool

    @property
    def without_calls(self) -> Trajectory:
        """A trajectory with only the requirements that are not about calls."""
        return Trajectory(self.match_mode, max_turns=self.max_turns, name=self.name)

    def limit_of(self, tool: str) -> int | None:
        """Return the maximum number of calls of a tool; None: unlimited."""
        entry = self.limit_entry_of(tool)
        return entry[1] if entry else None

    def limit_entry_of(self, tool: str) -> tuple[str, int] | None:
        """Return the key and value of a tool's limit: its own name, else the lowest of the matching globs.

        The key is "" if one limit applies to every tool; None: unlimited.
        """
        limits = self.max_calls_per_tool
        if limits is None or not isinstance(limits, Mapping):
            return None if limits is None else ("", limits)
        if tool in limits:
            return tool, limits[tool]
        globs = [(limit, key) for key, limit in limits.items() if name_matches(key, tool)]
        return min(globs)[::-1] if globs else None


Slot = tuple[ExpectedCall, ...]
"""Alternatives for one call."""
Path = tuple[Slot, ...]


def paths_of(expected: Sequence[Step]) -> tuple[Path, ...]:
    """Return all paths, each with a slot for every expected call; one path without longer alternatives."""
    return tuple(_joined_paths(expected))


def how_many_paths(expected: Sequence[Step]) -> int:
    """Return an upper bound for the number of paths without building them."""
    return prod(map(_count_paths, expected))


def _joined_paths(steps: Sequence[Step]) -> Iterator[Path]:
    for choice in product(*map(_paths_of_step, steps)):
        yield tuple(chain.from_iterable(choice))


def _paths_of_step(step: Step) -> list[Path]:
    """Return the paths of one step; alternatives of one call each share a slot."""
    if isinstance(step, ExpectedCall):
        return [((step,),)]
    ways = [joined for path in step.paths for joined in _joined_paths(path)]
    slot = tuple(chain.from_iterable(joined[0] for joined in ways if len(joined) == 1))
    return [*([(slot,)] if slot else []), *(joined for joined in ways if len(joined) != 1)]


def _count_paths(step: Step) -> int:
    if isinstance(step, ExpectedCall) or step.single is not None:
        return 1
    single, counts = False, 0
    for path in step.paths:
        if len(path) == 1 and (isinstance(path[0], ExpectedCall) or path[0].single is not None):
            single = True
        else:
            counts += how_many_paths(path)
    return counts + single


def calls_in(steps: Sequence[Step]) -> Iterator[ExpectedCall]:
    """Yield all calls in a list, including alternatives."""
    for step in steps:
        if isinstance(step, AnyOf):
            for path in step.paths:
                yield from calls_in(path)
        else:
            yield step
