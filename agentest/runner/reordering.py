"""A plan cut to a part of it, or run in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from agentest.domain.results import ScenarioResult
from agentest.runner.plan import Plan, Unit

Entry = Unit | ScenarioResult


def cut(plan: Plan, is_kept: Callable[[Entry], bool]) -> Plan:
    """The plan with some of its entries, and the agents that these need. Ids stay what they are."""
    entries = tuple(filter(is_kept, plan.entries))
    units = tuple(unit for unit in plan.units if is_kept(unit))
    used = {unit.agent for unit in units}
    agents = {name: agent for name, agent in plan.agents.items() if name in used}
    return replace(plan, entries=entries, units=units, agents=agents)


def with_units(plan: Plan, change: Callable[[Unit], Unit]) -> Plan:
    """The plan with each of its units changed."""
    changed = {unit.scope: change(unit) for unit in plan.units}
    entries = tuple(changed[each.scope] if isinstance(each, Unit) else each for each in plan.entries)
    return replace(plan, entries=entries, units=tuple(changed.values()))


def shuffled(plan: Plan, seed: int) -> Plan:
    """The plan with its units run in the order that the seed gives; reports keep the order of the files."""
    units = list(plan.units)
    Random(seed).shuffle(units)
    return replace(plan, units=tuple(units))


def first(plan: Plan, is_first: Callable[[Unit], bool]) -> Plan:
    """The plan with some units run before the others, which keep their order, and so do they."""
    return replace(plan, units=tuple(sorted(plan.units, key=lambda unit: not is_first(unit))))


def in_order_of_run(plan: Plan) -> Sequence[Entry]:
    """The entries, the units among them in the order in which they run."""
    units = iter(plan.units)
    return [next(units) if isinstance(entry, Unit) else entry for entry in plan.entries]
