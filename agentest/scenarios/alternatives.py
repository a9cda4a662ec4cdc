"""The ways in which a list of expected calls can be met: one for each choice among its alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product
from math import prod

from agentest.scenarios.calls import AnyOf, ExpectedCall, Step

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
