"""Which tool calls a conversation, or one turn, must hold: the value that scenario files are read into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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

MatchMode = Literal["strict", "unordered", "contains", "in_order", "within"]
MATCH_MODES = ("strict", "unordered", "contains", "in_order", "within")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Which tool calls must, may and must not be made."""

    match_mode: MatchMode = "strict"
    expected: tuple[Step, ...] | None = None
    """None: any calls will do as far as the match mode is concerned."""
    forbidden: tuple[ExpectedCall, ...] = ()
    max_calls: int | None = None
    max_turns: int | None = None
    max_calls_per_tool: int | Mapping[str, int] | None = None
    """For each tool alone; names of the mapping may be globs, and a tool's own name outranks them."""
    name: str = ""
    min_calls: int | None = None
    ignore_failed: bool = False
    """Whether a call that was answered with an error is free. It meets no expected call then, but one that
    says `result`."""
    reads: tuple[ToolName, ...] = ()
    """Tools whose calls are free."""
    at_most_once: bool = False
    """Whether each expected call may be made at most once, where the mode lets it be made again."""
    rounds: bool = False
    """Whether the order is free inside one message of the agent, and fixed between messages."""
    orders: tuple[CallOrder, ...] = ()
    writes: bool = field(default=False, compare=False)
    """Whether the expected calls were given as `expected_writes`."""

    @property
    def about_calls(self) -> bool:
        """Whether it says anything of calls: one of `max_turns` alone does not."""
        limits = (self.expected, self.max_calls, self.max_calls_per_tool, self.min_calls)
        return bool(self.forbidden or self.orders) or any(each is not None for each in limits)

    @property
    def named_tools(self) -> frozenset[str]:
        """The tools of which it speaks by name; a glob or a pattern is none."""
        wanted = [name for step in self.expected or () for name in names_in(step)]
        named = (*wanted, *self.reads, *self.banned_tools)
        return frozenset(name for name in named if isinstance(name, str) and is_one_tool(name))

    @property
    def banned_tools(self) -> frozenset[ToolName]:
        """The tools that are forbidden, limited or put in order, some by glob or pattern.

        What is not seen of them breaks nothing.
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
        """What it says of anything but calls."""
        return Trajectory(self.match_mode, max_turns=self.max_turns, name=self.name)

    def limit_of(self, tool: str) -> int | None:
        """How often a tool may be called at most; None: as often as one likes."""
        limits = self.max_calls_per_tool
        if not isinstance(limits, Mapping):
            return limits
        if tool in limits:
            return limits[tool]
        return min((most for name, most in limits.items() if name_matches(name, tool)), default=None)


MOST_PATHS = 1_000
Slot = tuple[ExpectedCall, ...]
"""What one call has to be: any of these."""
Path = tuple[Slot, ...]


def paths_of(expected: Sequence[Step]) -> tuple[Path, ...]:
    """All paths, each a slot for every call that it expects. Without long alternatives it is one path."""
    return tuple(_joined(expected))


def how_many_paths(expected: Sequence[Step]) -> int:
    """How many `paths_of` makes at most, without making them."""
    return prod(map(_count, expected))


def _joined(steps: Sequence[Step]) -> Iterator[Path]:
    for choice in product(*map(_ways, steps)):
        yield tuple(chain.from_iterable(choice))


def _ways(step: Step) -> list[Path]:
    """The paths of one step; alternatives of one call each are one slot, so that they make no paths."""
    if isinstance(step, ExpectedCall):
        return [((step,),)]
    ways = [way for path in step.paths for way in _joined(path)]
    slot = tuple(chain.from_iterable(way[0] for way in ways if len(way) == 1))
    return [*([(slot,)] if slot else []), *(way for way in ways if len(way) != 1)]


def _count(step: Step) -> int:
    if isinstance(step, ExpectedCall) or step.single is not None:
        return 1
    single, counts = False, 0
    for path in step.paths:
        if _is_single(path):
            single = True
        else:
            counts += how_many_paths(path)
    return counts + single


def _is_single(path: Sequence[Step]) -> bool:
    return len(path) == 1 and (isinstance(path[0], ExpectedCall) or path[0].single is not None)


def calls_in(steps: Sequence[Step]) -> Iterator[ExpectedCall]:
    """All calls that stand in a list, those of alternatives too."""
    for step in steps:
        if isinstance(step, AnyOf):
            for path in step.paths:
                yield from calls_in(path)
        else:
            yield step
