"""Scripts: the user says the same each time, so an agent that is not random does, too.

That nobody can know of an agent; but scripts that come out now so, now otherwise, show that it is random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agentest.history.comparison.measured import MeasuredScenario
from agentest.history.comparison.pairing import Pair
from agentest.history.comparison.values import Change

_LEAST_DISAGREEING = 2
"""One may be known to be flaky for reasons of its own."""
_ONE_IN = 20
"""Of how many scripts one must disagree with itself, for all of an agent's scripts to be drawn by chance."""


def agents_random_in_scripts(pairs: Iterable[Pair]) -> frozenset[str]:
    """The agents whose scripts show that they answer at random: then nothing is certain of them."""
    scripts, disagreeing = Counter[str](), Counter[str]()
    for pair in pairs:
        sides = [side for side in (pair.base, pair.new) if side and side.scripted]
        scripts[pair.shown.agent] += bool(sides)
        disagreeing[pair.shown.agent] += any(side.disagrees for side in sides)
    return frozenset(
        agent for agent, n in disagreeing.items() if n >= max(_LEAST_DISAGREEING, scripts[agent] / _ONE_IN)
    )


def came_out_otherwise(base: MeasuredScenario, new: MeasuredScenario) -> Change | None:
    """What became of a script that always passed and never does now, or the other way."""
    if not (base.scripted or new.scripted) or not base.known or not new.known:
        return None
    shares = base.passed / base.known, new.passed / new.known
    return {(1.0, 0.0): Change.REGRESSED, (0.0, 1.0): Change.IMPROVED}.get(shares)


def played_once(base: MeasuredScenario, new: MeasuredScenario) -> bool:
    """Whether there is one conversation of a script in each run, so that nobody knows how it varies."""
    return (base.scripted or new.scripted) and base.known <= 1 and new.known <= 1
