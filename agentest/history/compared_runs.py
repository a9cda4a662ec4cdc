"""What a comparison needs to know of a run: small values, which stay when the conversations are let go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentest.domain.end_reason import Ending
from agentest.domain.metrics import METRICS, NO_FAILURE, Kind
from agentest.domain.results import ConversationResult, ModelUsage, RunResult, ScenarioResult, Score, Status
from agentest.domain.verdict import conversation_status
from agentest.support.errors import UsageError
from agentest.support.statistics.mean_difference import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredConversation:
    """One conversation in numbers."""

    passed: bool | None
    """None: nobody knows, as it errored."""
    sums: Mapping[str, Cluster]
    """Metric → the sum of its values, and how many they are. Of labels, the turns with a failure count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What something took.

    Attributes:
        cost: of the models that play the user and judge, in USD; None: a price is not known.
        tokens: of these models.
        agent_ms: for how long the agent was waited for, in `turns` turns.
    """

    cost: float | None = 0.0
    tokens: int = 0
    turns: int = 0
    agent_ms: float = 0.0
    total_ms: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        known = self.cost is not None and other.cost is not None
        return Spent(
            cost=(self.cost or 0.0) + (other.cost or 0.0) if known else None,
            tokens=self.tokens + other.tokens,
            turns=self.turns + other.turns,
            agent_ms=self.agent_ms + other.agent_ms,
            total_ms=self.total_ms + other.total_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredScenario:
    """One scenario against one agent, in numbers."""

    name: str
    agent: str
    file: str
    line: int
    status: Status
    scripted: bool
    planned: int
    unfinished: bool = False
    """Whether nothing but the early end of its run keeps it from a verdict."""
    repeated: bool = False
    """Whether conversations were added until its verdict was decided."""
    conversations: tuple[MeasuredConversation, ...] = ()
    spent: Spent = Spent()

    @property
    def passed(self) -> int:
        return sum(each.passed is True for each in self.conversations)

    @property
    def known(self) -> int:
        """How many conversations passed or failed."""
        return sum(each.passed is not None for each in self.conversations)

    @property
    def state(self) -> str:
        """Its verdict in words."""
        return "not finished" if self.unfinished else str(self.status)

    @property
    def disagrees(self) -> bool:
        """Whether some conversations passed and some failed."""
        return 0 < self.passed < self.known


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run in numbers, and under which conditions it was made."""

    label: str
    """What the user knows the run by."""
    started_at: str
    version: str
    agents: tuple[str, ...]
    models: Mapping[str, str | None] = field(default_factory=dict)
    stopped: str | None = None
    """Why it ended early; None: it did not."""
    partial: bool = False
    """Whether filters had chosen its scenarios."""
    scenarios: tuple[MeasuredScenario, ...] = ()

    @property
    def spent(self) -> Spent:
        """What all its scenarios took."""
        return sum((each.spent for each in self.scenarios), Spent())


def measured_run(
    result: RunResult, label: str, scenarios: Iterable[MeasuredScenario], *, partial: bool = False
) -> MeasuredRun:
    """A run whose scenarios have been measured."""
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


def measured_scenario(result: ScenarioResult) -> MeasuredScenario:
    """A scenario that still has its conversations, in numbers."""
    return MeasuredScenario(
        name=result.name,
        agent=result.agent,
        file=result.file,
        line=result.line,
        status=result.verdict.status,
        scripted=any(each.conversation.ending is Ending.SCRIPT for each in result.conversations),
        planned=result.planned,
        unfinished=result.unfinished,
        repeated=result.repeat is not None,
        conversations=tuple(_measured(each, result.information) for each in result.conversations),
        spent=_spent(result),
    )


def counts_failures(metric: str) -> bool:
    """Whether a metric has labels, so that what is compared is the share of turns with a failure."""
    return metric in METRICS and METRICS[metric].kind is Kind.LABEL


def _spent(result: ScenarioResult) -> Spent:
    models = sum(result.usage.values(), ModelUsage())
    return Spent(
        cost=models.cost,
        tokens=models.tokens.total_tokens,
        turns=result.totals.turns,
        agent_ms=result.totals.time.agent_ms,
        total_ms=result.totals.time.total_ms,
    )


_PASSED = {Status.PASSED: True, Status.FAILED: False}


def _measured(result: ConversationResult, information: Iterable[str]) -> MeasuredConversation:
    passed = _PASSED.get(conversation_status(result))
    left_out = {*information, *_AMOUNTS}
    sums: dict[str, Cluster] = {}
    for name, score in result.metric_results:
        if isinstance(score, Score) and name not in left_out:
            total, n = sums.get(name, (0.0, 0))
            sums[name] = total + _number(score), n + 1
    return MeasuredConversation(passed=passed, sums=sums)


def _number(score: Score) -> float:
    return float(score.value != NO_FAILURE) if score.number is None else score.number


_AMOUNTS = frozenset(metric.name for metric in METRICS.values() if metric.kind is Kind.AMOUNT)
"""Time and tokens: more of them is neither better nor worse."""


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
