"""Which conversations a run with a budget may start: as many as the budget can finish.

What a conversation needs is known from those that have finished, from an earlier run, or else from the most
calls that it can make. It is looked up whenever somebody waits, so that estimates follow what is learnt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import ceil

import anyio

from agentest.config.models import Batch
from agentest.conversation.user_prompts import MAX_ROUNDS
from agentest.domain.forecast import Took
from agentest.domain.metrics import BUILTIN, Kind, MetricLevel
from agentest.domain.results import ModelUsage
from agentest.judging.cause_joining import GROUPS_PER_CALL, MOST_GROUPS
from agentest.judging.judge import TURNS_AT_ONCE
from agentest.models.budget import Budget
from agentest.models.cassette import Cassettes
from agentest.models.port import CallKey
from agentest.models.tape import MeasuringLedger
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared

_GROWTH = 2.0
"""How much more a call may cost than those so far: prompts grow with a conversation."""
_NEVER = float("inf")

Key = tuple[str, int]
"""Scope and number of a conversation; 0: the grouping of its scenario's failures."""


class PaidLedger(MeasuringLedger):
    """A ledger that also counts what was paid for each conversation. Recorded answers cost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.paid: defaultdict[Key, ModelUsage] = defaultdict(ModelUsage)
        self.total = ModelUsage()
        self.on_paid: Callable[[], None] = lambda: None

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        self.paid[key.scope, key.conversation] += used
        self.total += used
        self.on_paid()

    def add_replayed(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)


@dataclass(frozen=True, slots=True)
class Need:
    """Model calls and USD; the cost is infinite where it is not known."""

    calls: int = 0
    cost: float = 0.0

    def __add__(self, other: Need) -> Need:
        return Need(self.calls + other.calls, self.cost + other.cost)

    def times(self, number: int) -> Need:
        return Need(self.calls * number, self.cost * number) if number else Need()

    def less(self, used: ModelUsage) -> Need:
        """What is left of it: at least one call, where it takes any."""
        if not self.calls:
            return self
        calls = max(1, self.calls - used.calls)
        return Need(calls, self.cost * calls / self.calls)


class _Begun:
    """A unit of which a conversation has started."""

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        planned = unit.repeat.min if unit.repeat else unit.conversations
        self.left = max(0, planned - len(unit.kept.conversations))
        """How many conversations have not started; more may be wanted where it has `repeat`."""
        self.has_failures = any(result.failures for result in unit.kept.conversations.values())


def _need(used: ModelUsage) -> Need:
    return Need(used.calls, used.cost or 0.0)


class Allowance:
    """Lets conversations start as the budget can finish them.

    Args:
        most: scope → the most calls that its conversations can make, and its grouping.
        took: scenario and agent → what an earlier run took; cost is None where it says nothing of this one.
        answers: what is recorded of conversations that were left unfinished.
        stop: ends the run, for this reason.
        resumed_by: what is left is run by this command; "": by none.
    """

    def __init__(
        self,
        budget: Budget,
        ledger: PaidLedger,
        most: Mapping[str, Estimate],
        took: Mapping[tuple[str, str], Took],
        answers: Cassettes | None,
        stop: Callable[[str], None],
        resumed_by: str,
    ) -> None:
        self._budget = budget
        self._ledger = ledger
        self._most = most
        self._took = took
        self._answers = answers
        self._stop = stop
        self._resumed_by = resumed_by
        self._under_way: dict[Key, tuple[Unit, ModelUsage]] = {}
        """Conversations that have started and not finished, and what was answered of each before."""
        self._moving: Counter[Key] = Counter()
        """These, and the groupings that are being made."""
        self._begun: dict[str, _Begun] = {}
        """By scope, the units of which a conversation has started and that are not decided."""
        self._finished: dict[str, list[Need]] = {}
        """Scope → what each finished conversation took."""
        self._waiting = 0
        self._turn = anyio.Lock()
        """For units that have not begun: one after another."""
        self._changed = anyio.Event()
        budget.others_go_on = self._others_go_on
        budget.on_exhausted = self._exhausted
        ledger.on_paid = self._wake

    def starts(self, unit: Unit, number: int) -> bool:
        """Start the conversation if the budget can finish it at once, and nobody waits for that."""
        if (self._waiting and unit.scope not in self._begun) or not self._fits(unit, number):
            return False
        self._start(unit, number)
        return True

    async def wait(self, unit: Unit, number: int) -> None:
        """Start the conversation when the budget can finish it. Stops the run where it never will."""
        self._waiting += 1
        try:
            async with nullcontext() if unit.scope in self._begun else self._turn:
                while not self._fits(unit, number):
                    if not self._moving and (unit.scope in self._begun or not self._has_more()):
                        self._stop(self._too_little(unit, number))
                        await anyio.sleep_forever()
                    await self._changed.wait()
                self._start(unit, number)
        finally:
            self._waiting -= 1

    def _has_more(self) -> bool:
        """Whether a unit that has begun will start another conversation."""
        return any(each.left for each in self._begun.values())

    def finished(self, unit: Unit, number: int, *, has_failures: bool) -> None:
        """The conversation has finished: what it took says what others need.

        Args:
            has_failures: whether judges found any, which are to be grouped.
        """
        key = unit.scope, number
        _, before = self._under_way.pop(key)
        self._moving.pop(key)
        took = self._ledger.paid.pop(key, ModelUsage()) + before
        self._finished.setdefault(unit.scope, []).append(_need(took))
        self._begun[unit.scope].has_failures |= has_failures
        self._done(unit.scope, number)
        self._wake()
        self._budget.look_again()

    @contextmanager
    def deciding(self, unit: Unit) -> Iterator[None]:
        """A block in which a unit is decided; its failures may be grouped."""
        key = unit.scope, 0
        self._moving[key] += 1
        try:
            yield
        finally:
            self._moving -= Counter([key])
            self._wake()
            self._budget.look_again()

    def decided(self, unit: Unit) -> None:
        """The unit is decided: nothing more is asked about it."""
        self._begun.pop(unit.scope, None)
        self._ledger.paid.pop((unit.scope, 0), None)
        self._done(unit.scope, 0)

    def _done(self, scope: str, number: int) -> None:
        if self._answers:
            self._answers.done(scope, number)

    def _start(self, unit: Unit, number: int) -> None:
        key = unit.scope, number
        self._under_way[key] = unit, self._answered(unit, number)
        self._moving[key] += 1
        begun = self._begun.setdefault(unit.scope, _Begun(unit))
        begun.left = max(0, begun.left - 1)

    def _wake(self) -> None:
        if self._waiting:
            changed, self._changed = self._changed, anyio.Event()
            changed.set()

    def _answered(self, unit: Unit, number: int) -> ModelUsage:
        """What an earlier run has paid for in the conversation."""
        if self._answers is None:
            return ModelUsage()
        page = self._answers.page(unit.scope, number)
        return sum((entry.used for entry in (*page.salvaged, *page.recorded)), ModelUsage())

    def _fits(self, unit: Unit, number: int) -> bool:
        if not self._moving and not self._finished:
            return True  # whatever it needs: its answers are kept
        need = self._needed(unit) if self._moving else self._least(unit)
        need = need.less(self._answered(unit, number)) + self._grouping(unit)
        if not self._moving and not self._within(need, self._budget.max_calls, self._budget.max_cost):
            return True  # no run with this budget can pay for it at once, so this one begins to
        for key, (other, before) in self._under_way.items():
            is_first = not self._finished and key == next(iter(self._under_way))
            whole = self._at_most(other) if is_first else self._needed(other)
            need += whole.less(before + self._ledger.paid.get(key, ModelUsage()))
        for begun in self._begun.values():
            if begun.unit.scope != unit.scope:
                need += self._grouping(begun.unit)
                if unit.scope not in self._begun:  # a scenario is finished before the next one begins
                    need += self._needed(begun.unit).times(begun.left)
        return self._within(need, self._budget.left_calls, self._budget.left_cost)

    @staticmethod
    def _within(need: Need, calls: int | None, cost: float | None) -> bool:
        return (calls is None or need.calls <= calls) and (cost is None or need.cost <= cost)

    def _grouping(self, unit: Unit) -> Need:
        """What is left of the call that groups the failures of a scenario.

        There may be none to group: a conversation that goes alone is not kept back for that.
        """
        begun = self._begun.get(unit.scope) or _Begun(unit)
        may_be_needed = begun.has_failures or self._moving
        if not self._most[unit.scope].dedup or not may_be_needed or self._ledger.paid.get((unit.scope, 0)):
            return Need()
        return Need(1, self._per_call())

    def _needed(self, unit: Unit) -> Need:
        """What a conversation needs, on the safe side: the most that one of its scenario took."""
        if own := self._finished.get(unit.scope):
            return _each(max, own)
        if earlier := self._earlier(unit):
            return earlier
        most = self._at_most(unit)
        if not (known := self._known()):
            return most
        found = _each(max, known)
        return Need(min(most.calls, found.calls), found.cost)

    def _least(self, unit: Unit) -> Need:
        """What a conversation needs at the least; with it alone under way, there is nobody to fall short."""
        own = self._finished.get(unit.scope)
        return (None if own else self._earlier(unit)) or _each(min, own or self._known())

    def _known(self) -> list[Need]:
        return [each for several in self._finished.values() for each in several]

    def _earlier(self, unit: Unit) -> Need | None:
        took = self._took.get((unit.scenario.name, unit.agent))
        if took is None:
            return None
        calls = ceil(took.calls / took.conversations)
        return Need(calls, self._priced(calls) if took.cost is None else took.cost / took.conversations)

    def _at_most(self, unit: Unit) -> Need:
        """The most calls that a conversation can make, at the price of those so far."""
        most = self._most[unit.scope]
        calls = ceil((most.user + most.judge) / max(1, unit.conversations))
        return Need(calls, self._priced(calls))

    def _priced(self, calls: int) -> float:
        """What so many calls of a conversation may cost."""
        return calls * self._per_call() * _GROWTH if calls else 0.0

    def _per_call(self) -> float:
        """What a call costs; infinite where nothing is known."""
        paid = self._ledger.total
        if paid.calls:
            return (paid.cost or 0.0) / paid.calls
        known = [took for took in self._took.values() if took.cost is not None]
        calls = sum(took.calls for took in known)
        return sum(took.cost or 0.0 for took in known) / calls if calls else _NEVER

    def _others_go_on(self) -> bool:
        """Whether any conversation is under way that does not wait for an attempt which it will not get."""
        return any(not self._budget.refused[key] for key in self._moving)

    def _exhausted(self, why: str) -> None:
        if self._finished or not self._under_way:
            self._stop(why)
            return
        unit, before = next(iter(self._under_way.values()))
        key = next(iter(self._under_way))
        paid = self._ledger.paid.get(key, ModelUsage()) + before
        earlier = self._earlier(unit)
        takes = f"about {earlier.calls}" if earlier and earlier.calls > paid.calls else ""
        takes = takes or f"up to {max(paid.calls + 1, self._at_most(unit).calls)}"
        kept = (
            f"; its {paid.calls} answers are stored, and {self._resumed_by} goes on from there"
            if self._answers and self._resumed_by
            else ""
        )
        one = f"one of scenario {unit.scenario.name!r} takes {takes} calls"
        self._stop(f"{why}; that finished no conversation: {one}{kept}")

    def _too_little(self, unit: Unit, number: int) -> str:
        need = self._least(unit).less(self._answered(unit, number)) + self._grouping(unit)
        takes = [f"about {need.calls} calls"] if self._budget.left_calls is not None else []
        takes += [f"about {need.cost:.2g} USD"] if self._budget.left_cost is not None else []
        rest = f"; {self._resumed_by} runs the rest" if self._resumed_by else ""
        spent = self._budget.used_up() or self._budget.spent_so_far
        return (
            f"{spent}, and the next conversation (scenario {unit.scenario.name!r}) needs "
            f"{' and '.join(takes)}{rest}"
        )


def _each(choose: Callable[[Iterable[float]], float], needs: Collection[Need]) -> Need:
    """The most, or the least, of each."""
    return Need(int(choose(each.calls for each in needs)), choose(each.cost for each in needs))


_ACROSS = "(root causes of the whole run)"


@dataclass(frozen=True, slots=True)
class Estimate:
    """The most calls of each role for one scenario, when every call is answered at the first attempt.

    Retries, repairs and custom metrics that ask a model come on top.
    """

    name: str
    agent: str
    user: int
    judge: int
    dedup: int

    @property
    def total(self) -> int:
        return self.user + self.judge + self.dedup


def estimate_of(prepared: Prepared, units: Sequence[Unit]) -> list[Estimate]:
    """The most calls of units of a prepared run."""
    judge = prepared.loaded.config.judge
    return estimate(
        units,
        user=prepared.asks("user"),
        judge=prepared.asks("judge"),
        samples=judge.samples,
        batch=judge.batch,
        check=prepared.loaded.config.user.check,
        confirm=prepared.confirm is not None,
    )


def estimate(
    units: Sequence[Unit],
    *,
    user: bool,
    judge: bool,
    samples: int = 1,
    batch: Batch = Batch.TURN,
    check: bool = False,
    confirm: bool = False,
) -> list[Estimate]:
    """The most calls of every unit, and of the whole run where scenarios may share root causes.

    Args:
        user, judge: whether a model plays that role.
        check: whether users are checked: each conversation may be held, and looked at, twice.
        confirm: whether a second model confirms what judges answer.
    """
    found = [_of(unit, user, judge, samples, batch) for unit in units]
    if judge and confirm:
        found = [_confirmed(*each, batch) for each in zip(found, units, strict=True)]
    if check:
        found = [_checked(*each, samples) for each in zip(found, units, strict=True)]
    return [*found, *_joining(units, found)]


def _joining(units: Sequence[Unit], estimates: Sequence[Estimate]) -> Iterator[Estimate]:
    """The calls that join the root causes of several scenarios."""
    grouped = [unit for unit, each in zip(units, estimates, strict=True) if each.dedup and unit.conversations]
    if len(grouped) < 2:
        return
    groups = min(MOST_GROUPS, sum(map(_most_labels, grouped)))
    yield Estimate(_ACROSS, "", user=0, judge=0, dedup=ceil(groups / GROUPS_PER_CALL))


def _most_labels(unit: Unit) -> int:
    """How many failures judges can label."""
    labels = [BUILTIN[metric] for metric in unit.metrics if BUILTIN[metric].kind is Kind.LABEL]
    turns = len(unit.scenario.turns) or unit.max_turns
    places = sum(len(each.labels) * (turns if each.level is MetricLevel.TURN else 1) for each in labels)
    return unit.conversations * places


def _checked(found: Estimate, unit: Unit, samples: int) -> Estimate:
    looks = 2 * samples * unit.conversations if found.user else 0
    return replace(found, user=2 * found.user, judge=found.judge + looks)


def _confirmed(found: Estimate, unit: Unit, batch: Batch) -> Estimate:
    """With a call for each turn, and one for the whole, of which some answer may fail the scenario."""
    scenario = unit.scenario
    can_fail = [m for m in unit.metrics if m in unit.thresholds or BUILTIN[m].kind is not Kind.SCALE]
    of_turn = sum(BUILTIN[metric].level is MetricLevel.TURN for metric in can_fail)
    of_whole = len(can_fail) - of_turn + sum(criterion.required for criterion in scenario.criteria)
    together = Batch.TURN if batch is Batch.OFF else batch
    calls = _calls(len(scenario.turns) or unit.max_turns, of_turn, of_whole, together)
    return replace(found, judge=found.judge + unit.conversations * calls)


def _of(unit: Unit, user: bool, judge: bool, samples: int, batch: Batch) -> Estimate:
    scenario = unit.scenario
    turns = len(scenario.turns) or unit.max_turns
    # A user who follows a plan opens with words of the plan.
    spoken = max(0, turns - 1) if scenario.plan else turns
    if scenario.user_tools:  # before each message it may use them, and is asked again each time
        spoken *= 1 + MAX_ROUNDS
    of_turn = _asked(unit, MetricLevel.TURN)
    of_whole = _asked(unit, MetricLevel.CONVERSATION) + len(scenario.criteria)
    per_conversation = _calls(turns, of_turn, of_whole, batch) if judge else 0
    graded = sum(grader.most_calls(turns) for grader in unit.graders)
    return Estimate(
        scenario.name,
        unit.agent,
        0 if scenario.scripted or not user else unit.conversations * spoken,
        unit.conversations * (per_conversation * samples + (graded if judge else 0)),
        # Custom metrics with labels may need it too, so it is counted wherever there is a judge.
        int(judge and any(BUILTIN[m].kind is Kind.LABEL for m in unit.metrics)),
    )


def _asked(unit: Unit, level: MetricLevel) -> int:
    return sum(BUILTIN[metric].level is level for metric in unit.metrics)


def _calls(turns: int, of_turn: int, of_whole: int, batch: Batch) -> int:
    """The calls for one conversation.

    Args:
        of_turn, of_whole: how many questions there are about each turn, and about the whole.
    """
    if batch is Batch.CONVERSATION:
        return ceil(turns / TURNS_AT_ONCE) if of_turn else int(of_whole > 0)
    if batch is Batch.TURN:
        return turns * int(of_turn > 0) + int(of_whole > 0)
    return turns * of_turn + of_whole


def shown(estimates: Sequence[Estimate], several_agents: bool) -> Iterable[str]:
    """The estimates as lines of a table."""
    yield f"{'user':>8} {'judge':>8} {'dedup':>8} {'total':>8}  scenario"
    for e in estimates:
        agent = f"  [{e.agent}]" if several_agents and e.agent else ""
        yield f"{e.user:8,} {e.judge:8,} {e.dedup:8,} {e.total:8,}  {e.name}{agent}"
    user, judge, dedup = (sum(getattr(e, role) for e in estimates) for role in ("user", "judge", "dedup"))
    yield f"{user:8,} {judge:8,} {dedup:8,} {user + judge + dedup:8,}  in all, at most"
    yield "Retries, repairs of unusable answers and custom metrics that ask a model come on top."
