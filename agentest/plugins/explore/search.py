"""The order of tries: what failed before, one of each cell, then what has shown the most for its cost.

A cell is a class of faults of a tool, a place for injections, or a mutation of a scenario. It is covered once
a try of it has reached the agent. What comes next depends on the seed, the corpus and the conversations so
far, in the order of tries. So it does not depend on how many run at once.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from agentest.domain.results.exploration import ExploredPart
from agentest.plugins.explore.corpus import CorpusEntry
from agentest.plugins.explore.model import Base, Variation, relaxed
from agentest.scenarios.mutations import MUTATIONS, SURROUNDING_MUTATIONS
from agentest.support.lazy_dataclasses import dataclass, replace

LEAST_ENERGY = 0.5  # combinations of less energy are not tried
MOST_COMBINED = 3
_PRIOR = 2.0  # the energy of what has not been tried
_MOST_UNREACHED = 2  # how many tries of a cell may miss the agent before the others have their turn
_DRAWS = 12
_LATER = 8  # how many other mutations come before the same one of another scenario


class _Arm(NamedTuple):
    scope: str
    part: ExploredPart
    group: str


@dataclass(slots=True)
class _Parent:
    base: Base
    variation: Variation
    energy: float
    visits: int = 0


class Search:
    """Decides which variation is tried next.

    Args:
        singles: all variations with one change, in the order of `ordered`.
        entries: of the corpus, for these bases or others.
        known: identifiers of findings that need no new try.
    """

    def __init__(
        self,
        singles: Sequence[tuple[Base, Variation]],
        seed: int,
        entries: Sequence[CorpusEntry] = (),
        known: frozenset[str] = frozenset(),
    ) -> None:
        self._seed = seed
        self._bases = {
            (each.unit.file, each.unit.scenario.name, each.unit.agent): each for each, _ in singles
        }
        self._singles: defaultdict[str, dict[str, Variation]] = defaultdict(dict)
        self._left: dict[_Arm, deque[tuple[Base, Variation]]] = defaultdict(deque)
        self._cells: dict[tuple[str, ...], deque[tuple[Base, Variation]]] = defaultdict(deque)
        for base, variation in singles:
            self._singles[base.unit.scope][variation.name] = variation
            self._left[_arm(base, variation)].append((base, variation))
            self._cells[variation.cells[0]].append((base, variation))
        self._energy: dict[_Arm, float] = dict.fromkeys(self._left, _PRIOR)
        self._parents: list[_Parent] = []
        self._tried: set[tuple[str, frozenset[str]]] = set()
        self._missed: Counter[tuple[str, ...]] = Counter()
        again = [each for each in entries if not known.issuperset(each.findings)]
        self._reuse = deque(found for each in again if (found := self._made_again(each)))
        self._uncovered = deque(self._cells)
        self._parts = deque(dict.fromkeys(arm.part for arm in self._left))
        for entry in entries:
            if found := self._made_again(entry):
                self.learn(*found, entry.new, entry.cost)

    def next(self) -> tuple[Base, Variation] | None:
        """Return what to try next; None if nothing is left that may show something new."""
        while self._reuse:
            base, variation = self._reuse.popleft()
            if self._is_fresh(base, variation.names):
                return self._taken(base, variation)
        while self._uncovered:
            cell = self._cells[self._uncovered.popleft()]
            while cell:
                base, variation = cell.popleft()
                if self._is_fresh(base, variation.names):
                    return self._taken(base, variation)
        # Parts take turns. Combinations have the turn of the first part that is used up.
        arms = [arm for arm, queue in self._left.items() if queue]
        left = {arm.part for arm in arms}
        if not left:
            return self._combination()
        self._parts.rotate(-1)
        used_up = next((each for each in ExploredPart if each in self._parts and each not in left), None)
        if self._parts[0] is used_up and (made := self._combination()):
            return made
        part = next(each for each in self._parts if each in left)
        best = max((arm for arm in arms if arm.part is part), key=self._energy.__getitem__)
        return self._taken(*self._left[best][0])

    def learn(
        self, base: Base, variation: Variation, new: int, cost: int, *, is_reached: bool = True
    ) -> None:
        """Take in how many elements of a signature a try has added, at the cost of so many messages."""
        if not is_reached:
            cell = variation.cells[0]
            self._missed[cell] += 1
            if self._missed[cell] < _MOST_UNREACHED and not variation.combines:
                self._uncovered.append(cell)
            return
        energy = new / max(1, cost)
        if not variation.combines:
            self._energy[_arm(base, variation)] += energy
        if new and _can_combine(variation):
            self._parents.append(_Parent(base, variation, energy))

    @property
    def left(self) -> Counter[ExploredPart]:
        """How many single variations of each part were not tried."""
        return Counter(arm.part for arm, queue in self._left.items() for _ in queue)

    def _combination(self) -> tuple[Base, Variation] | None:
        while parents := [each for each in self._parents if each.energy >= LEAST_ENERGY]:
            parent = max(parents, key=lambda each: each.energy)
            parent.visits += 1
            parent.energy /= 2
            scope = parent.base.unit.scope
            draws = random.Random(f"{self._seed} {scope} {parent.variation.name} {parent.visits}")
            groups: defaultdict[ExploredPart, defaultdict[str, list[Variation]]]
            groups = defaultdict(lambda: defaultdict(list))
            for each in self._singles[scope].values():
                groups[each.part][each.group].append(each)
            for _ in range(_DRAWS):  # a part and a group first: most single changes are injections
                group = draws.choice([*groups[draws.choice([*groups])].values()])
                made = combined(parent.variation, draws.choice(group))
                if made and self._is_fresh(parent.base, made.names):
                    return self._taken(parent.base, made)
        return None

    def _made_again(self, entry: CorpusEntry) -> tuple[Base, Variation] | None:
        base = self._bases.get(entry.base)
        singles = self._singles[base.unit.scope] if base else {}
        found: Variation | None = None
        for name in entry.changes:
            single = singles.get(name)
            found = single if single is None or found is None else combined(found, single)
            if found is None:
                return None
        return (base, found) if base and found else None

    def _is_fresh(self, base: Base, names: Sequence[str]) -> bool:
        return (base.unit.scope, frozenset(names)) not in self._tried

    def _taken(self, base: Base, variation: Variation) -> tuple[Base, Variation]:
        self._tried.add((base.unit.scope, frozenset(variation.names)))
        if not variation.combines:
            arm = _arm(base, variation)
            self._left[arm].remove((base, variation))
            self._energy[arm] /= 2
        return base, variation


def _arm(base: Base, variation: Variation) -> _Arm:
    return _Arm(base.unit.scope, variation.part, variation.group)


def combined(first: Variation, second: Variation) -> Variation | None:
    """Return a variation with the changes of both; None if they do not go together."""
    names = (*first.names, *second.names)
    mutations = [each for each in (first, second) if each.part is ExploredPart.MUTATIONS]
    places = {(each.tool, each.at) for each in second.scenario.faults}
    if (
        len(set(names)) < len(names)
        or len(names) > MOST_COMBINED
        or len(mutations) > 1
        or (second in mutations and first.combines)  # the first may have a mutation already
        or (first.scenario.injections and second.scenario.injections)  # which of them was obeyed?
        or places & {(each.tool, each.at) for each in first.scenario.faults}
        or not (_can_combine(first) and _can_combine(second))
    ):
        return None
    said, more = (second if second in mutations else first).scenario, second.scenario.changes
    scenario = replace(
        first.scenario,
        turns=said.turns,
        mutations=said.mutations,
        tools={**second.scenario.tools, **first.scenario.tools},
        changes=(*(each for each in first.scenario.changes if each not in more), *more),
    )
    return Variation(
        part=second.part if first in mutations else first.part,
        name=" and ".join(names),
        group=" and ".join((first.group, second.group)),
        cells=(*first.cells, *second.cells),
        scenario=relaxed(scenario, keep_limits=not scenario.faults),
        combines=names,
    )


def _can_combine(variation: Variation) -> bool:
    """Return True if what a right agent does does not depend on whether something else is changed, too."""
    scenario, name = variation.scenario, variation.kind
    if variation.part is ExploredPart.MUTATIONS:
        return name not in SURROUNDING_MUTATIONS and MUTATIONS[name].relation != "new" and name != "two_goals"
    goals, kinds = (each.goal for each in scenario.injections), (each.kind for each in scenario.faults)
    is_of_tools = variation.part in (ExploredPart.FAULTS, ExploredPart.INJECTIONS)
    return is_of_tools and "stop" not in goals and "permission_denied" not in kinds


def ordered(variations: Sequence[tuple[Base, Variation]], seed: int) -> list[tuple[Base, Variation]]:
    """Return variations in the order of their ranks: one of each cell before a second of any.

    Among those of equal place in their cells the parts alternate. Mutations that fit few scenarios come
    first, and none is tried with all scenarios before others have been tried at all.
    """
    cells: defaultdict[tuple[str, ...], list[tuple[Base, Variation]]] = defaultdict(list)
    for entry in variations:
        cells[entry[1].cells[0]].append(entry)
    rounds: defaultdict[int, defaultdict[str, list[_Placed]]] = defaultdict(lambda: defaultdict(list))
    ties = {cell: random.Random(f"{seed} {cell}").random() for cell in cells}
    mutations = Counter(cell[2] for cell in cells if cell[0] == ExploredPart.MUTATIONS)
    most = max(mutations.values(), default=1)
    earlier: Counter[str] = Counter()
    for cell in sorted(cells, key=ties.__getitem__):
        entries, tie = cells[cell], ties[cell]
        is_mutation = cell[0] == ExploredPart.MUTATIONS
        later, share = (
            _LATER * earlier[cell[2]] * is_mutation,
            mutations[cell[2]] / most if is_mutation else 1,
        )
        earlier[cell[2]] += is_mutation
        for place, entry in enumerate(sorted(entries, key=lambda each: each[1].rank)):
            rounds[place][cell[0]].append((entry[1].rank * share + later, tie, entry))
    in_order = []
    for _, parts in sorted(rounds.items()):
        columns = (sorted(each, key=lambda placed: placed[:2]) for each in parts.values())
        in_order += [placed[2] for row in zip_longest(*columns) for placed in row if placed]
    return in_order


_Placed = tuple[float, float, tuple[Base, Variation]]
