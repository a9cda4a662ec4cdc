"""Calls held against a trajectory, with an answer for all that is not known of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from agentest.scenarios.alternatives import Path
from agentest.scenarios.trajectory import Trajectory
from agentest.trajectory.bounds import Bounds, broken_bounds
from agentest.trajectory.listed import Listed
from agentest.trajectory.matching import bits
from agentest.trajectory.modes import (
    FINE,
    Findings,
    compare,
    compare_some,
    may_hold,
    surely_wrong,
    words_missed,
)
from agentest.trajectory.sightings import Sightings
from agentest.trajectory.table import CallTable

_MOST_NEAR = 20
"""Paths among which the nearest is looked for, of those that may be near; fewer where they are long."""
_MOST_LOOKED_AT = 400_000
"""Pairs of expected calls and calls that are looked at for it."""
_MOST_WORLDS = 64
_MOST_CELLS = 400_000
"""Pairs of expected calls and calls that are looked at in all worlds together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the calls."""

    spec: Trajectory
    paths: tuple[Path, ...] | None
    """The ways to make the expected calls; None: it says nothing of single calls."""
    turns: int
    complete: bool
    blind: bool
    """Whether there may have been further calls, of tools that are not `listed`."""
    listed: Listed = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was found of the calls, by the path that is nearest to them."""

    table: CallTable | None
    found: Findings
    bounds: Bounds
    hints: tuple[str, ...] = ()
    """Which word keeps calls from being the expected ones that are missing."""

    @property
    def problems(self) -> tuple[str, ...]:
        return (*self.found.problems, *self.hints, *self.bounds.problems)

    @property
    def holds(self) -> bool:
        return not self.problems


def judged(question: Question, seen: Sightings, *, best: bool, groups: Sequence[int] = ()) -> Judged:
    """What is wrong with the calls.

    Each demand is judged for itself: with `best`, what is not known is taken for what that demand wants, so
    that what fails fails whatever is not known; without it for the opposite, so that what holds holds.
    """
    table, found = _nearest(question, seen, best=best, groups=groups)
    bounds = broken_bounds(
        question.spec,
        seen,
        question.turns,
        best=best,
        some=not question.complete,
        blind=question.blind,
        listed=question.listed,
    )
    hints = words_missed(table, seen) if table and found.problems else ()
    return Judged(table=table, found=found, bounds=bounds, hints=hints)


def _nearest(
    question: Question, seen: Sightings, *, best: bool, groups: Sequence[int]
) -> tuple[CallTable | None, Findings]:
    """The first path that holds, else the one of which least is wrong."""
    if question.paths is None:
        return None, FINE
    wrong: list[tuple[int, int, CallTable]] = []
    compared = partial(compare_some, listed=question.listed) if question.blind else compare
    for at, path in enumerate(question.paths):
        table = CallTable.of(path, seen, best=best, groups=groups)
        least = 0 if question.blind else surely_wrong(question.spec, table)
        able = question.blind or (not least and may_hold(question.spec, table))
        if able and not (found := compared(question.spec, table)).problems:
            return table, found
        wrong.append((least, at, table))
    looks = 1 + len(seen.calls) * max(map(len, question.paths), default=0)
    most = max(1, min(_MOST_NEAR, _MOST_LOOKED_AT // looks))
    near = sorted(wrong, key=lambda each: each[:2])[:most]
    pairs = [(table, compared(question.spec, table)) for _, _, table in near]
    return min(pairs, key=lambda pair: pair[1].size)


def whatever_is_so(question: Question, seen: Sightings) -> Judged | None:
    """What is found in every case that may be, where that is the same: all fail, or all hold; else None.

    Demands may want opposite answers, and one path may do where another does not: then no single answer is
    the best. Where few things are not known, all answers are tried.
    """
    found: Judged | None = None
    for world in _worlds(seen, question):
        best = judged(question, world, best=True)
        if found and best.holds is not found.holds:
            return None
        if best.holds and not judged(question, world, best=False).holds:
            return None
        found = best if found is None or len(best.problems) < len(found.problems) else found
    return found


def _worlds(seen: Sightings, question: Question) -> Iterator[Sightings]:
    """What may be so, where it is little."""
    unknown = [*seen.open_cells, *bits(seen.free.maybe | seen.failed.maybe)]
    worlds = 1 << min(len(unknown), 30)
    looks = worlds * sum(map(len, question.paths or ())) * len(seen.calls)
    if worlds > _MOST_WORLDS or looks > _MOST_CELLS or seen.names_untold:
        return
    for answers in product((True, False), repeat=len(unknown)):
        yield seen.decided(dict(zip(unknown, answers, strict=True)))
