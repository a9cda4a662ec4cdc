"""Shards: the parts of a run that is split over several machines and merged later."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

from agentest.support.lazy_dataclasses import dataclass

_FORM = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The number of a shard and the total number of shards, counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedRun:
    """The run that a shard belongs to. The shards of one run differ only in number and scenarios."""

    shard: Shard
    split_by: str  # the basis of the split: numbers of conversations, or the durations of an earlier run
    plan: str  # a hash of all scenarios, their agents, files and numbers of conversations
    made_of: str  # a hash that also covers the contents of files and the configuration
    scenarios: Mapping[str, int]
    """The scenarios of this shard → their positions among those of the whole run, from 0."""
    whole: int
    filtered: bool = False


def parse_shard(text: str) -> Shard:
    """Parse the value of the command line. Raises ValueError."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected K/N, part K of N parts, like 1/4; found {text!r}")
    number, total = int(match[1]), int(match[2])
    if total < 1:
        raise ValueError(f"{text}: there must be at least one part, as in 1/1")
    if not 1 <= number <= total:
        raise ValueError(
            f"{text}: the parts of {total} are 1/{total}{f' to {total}/{total}' if total > 1 else ''}"
        )
    return Shard(number=number, of=total)


def split(costs: Sequence[int], total: int) -> list[int]:
    """Assign each cost to a shard, from 1: the largest costs first, each to the shard with the least work."""
    shards = [(0, 0, number) for number in range(1, total + 1)]
    heapify(shards)
    assigned = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        cost, size, assigned[index] = shards[0]
        heapreplace(shards, (cost + costs[index], size + 1, assigned[index]))
    return assigned
