"""The budget of a run: which conversations may start, and estimates of the model calls they need.

`Allowance` starts only conversations that the budget can finish. It derives the need of a conversation from
finished ones, from an earlier run, or else from the maximum number of calls, and does so on every wait, so
that estimates improve during the run. `estimate_of` computes that maximum.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import field
from functools import cached_property
from math import ceil

import anyio

from agentest.config.models import Batch, JudgeSettings
from agentest.conversation.user_prompts import MAX_ROUNDS
from agentest.domain.figures import ScenarioResources
from agentest.domain.metrics import BUILTIN, Kind, MetricDefinition, MetricLevel
from agentest.domain.results import ModelUsage
from agentest.judging.cause_joining import GROUPS_PER_CALL, MOST_GROUPS
from agentest.judging.judge import MAX_TURNS_PER_CALL
from agentest.models.budget import Budget
from agentest.models.cassette import Cassettes
from agentest.models.port import CallKey, Ledger
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.support.lazy_dataclasses import dataclass

_GROWTH = 2.0
"""How much more expensive a later call may be than those so far: prompts grow with a conversation."""

Key = tuple[str, int]
"""Scope and number of a conversation; number 0 is the grouping of its scenario's failures."""


class PaidLedger(Ledger):
    """A ledger that also counts what each conversation cost. Replayed responses are free."""

    def __init__(self) -> None:
        super().__init__()
        self.paid: defaultdict[Key, ModelUsage] = defaultdict(ModelUsage)
        self.paid_total = ModelUsage()
        self.on_paid: Callable[[], None] = lambda: None

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self.paid[key.scope, key.conversation] += used
        self.paid_total += used
        self.on_paid()

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)


@dataclass(frozen=True, slots=True)
class Need:
    """Model calls and cost in USD; the cost is infinite if unknown."""

    calls: int = 0
    cost: float = 0.0

    def __add__(self, other: Need) -> Need:
        return Need(self.calls + other.calls, self.cost + other.cost)

    def times(self, number: int) -> Need:
        return Need(self.calls * number, self.cost * number) if number else Need()

    def less(self, used: ModelUsage) -> Need:
        """Return the remaining need: at least one call, unless it needs no calls."""
        if not self.calls:
            return self
        calls = max(1, self.calls - used.calls)
        return Need(calls, self.cost * calls / self.calls)


class _StartedUnit:
    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        planned = unit.repeat.min if unit.repeat else unit.conversations
        self.left = max(0, planned - len(unit.finished_part.conversations))
        """Number of conversations that have not started; `repeat` may add more."""

    @cached_property
    def has_failures(self) -> bool:
        """True if judges found failures. Those of a resumed run are read only once, from its journal."""
        return any(result.failures for result in self.unit.finished_part.conversations)


