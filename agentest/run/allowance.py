"""Which conversations a run with a budget may start: as many as the budget can finish.

What a conversation needs is known from those that have finished, from an earlier run, or else from the most
calls that it can make. It is looked up whenever somebody waits, so that estimates follow what is learnt.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil

import anyio

from agentest.forecast import Took
from agentest.llm.budget import Budget
from agentest.llm.port import CallKey
from agentest.llm.recording.answers import MeasuringLedger
from agentest.llm.recording.cassette import Cassettes
from agentest.results import ModelUsage
from agentest.run.estimate import Estimate
from agentest.run.plan import Unit

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

    def less(self, used: ModelUsage) -> Need:
        """What is left of it: at least one call, where it takes any."""
        if not self.calls:
            return self
        calls = max(1, self.calls - used.calls)
        return Need(calls, self.cost * calls / self.calls)


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
        self._undecided: set[str] = set()
        """Scopes of units that have started and will be grouped."""
        self._finished: dict[str, list[Need]] = {}
        """Scope → what each finished conversation took."""
        self._waiting = 0
        self._turn = anyio.Lock()
        self._changed = anyio.Event()
        budget.others_go_on = self._others_go_on
        budget.on_exhausted = self._exhausted
        ledger.on_paid = self._wake

    def starts(self, unit: Unit, number: int) -> bool:
        """Start the conversation if the budget can finish it at once, and nobody waits for that."""
        if self._waiting or not self._fits(unit, number):
            return False
        self._start(unit, number)
        return True

    async def wait(self, unit: Unit, number: int) -> None:
        """Start the conversation when the budget can finish it. Stops the run where it never will."""
        self._waiting += 1
        try:
            async with self._turn:
                while not self._fits(unit, number):
                    if not self._moving:
                        self._stop(self._too_little(unit, number))
                        await anyio.sleep_forever()
                    await self._changed.wait()
                self._start(unit, number)
        finally:
            self._waiting -= 1

    def finished(self, unit: Unit, number: int) -> None:
        """The conversation has finished: what it took says what others need."""
        key = unit.scope, number
        _, before = self._under_way.pop(key)
        self._moving.pop(key)
        took = self._ledger.paid.pop(key, ModelUsage()) + before
        self._finished.setdefault(unit.scope, []).append(_need(took))
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
        self._undecided.discard(unit.scope)
        self._ledger.paid.pop((unit.scope, 0), None)
        self._done(unit.scope, 0)

    def _done(self, scope: str, number: int) -> None:
        if self._answers:
            self._answers.done(scope, number)

    def _start(self, unit: Unit, number: int) -> None:
        key = unit.scope, number
        self._under_way[key] = unit, self._answered(unit, number)
        self._moving[key] += 1
        if self._most[unit.scope].dedup:
            self._undecided.add(unit.scope)

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
        need = need.less(self._answered(unit, number)) + self._grouping(unit.scope, new=True)
        if not self._moving and not self._within(need, self._budget.max_calls, self._budget.max_cost):
            return True  # no run with this budget can pay for it at once, so this one begins to
        for key, (other, before) in self._under_way.items():
            is_first = not self._finished and key == next(iter(self._under_way))
            whole = self._at_most(other) if is_first else self._needed(other)
            need += whole.less(before + self._ledger.paid.get(key, ModelUsage()))
        for scope in self._undecided - {unit.scope}:
            need += self._grouping(scope)
        return self._within(need, self._budget.left_calls, self._budget.left_cost)

    @staticmethod
    def _within(need: Need, calls: int | None, cost: float | None) -> bool:
        return (calls is None or need.calls <= calls) and (cost is None or need.cost <= cost)

    def _grouping(self, scope: str, *, new: bool = False) -> Need:
        """What is left of the call that groups the failures of a scenario."""
        open_ = self._most[scope].dedup and (new or scope in self._undecided)
        if not open_ or self._ledger.paid.get((scope, 0)):
            return Need()
        return Need(1, self._per_call())

    def _needed(self, unit: Unit) -> Need:
        """What a conversation needs, on the safe side: the most that one of its scenario took."""
        if own := self._finished.get(unit.scope):
            return Need(max(each.calls for each in own), max(each.cost for each in own))
        known = [each for several in self._finished.values() for each in several]
        if not (earlier := self._earlier(unit)):
            if not known:
                return self._at_most(unit)
            most = self._at_most(unit).calls
            return Need(min(most, max(each.calls for each in known)), max(each.cost for each in known))
        if earlier.cost == _NEVER and known:
            return Need(earlier.calls, max(each.cost for each in known))
        return earlier

    def _least(self, unit: Unit) -> Need:
        """What a conversation needs at the least; with it alone under way, there is nobody to fall short."""
        if own := self._finished.get(unit.scope):
            return Need(min(each.calls for each in own), min(each.cost for each in own))
        if earlier := self._earlier(unit):
            return earlier if earlier.cost < _NEVER else Need(earlier.calls, self._per_call() * earlier.calls)
        known = [each for several in self._finished.values() for each in several]
        return Need(min(each.calls for each in known), min(each.cost for each in known))

    def _earlier(self, unit: Unit) -> Need | None:
        took = self._took.get((unit.scenario.name, unit.agent))
        if took is None:
            return None
        cost = _NEVER if took.cost is None else took.cost / took.conversations
        return Need(ceil(took.calls / took.conversations), cost)

    def _at_most(self, unit: Unit) -> Need:
        """The most calls that a conversation can make, at the price of those so far."""
        most = self._most[unit.scope]
        calls = ceil((most.user + most.judge) / max(1, unit.conversations))
        return Need(calls, calls * self._per_call() * _GROWTH)

    def _per_call(self) -> float:
        """What a call costs; infinite where nothing is known."""
        paid = self._ledger.total
        if self._budget.left_cost is None:
            return 0.0
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
        need = self._least(unit).less(self._answered(unit, number)) + self._grouping(unit.scope, new=True)
        takes = [f"about {need.calls} calls"] if self._budget.left_calls is not None else []
        takes += [f"about {need.cost:.2g} USD"] if self._budget.left_cost is not None else []
        rest = f"; {self._resumed_by} runs the rest" if self._resumed_by else ""
        return (
            f"{self._budget.limit}, and the next conversation (scenario {unit.scenario.name!r}) needs "
            f"{' and '.join(takes)}{rest}"
        )
