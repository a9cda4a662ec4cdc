"""Measurements of runs for a comparison, and the pairing of their scenarios.

The values are small, so that conversations can be released from memory after measuring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import field, replace

from agentest.domain.metrics import METRICS, Kind
from agentest.domain.reasons import MeasuredConversation, measured_conversation
from agentest.domain.results import ModelUsage, RunResult, ScenarioResult, Status
from agentest.domain.verdict import Severities
from agentest.store.reader import StoredConversations
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import first_names

_MAX_NAMES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAndTime:
    """Cost and time of conversations.

    Attributes:
        cost: cost in USD of the models that play the user and judge; None if a price is unknown.
        tokens: number of tokens of these models.
        agent_ms: time spent waiting for the agent, in milliseconds, over `turns` turns.
    """

    cost: float | None = 0.0
    tokens: int = 0
    turns: int = 0
    agent_ms: float = 0.0
    total_ms: float = 0.0

    def __add__(self, other: CostAndTime) -> CostAndTime:
        known = self.cost is not None and other.cost is not None
        return CostAndTime(
            cost=(self.cost or 0.0) + (other.cost or 0.0) if known else None,
            tokens=self.tokens + other.tokens,
            turns=self.turns + other.turns,
            agent_ms=self.agent_ms + other.agent_ms,
            total_ms=self.total_ms + other.total_ms,
        )


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
    conversations: tuple[MeasuredConversation, ...] = ()
    spent: CostAndTime = CostAndTime()

    @property
    def passed(self) -> int:
        return sum(each.passed is True for each in self.conversations)

    @property
    def known(self) -> int:
        """Number of conversations that passed or failed."""
        return sum(each.passed is not None for each in self.conversations)

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
        return sum(len(each.conversations) for each in self.scenarios)

    @property
    def spent(self) -> CostAndTime:
        """Total cost and time of all scenarios."""
        return sum((each.spent for each in self.scenarios), CostAndTime())


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


def measure_scenario(result: ScenarioResult) -> MeasuredScenario:
    """Measure a scenario whose result still contains its conversations, or finds them in a journal."""
    severities = Severities.of(result.errors, graded=not result.severity_unknown)
    stored = result.conversations
    measured = list(
        stored.measured() if isinstance(stored, StoredConversations) else map(measured_conversation, stored)
    )
    models = sum(result.usage.values(), ModelUsage())
    return MeasuredScenario(
        name=result.name,
        agent=result.agent,
        file=result.file,
        line=result.line,
        status=result.verdict.status,
        scripted=any(each.scripted for each in measured),
        unfinished=result.unfinished,
        repeated=result.repeat is not None,
        conversations=tuple(_counted(each, severities, result.information) for each in measured),
        spent=CostAndTime(
            cost=models.cost,
            tokens=models.tokens.total_tokens,
            turns=result.totals.turns,
            agent_ms=result.totals.time.agent_ms,
            total_ms=result.totals.time.total_ms,
        ),
    )


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


def _counted(
    measured: MeasuredConversation, severities: Severities, information: Collection[str]
) -> MeasuredConversation:
    if not (measured.failures or information):
        return measured
    sums = {name: values for name, values in measured.sums.items() if name not in information}
    return replace(measured, passed=severities.passed(measured), sums=sums)


def _key(scenario: MeasuredScenario, alone: bool) -> Hashable:
    return scenario.name if alone else (scenario.name, scenario.agent)


def _by_key(run: MeasuredRun, alone: bool, twice: set[Hashable]) -> dict[Hashable, MeasuredScenario]:
    keys = [(_key(each, alone), each) for each in run.scenarios]
    return {(key, each.file) if key in twice else key: each for key, each in keys}


def _names(run: MeasuredRun) -> str:
    several = len(run.agents) > 1
    names = [f"{each.name!r} [{each.agent}]" if several else repr(each.name) for each in run.scenarios]
    return first_names(names, _MAX_NAMES_SHOWN) or "none"