@dataclass(slots=True, eq=False)
class Allowance:
    """Lets conversations start if the budget can finish them."""

    _budget: Budget
    _ledger: PaidLedger
    _most: Mapping[str, Estimate]
    """Scope → the maximum number of calls of its conversations and its grouping."""
    _took: Mapping[tuple[str, str], ScenarioResources]
    """(Scenario, agent) → usage in an earlier run; cost is None if it does not apply to this run."""
    _answers: Cassettes | None  # recorded responses of unfinished conversations
    _stop: Callable[[str], None]  # ends the run for this reason
    _resumed_by: str  # the command that runs the remaining conversations; "": none
    _under_way: dict[Key, tuple[Unit, ModelUsage]] = field(default_factory=dict)
    """Started, unfinished conversations, with the usage that an earlier attempt already paid for."""
    _in_progress: Counter[Key] = field(default_factory=Counter)
    _started: dict[str, _StartedUnit] = field(default_factory=dict)
    """By scope: units with a started conversation that are not decided yet."""
    _finished: dict[str, tuple[Need, Need]] = field(default_factory=dict)
    """Scope → the least and the most that its finished conversations needed."""
    _known: tuple[Need, Need] | None = None  # the same over all finished conversations with a call
    _waiting: int = 0
    _turn: anyio.Lock = field(default_factory=anyio.Lock)
    """Lets units that have not begun wait one after another."""
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        self._budget.others_go_on = lambda: any(not self._budget.refused[key] for key in self._in_progress)
        self._budget.on_exhausted = self._exhausted
        self._ledger.on_paid = self._wake

    def starts(self, unit: Unit, number: int) -> bool:
        """Start the conversation and return True if the budget covers it now and no other one waits."""
        if (self._waiting and unit.scope not in self._started) or not self._fits(unit, number):
            return False
        self._start(unit, number)
        return True

    async def wait(self, unit: Unit, number: int) -> None:
        """Start the conversation as soon as the budget covers it. Stops the run if it never will."""
        self._waiting += 1
        try:
            async with nullcontext() if unit.scope in self._started else self._turn:
                while not self._fits(unit, number):
                    more = unit.scope not in self._started and any(
                        each.left for each in self._started.values()
                    )
                    if not self._in_progress and not more:
                        self._stop(self._shortfall_text(unit, number))
                        await anyio.sleep_forever()
                    await self._changed.wait()
                self._start(unit, number)
        finally:
            self._waiting -= 1

    def finished(self, unit: Unit, number: int, *, has_failures: bool) -> None:
        """Note that the conversation has finished, and whether judges found failures that will be grouped."""
        key = unit.scope, number
        _, before = self._under_way.pop(key)
        self._in_progress.pop(key)
        took = self._ledger.paid.pop(key, ModelUsage()) + before
        cost = took.calls * self._per_call() if took.cost is None else took.cost
        need = Need(took.calls, cost)
        self._finished[unit.scope] = _widened(self._finished.get(unit.scope), need)
        self._known = _widened(self._known, need) if need.calls else self._known
        self._started[unit.scope].has_failures |= has_failures
        self._done(unit.scope, number)
        self._wake()
        self._budget.wake_waiting_calls()

    @contextmanager
    def deciding(self, unit: Unit) -> Iterator[None]:
        """Mark a block that decides a unit and may group its failures."""
        key = unit.scope, 0
        self._in_progress[key] += 1
        try:
            yield
        finally:
            self._in_progress -= Counter([key])
            self._wake()
            self._budget.wake_waiting_calls()

    def decided(self, unit: Unit) -> None:
        """Note that the unit is decided and needs no more model calls."""
        self._started.pop(unit.scope, None)
        self._ledger.paid.pop((unit.scope, 0), None)
        self._done(unit.scope, 0)

    def _done(self, scope: str, number: int) -> None:
        if self._answers:
            self._answers.done(scope, number)

    def _start(self, unit: Unit, number: int) -> None:
        key = unit.scope, number
        self._under_way[key] = unit, self._already_paid(unit, number)
        self._in_progress[key] += 1
        begun = self._started.setdefault(unit.scope, _StartedUnit(unit))
        begun.left = max(0, begun.left - 1)

    def _wake(self) -> None:
        if self._waiting:
            changed, self._changed = self._changed, anyio.Event()
            changed.set()

    def _already_paid(self, unit: Unit, number: int) -> ModelUsage:
        if self._answers is None:
            return ModelUsage()
        page = self._answers.page(unit.scope, number)
        return sum((entry.used for entry in (*page.salvaged, *page.recorded)), ModelUsage())

    def _fits(self, unit: Unit, number: int) -> bool:
        if not self._in_progress and not self._known:
            return True  # its responses are stored, so starting wastes nothing
        need = self._estimated_need(unit) if self._in_progress else self._min_need(unit)
        need = need.less(self._already_paid(unit, number)) + self._grouping(unit)
        if not self._in_progress and not self._within(need, self._budget.max_calls, self._budget.max_cost):
            return True  # no run with this budget could cover it at once, so it may begin here
        for key, (other, before) in self._under_way.items():
            is_first = not self._known and key == next(iter(self._under_way))
            needed = self._max_need(other) if is_first else self._estimated_need(other)
            need += needed.less(before + self._ledger.paid.get(key, ModelUsage()))
        for begun in self._started.values():
            if begun.unit.scope != unit.scope:
                need += self._grouping(begun.unit)
                if unit.scope not in self._started:  # finish one scenario before the next begins
                    need += self._estimated_need(begun.unit).times(begun.left)
        return self._within(need, self._budget.left_calls, self._budget.left_cost)

    @staticmethod
    def _within(need: Need, calls: int | None, cost: float | None) -> bool:
        return (calls is None or need.calls <= calls) and (cost is None or need.cost <= cost)

    def _grouping(self, unit: Unit) -> Need:
        begun = self._started.get(unit.scope) or _StartedUnit(unit)
        may_be_needed = self._in_progress or begun.has_failures
        if not self._most[unit.scope].dedup or not may_be_needed or self._ledger.paid.get((unit.scope, 0)):
            return Need()
        return Need(1, self._per_call())

    def _estimated_need(self, unit: Unit) -> Need:
        if finished := self._finished.get(unit.scope):
            return finished[1]
        if earlier := self._earlier(unit):
            return earlier
        most = self._max_need(unit)
        if self._known is None:
            return most
        maximum = self._known[1]
        return Need(min(most.calls, maximum.calls), maximum.cost)

    def _min_need(self, unit: Unit) -> Need:
        finished = self._finished.get(unit.scope)
        earlier = None if finished else self._earlier(unit)
        return earlier or (finished or self._known or (Need(),))[0]

    def _earlier(self, unit: Unit) -> Need | None:
        took = self._took.get((unit.scenario.name, unit.agent))
        most = self._most[unit.scope]
        if took is None or (not took.calls and most.user + most.judge):
            return None
        calls = ceil(took.calls / took.conversations)
        return Need(calls, self._priced(calls) if took.cost is None else took.cost / took.conversations)

    def _max_need(self, unit: Unit) -> Need:
        most = self._most[unit.scope]
        calls = ceil((most.user + most.judge) / max(1, unit.conversations))
        return Need(calls, self._priced(calls))

    def _priced(self, calls: int) -> float:
        return calls * self._per_call() * _GROWTH if calls else 0.0

    def _per_call(self) -> float:
        paid = self._ledger.paid_total
        if paid.calls:
            return self._budget.cost / paid.calls  # a call of unknown cost counts with its bound
        known = [took for took in self._took.values() if took.cost is not None]
        calls = sum(took.calls for took in known)
        return sum(took.cost or 0.0 for took in known) / calls if calls else float("inf")

    def _exhausted(self, why: str) -> None:
        if self._finished or not self._under_way:
            self._stop(why)
            return
        key, (unit, before) = next(iter(self._under_way.items()))
        paid = self._ledger.paid.get(key, ModelUsage()) + before
        earlier = self._earlier(unit)
        takes = f"about {earlier.calls}" if earlier and earlier.calls > paid.calls else ""
        takes = takes or f"up to {max(paid.calls + 1, self._max_need(unit).calls)}"
        finished = (
            f"; its {paid.calls} answers are stored, and {self._resumed_by} goes on from there"
            if self._answers and self._resumed_by
            else ""
        )
        example = f"one of scenario {unit.scenario.name!r} takes {takes} calls"
        self._stop(f"{why}; that finished no conversation: {example}{finished}")

    def _shortfall_text(self, unit: Unit, number: int) -> str:
        need = self._min_need(unit).less(self._already_paid(unit, number)) + self._grouping(unit)
        takes = [f"about {need.calls} calls"] if self._budget.left_calls is not None else []
        takes += [f"about {need.cost:.2g} USD"] if self._budget.left_cost is not None else []
        remedy = f"; {self._resumed_by} runs the rest" if self._resumed_by else ""
        spent = self._budget.used_up() or self._budget.spent_so_far
        next_one = f"the next conversation (scenario {unit.scenario.name!r})"
        return f"{spent}, and {next_one} needs {' and '.join(takes)}{remedy}"


