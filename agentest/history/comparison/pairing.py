"""Which scenario of one run is which of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from agentest.domain.results import Status
from agentest.history.comparison.measured import MeasuredRun, MeasuredScenario
from agentest.support.errors import UsageError

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A scenario in both runs; None where a run does not have it."""

    base: MeasuredScenario | None
    new: MeasuredScenario | None

    @property
    def shown(self) -> MeasuredScenario:
        """The newer one that there is: its place is where the user will look."""
        found = self.new or self.base
        assert found
        return found


def paired(base: MeasuredRun, new: MeasuredRun) -> list[Pair]:
    """The scenarios of both runs, in the order of the new one, then those that only the base has.

    They are paired by name and agent, and by file where a run has a name twice. Where both runs have one
    agent, its name need not be the same.
    """
    alone = len(base.agents) == 1 and len(new.agents) == 1
    twice = {key for run in (base, new) for key, n in Counter(_keys(run, alone)).items() if n > 1}
    old = _by_key(base, alone, twice)
    pairs = [Pair(base=old.pop(key, None), new=each) for key, each in _by_key(new, alone, twice).items()]
    return [*pairs, *(Pair(base=each, new=None) for each in old.values())]


def check_common(base: MeasuredRun, new: MeasuredRun) -> None:
    """Raise UsageError where no scenario is in both runs: it says which ones they have."""
    if not any(pair.base and pair.new for pair in paired(base, new)):
        raise UsageError(
            f"nothing to compare: no scenario is in both runs; {base.label} has {_names(base)}, "
            f"{new.label} has {_names(new)}"
        )


def selected(pairs: Sequence[Pair], base: MeasuredRun, new: MeasuredRun) -> list[Pair]:
    """The pairs without what one run had not selected: it is neither new nor gone."""
    return [pair for pair in pairs if not (_left_out(pair.new, new) or _left_out(pair.base, base))]


def _left_out(side: MeasuredScenario | None, run: MeasuredRun) -> bool:
    return side is None and run.partial


def of_agent(run: MeasuredRun, agent: str) -> MeasuredRun:
    """One agent's part of a run, to be compared with that of another."""
    mine = tuple(each for each in run.scenarios if each.agent == agent)
    return replace(run, label=agent, agents=(agent,), scenarios=mine)


def did_not_load(pair: Pair, new: MeasuredRun) -> bool:
    """Whether the new run lacks the scenario because its file did not load."""
    errored = {
        each.name for each in new.scenarios if each.status is Status.ERRORED and not each.conversations
    }
    return pair.new is None and pair.base is not None and pair.base.file in errored


def _keys(run: MeasuredRun, alone: bool) -> list[Hashable]:
    return [_key(each, alone) for each in run.scenarios]


def _key(scenario: MeasuredScenario, alone: bool) -> Hashable:
    return scenario.name if alone else (scenario.name, scenario.agent)


def _by_key(run: MeasuredRun, alone: bool, twice: set[Hashable]) -> dict[Hashable, MeasuredScenario]:
    return dict(_entries(run.scenarios, alone, twice))


def _entries(
    scenarios: Sequence[MeasuredScenario], alone: bool, twice: set[Hashable]
) -> Iterator[tuple[Hashable, MeasuredScenario]]:
    for each in scenarios:
        key = _key(each, alone)
        yield ((key, each.file) if key in twice else key), each


def _names(run: MeasuredRun) -> str:
    several = len(run.agents) > 1
    names = [f"{each.name!r} [{each.agent}]" if several else repr(each.name) for each in run.scenarios]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more if names else "none"
