"""Measurements of runs for a comparison, and the pairing of their scenarios.

The values are small, so that conversations can be released from memory after measuring.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from agentest.domain.metrics import METRICS, Kind
from agentest.domain.reasons import MeasuredConversation, measured_conversation
from agentest.domain.results import ModelUsage, RunResult, ScenarioResult, Status, Totals
from agentest.domain.verdict import Severities
from agentest.store.reader import StoredConversations
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.differences import Cluster
from agentest.support.text import first_names

_MAX_NAMES_SHOWN = 5


class Clusters(Sequence[Cluster]):
    """Any number of clusters in little memory."""

    def __init__(self) -> None:
        self._sums, self._numbers = array("d"), array("q")

    def append(self, cluster: Cluster) -> None:
        self._sums.append(cluster[0])
        self._numbers.append(cluster[1])

    def __len__(self) -> int:
        return len(self._sums)

    def __getitem__(self, index: Any, /) -> Any:
        return self._sums[index], self._numbers[index]

    def __iter__(self) -> Iterator[Cluster]:
        return zip(self._sums, self._numbers, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Clusters) and tuple(self) == tuple(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredScenario:
    """Measurements of one scenario with one agent."""

    name: str
    agent: str
    file: str
    line: int
    status: Status
    scripted: bool
    unfinished: bool = False  # True if only the early end of its run prevented a verdict
    repeated: bool = False  # True if conversations were added until the verdict was decided
    conversations: int = 0
    outcomes: Sequence[Cluster] = ()  # 1 for each conversation that passed, 0 for each that failed
    sums: Mapping[str, Sequence[Cluster]] = field(default_factory=dict)
    """Maps a metric to the sum and number of its values, for each conversation with any."""
    latencies: Sequence[Cluster] = ()
    costs: Sequence[Cluster] = ()
    usage: ModelUsage = ModelUsage()
    totals: Totals = Totals()

    @property
    def passed(self) -> int:
        return round(sum(passed for passed, _ in self.outcomes))

    @property
    def known(self) -> int:
        """Number of conversations that passed or failed."""
        return len(self.outcomes)

    @property
    def state(self) -> str:
        """Verdict as text."""
        return "not finished" if self.unfinished else str(self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Measurements of a run, and the conditions under which it ran."""

    label: str
    started_at: str
    version: str
    agents: tuple[str, ...]
    models: Mapping[str, str | None] = field(default_factory=dict)
    stopped: str | None = None  # reason why the run ended early; None if it is complete
    partial: bool = False  # True if filters selected its scenarios
    scenarios: tuple[MeasuredScenario, ...] = ()

    @property
    def conversations(self) -> int:
        """Number of conversations of all scenarios."""
        return sum(each.conversations for each in self.scenarios)


def measure_run(
    result: RunResult, label: str, scenarios: Iterable[MeasuredScenario], *, partial: bool = False
) -> MeasuredRun:
    """Return the measurements of a run whose scenarios have been measured."""
    return MeasuredRun(
        label=label,
        started_at=result.started_at,
        version=result.version,
        agents=result.agents,
        models=result.models,
        stopped=result.stopped or ("interrupted" if result.interrupted else None),
        partial=partial,
        scenarios=tuple(scenarios),
    )


def measure_scenario(
    result: ScenarioResult, measured: Iterable[MeasuredConversation] | None = None
) -> MeasuredScenario:
    """Measure a scenario.

    Args:
        measured: the measurements of its conversations; None if the result has these, or finds them in a
            journal.
    """
    stored = result.conversations
    if measured is None and isinstance(stored, StoredConversations):
        measured = stored.measured()
    elif measured is None:
        measured = map(measured_conversation, stored)
    severities = Severities.of(result.errors, graded=not result.severity_unknown)
    return MeasuredScenario(
        name=result.name,
        agent=result.agent,
        file=result.file,
        line=result.line,
        status=result.verdict.status,
        unfinished=result.unfinished,
        repeated=result.repeat is not None,
        usage=sum(result.usage.values(), ModelUsage()),
        totals=result.totals,
        **_columns(measured, severities, result.information),
    )