def _widened(known: tuple[Need, Need] | None, need: Need) -> tuple[Need, Need]:
    least, most = known or (need, need)
    least = Need(min(least.calls, need.calls), min(least.cost, need.cost))
    return least, Need(max(most.calls, need.calls), max(most.cost, need.cost))


@dataclass(frozen=True, slots=True)
class Estimate:
    """The most calls per role for one scenario, without retries, repairs and calls of custom metrics."""

    name: str
    agent: str
    user: int
    judge: int
    dedup: int

    @property
    def total(self) -> int:
        return self.user + self.judge + self.dedup


def estimate_of(prepared: Prepared, units: Sequence[Unit]) -> list[Estimate]:
    """Return the maximum number of model calls of a prepared run's units."""
    config = prepared.loaded.config
    return estimate(
        units,
        user=prepared.uses_model("user"),
        judge=config.judge if prepared.uses_model("judge") else None,
        user_checks=config.user.checked_attempts(strict=prepared.is_strict),
        confirm=prepared.confirm is not None,
    )


def estimate(
    units: Sequence[Unit],
    *,
    user: bool,
    judge: JudgeSettings | None,
    user_checks: int = 0,
    confirm: bool = False,
) -> list[Estimate]:
    """Return the maximum calls of every unit, and of the whole run if scenarios may share root causes.

    Args:
        user: True if a model plays the user.
        judge: the settings of the judges; None if no model judges.
        user_checks: number of attempts at a conversation, each of which is checked for a broken role.
        confirm: True if a second model confirms the judges' answers.
    """
    estimates: list[Estimate] = []
    labels: list[int] = []
    for unit in units:
        turns, user_calls, judged_messages = _messages(unit, user=user)
        metrics = [BUILTIN[metric] for metric in unit.metrics]
        judge_calls = 0
        if judge:
            asked = _judge_calls(turns, metrics, len(unit.scenario.criteria), judge.batch) * judge.samples
            judge_calls = judged_messages + asked + sum(each.most_calls(turns) for each in unit.graders)
        if judge and confirm:  # a call for each turn, and one for the whole, that can fail the scenario
            can_fail = [m for m in metrics if m.name in unit.thresholds or m.kind is not Kind.SCALE]
            required = sum(criterion.required for criterion in unit.scenario.criteria)
            judge_calls += _judge_calls(
                turns, can_fail, required, Batch.TURN if judge.batch is Batch.OFF else judge.batch
            )
        if judge and user_checks and user_calls and not unit.scenario.attack:
            user_calls, judge_calls = user_checks * user_calls, judge_calls + user_checks * judge.samples
        labelled = [metric for metric in metrics if judge and metric.kind is Kind.LABEL]
        if labelled and unit.conversations:
            places = (len(m.labels) * (turns if m.level is MetricLevel.TURN else 1) for m in labelled)
            labels.append(unit.conversations * sum(places))
        of_user, of_judge = unit.conversations * user_calls, unit.conversations * judge_calls
        # Custom metrics with labels may need it too, so count it whenever there is a judge.
        estimates.append(Estimate(unit.scenario.name, unit.agent, of_user, of_judge, int(bool(labelled))))
    if len(labels) > 1:  # root causes are joined across scenarios
        calls = ceil(min(MOST_GROUPS, sum(labels)) / GROUPS_PER_CALL)
        estimates.append(Estimate("(root causes of the whole run)", "", user=0, judge=0, dedup=calls))
    return estimates


