"""Shards: the parts of a run that is split over several machines, and merged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

_FORM = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Which part of a run, of how many; they are counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What a shard is part of. Shards of one run differ in number and scenarios alone."""

    shard: Shard
    split_by: str
    """What the scenarios were split by: numbers of conversations, or the durations of which run."""
    plan: str
    """The same only where all scenarios, their agents, files and numbers of conversations are the same."""
    made_of: str
    """The same only where the contents of files and the configuration are the same, too."""
    scenarios: Mapping[str, int]
    """The scenarios of this shard → their places among those of the whole run, from 0."""
    whole: int
    """How many scenarios the whole run has."""
    filtered: bool = False
    """Whether filters had chosen the scenarios of the whole run."""


def parse_shard(text: str) -> Shard:
    """What the command line says. Raises ValueError."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"expected K/N, part K of N parts, like 1/4; found {text!r}")
    number, of = int(found[1]), int(found[2])
    if of < 1:
        raise ValueError(f"{text}: there must be at least one part, as in 1/1")
    if not 1 <= number <= of:
        raise ValueError(
            f"{text}: of {of} {'parts' if of > 1 else 'part'} there is none with number {number}; "
            f"they are counted from 1/{of} to {of}/{of}"
        )
    return Shard(number=number, of=of)


def split(costs: Sequence[int], of: int) -> list[int]:
    """In which shard, from 1, each of the costs is: the largest first, each where least is to be done yet.

    The same everywhere for the same costs. The first shard has something to do if any has.
    """
    shards = [(0, 0, number) for number in range(1, of + 1)]
    heapify(shards)
    found = [0] * len(costs)
    for place in sorted(range(len(costs)), key=lambda place: -costs[place]):
        cost, held, found[place] = shards[0]
        heapreplace(shards, (cost + costs[place], held + 1, found[place]))
    return found