def _columns(
    measured: Iterable[MeasuredConversation], severities: Severities, information: Collection[str]
) -> dict[str, Any]:
    number, scripted = 0, False
    outcomes, latencies, costs = Clusters(), Clusters(), Clusters()
    sums: dict[str, Clusters] = {}
    for each in measured:
        number += 1
        scripted = scripted or each.scripted
        if (passed := severities.passed(each)) is not None:
            outcomes.append((float(passed), 1))
        if all(each.latency):
            latencies.append(each.latency)
        if each.cost is not None:
            costs.append((each.cost, 1))
        for name, values in each.sums.items():
            if name not in information:
                sums.setdefault(name, Clusters()).append(values)
    figures = {"outcomes": outcomes, "sums": sums, "latencies": latencies, "costs": costs}
    return {"scripted": scripted, "conversations": number, **figures}


def counts_failures(metric: str) -> bool:
    """Return True if a metric has labels, so that the share of turns with a failure is compared."""
    return metric in METRICS and METRICS[metric].kind is Kind.LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioPair:
    """A scenario in both runs; None for a run that does not contain it."""

    base: MeasuredScenario | None
    new: MeasuredScenario | None

    @property
    def latest(self) -> MeasuredScenario:
        """The newer of the two, because its location is current."""
        scenario = self.new or self.base
        assert scenario
        return scenario

    @property
    def both(self) -> tuple[MeasuredScenario, MeasuredScenario]:
        """The scenario in both runs, which must contain it."""
        assert self.base
        assert self.new
        return self.base, self.new


def pair_scenarios(base: MeasuredRun, new: MeasuredRun) -> list[ScenarioPair]:
    """Pair the scenarios of two runs, in the order of the new run, followed by those only in the base.

    Scenarios are paired by name and agent, and also by file if a name occurs twice in a run. If both
    runs have one agent, its name may differ.
    """
    alone = len(base.agents) == 1 and len(new.agents) == 1
    twice = {
        key
        for run in (base, new)
        for key, n in Counter([_key(each, alone) for each in run.scenarios]).items()
        if n > 1
    }
    old = _by_key(base, alone, twice)
    pairs = [
        ScenarioPair(base=old.pop(key, None), new=each) for key, each in _by_key(new, alone, twice).items()
    ]
    return [*pairs, *(ScenarioPair(base=each, new=None) for each in old.values())]


def check_common_scenarios(base: MeasuredRun, new: MeasuredRun) -> None:
    """Raise UsageError, with the scenarios of both runs, if they have none in common."""
    if not any(pair.base and pair.new for pair in pair_scenarios(base, new)):
        raise UsageError(
            f"nothing to compare: no scenario is in both runs; {base.label} has {_names(base)}, "
            f"{new.label} has {_names(new)}"
        )


def part_of_agent(run: MeasuredRun, agent: str) -> MeasuredRun:
    """Return the part of a run that belongs to one agent, for comparison with another agent."""
    scenarios = tuple(each for each in run.scenarios if each.agent == agent)
    return replace(run, label=agent, agents=(agent,), scenarios=scenarios)


def did_not_load(pair: ScenarioPair, new: MeasuredRun) -> bool:
    """Return True if the new run lacks the scenario because its file did not load."""
    errored = {
        each.name for each in new.scenarios if each.status is Status.ERRORED and not each.conversations
    }
    return pair.new is None and pair.base is not None and pair.base.file in errored


def _key(scenario: MeasuredScenario, alone: bool) -> Hashable:
    return scenario.name if alone else (scenario.name, scenario.agent)


def _by_key(run: MeasuredRun, alone: bool, twice: set[Hashable]) -> dict[Hashable, MeasuredScenario]:
    keys = [(_key(each, alone), each) for each in run.scenarios]
    return {(key, each.file) if key in twice else key: each for key, each in keys}


def _names(run: MeasuredRun) -> str:
    several = len(run.agents) > 1
    names = [f"{each.name!r} [{each.agent}]" if several else repr(each.name) for each in run.scenarios]
    return first_names(names, _MAX_NAMES_SHOWN) or "none"