def _messages(unit: Unit, *, user: bool) -> tuple[int, int, int]:
    scenario = unit.scenario
    if scenario.attack:  # each message is scored, and an objective in words judged twice
        most = scenario.attack.most_messages
        calls = most if user and scenario.attack.strategy != "many_shot" else 0
        return scenario.attack.turns, calls, calls + (2 * most if scenario.attack.objective else 0)
    turns = len(scenario.turns) if scenario.scripted else unit.max_turns
    if not user or scenario.scripted:
        return turns, 0, 0
    # A script, and a user with a plan at first, say their own text without a model call.
    calls = max(0, turns - (1 if scenario.plan else len(scenario.turns)))
    # A user may call tools before each message, and is called again each time.
    return turns, calls * (1 + MAX_ROUNDS if scenario.user_tools else 1), 0


def _judge_calls(turns: int, metrics: Sequence[MetricDefinition], criteria: int, batch: Batch) -> int:
    of_turn = sum(metric.level is MetricLevel.TURN for metric in metrics)
    of_whole = len(metrics) - of_turn + criteria
    if batch is Batch.CONVERSATION:
        return ceil(turns / MAX_TURNS_PER_CALL) if of_turn else int(of_whole > 0)
    if batch is Batch.TURN:
        return turns * int(of_turn > 0) + int(of_whole > 0)
    return turns * of_turn + of_whole


def format_estimates(estimates: Sequence[Estimate], several_agents: bool) -> Iterable[str]:
    """Format the estimates as lines of a table."""
    yield f"{'user':>8} {'judge':>8} {'dedup':>8} {'total':>8}  scenario"
    for e in estimates:
        agent = f"  [{e.agent}]" if several_agents and e.agent else ""
        yield f"{e.user:8,} {e.judge:8,} {e.dedup:8,} {e.total:8,}  {e.name}{agent}"
    user, judge, dedup = (sum(getattr(e, role) for e in estimates) for role in ("user", "judge", "dedup"))
    yield f"{user:8,} {judge:8,} {dedup:8,} {user + judge + dedup:8,}  in all, at most"
    yield "Retries, repairs of unusable answers and custom metrics that ask a model come on top."
