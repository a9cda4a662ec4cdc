"""Confirms a candidate, reduces its scenario to the smallest that still fails, and measures its rate.

Agents need not be deterministic, so each decision is a sequential test: a smaller scenario is accepted if it
fails often enough, compared with the original. Without any variation in the confirming conversations one
conversation decides, until one contradicts that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from agentest.config.config import ExploreSettings
from agentest.domain.reasons import conversation_passed
from agentest.domain.results import ConversationResult
from agentest.domain.results.exploration import FindingRate
from agentest.domain.transcript import Conversation, ToolCall
from agentest.plugins.explore.model import BudgetSpent, Observe, Reduced, Violation
from agentest.plugins.explore.reduction_steps import (
    NEED_CONTROL,
    REDUCTIONS,
    Reduction,
    SeenConversations,
    fingerprint,
)
from agentest.scenarios.model import Scenario
from agentest.support.calling import run_concurrently
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.statistics.intervals import wilson
from agentest.support.statistics.sequential import ErrorRates, RatioTest, SequentialDecision

_LEAST_RATE = 0.2  # the lowest rate that a reduced scenario must have
_REJECTED_SHARE = 0.25
_MISSED = 0.1


@dataclass(slots=True, eq=False)
class ReductionTrial:
    """Confirms, reduces and measures one candidate, in this order.

    Attributes:
        name: begins the names of its conversations, which say what they decide.
        violation_in: returns the violation of the candidate's key in a conversation, if it is there.
        left: the number of conversations that it may still reduce with.
        is_steady: True if one conversation decides, because those that confirmed were equal.
    """

    settings: ExploreSettings
    left: int
    scenario: Scenario
    name: str
    observe: Observe
    violation_in: Callable[[Scenario, ConversationResult], Violation | None]
    is_steady: bool = False
    _confirmed: Reduced = field(init=False)
    _smallest: Reduced = field(init=False)
    _steps: int = 0
    _first: Conversation | None = None
    _controls: dict[str, Conversation | None] = field(default_factory=dict)

    async def confirm(self) -> Reduced | None:
        """Return the candidate with its rate; None if it never occurred again. Raises BudgetSpent."""
        results = await self._observe_all(self.scenario, "confirm", self.settings.confirm)
        form = self._measured(self.scenario, results)
        if form is None or not form.rate.k:
            if len(results) < self.settings.confirm:
                raise BudgetSpent
            return None
        if form.rate.k / form.rate.n < form.violation.least_rate:
            return None
        self._confirmed = self._smallest = form
        self._first = form.example.conversation
        talks = [_essence(each.conversation) for each in results]
        self.is_steady = form.rate.k == len(talks) > 1 and all(each == talks[0] for each in talks)
        return form

    async def shrink(self) -> None:
        """Find the smallest form that the budget allows."""
        self._smallest = await self._reduced(self._confirmed)

    async def measure(self) -> Reduced:
        """Return that form with its rate in fresh conversations, as far as the budget allows."""
        measured = await self._measure_once("rate")
        if measured and self.is_steady and measured.rate.k < measured.rate.n:
            # One conversation decided, and should not have.
            self.is_steady = False
            await self.shrink()
            measured = await self._measure_once("second rate")
        if measured is None and (self.is_steady or not self.settings.report_rate):
            return self._smallest  # with the rate of the confirmed form
        if measured is None or not measured.rate.k:
            # Nothing is known of the smaller form, or it was accepted by chance.
            return self._confirmed
        return measured._replace(minimal=self._smallest.minimal)

    async def _measure_once(self, what: str) -> Reduced | None:
        results = await self._observe_all(self._smallest.scenario, what, self.settings.report_rate)
        return self._measured(self._smallest.scenario, results)

    def _measured(self, scenario: Scenario, results: Sequence[ConversationResult]) -> Reduced | None:
        found = [(each, self.violation_in(scenario, each)) for each in results]
        violated = [(result, violation) for result, violation in found if violation is not None]
        interval = wilson(len(violated), len(results))
        if interval is None:
            return None
        rate = FindingRate(len(violated), len(results), interval.low, interval.high)
        if not violated:
            return Reduced(scenario, results[0], _NOTHING, rate)
        return Reduced(scenario, *violated[0], rate)

    async def _observe_all(self, scenario: Scenario, what: str, count: int) -> list[ConversationResult]:
        async def run(number: int) -> ConversationResult | None:
            try:
                return await self.observe(scenario, f"{self.name} · {what}", number)
            except BudgetSpent:
                return None

        results = await run_concurrently([partial(run, number) for number in range(1, count + 1)])
        return [each for each in results if each is not None]

    async def _reduced(self, form: Reduced) -> Reduced:
        """Return the smallest form that the budget allows, `minimal` if every smaller one was rejected."""
        rejected: set[str] = set()
        try:
            while True:
                before, complete = form, True
                for reduction in REDUCTIONS:
                    form, decided = await self._reduced_by(reduction, form, rejected)
                    complete = complete and decided
                if form is before:
                    return form._replace(minimal=complete)
        except _OutOfBudget as stop:
            return stop.form

    async def _reduced_by(
        self, reduction: Reduction, form: Reduced, rejected: set[str]
    ) -> tuple[Reduced, bool]:
        """Apply one reduction until it finds nothing smaller. Returns False if a decision stayed open."""
        control = await self._control(form) if reduction in NEED_CONTROL else None
        complete = not (reduction in NEED_CONTROL and form.scenario.changes and control is None)
        while True:
            failing, turn_index = form.example.conversation, form.violation.turn_index
            talks = SeenConversations(failing, turn_index, self._first, control)
            for candidate in reduction(form.scenario, talks):
                mark = fingerprint(candidate)
                if mark in rejected:
                    continue
                smaller, decided = await self._decide(form, candidate, control)
                if smaller is not None:
                    form = smaller
                    break
                complete = complete and decided
                rejected.add(mark)
            else:
                return form, complete

    async def _decide(
        self, form: Reduced, candidate: Scenario, control: Conversation | None
    ) -> tuple[Reduced | None, bool]:
        """Return the candidate's form, None if it does not fail often enough, and if that was decided."""
        self._steps += 1
        step = f"step {self._steps}"
        smaller, decided = await self._still_fails(form, candidate, step)
        if smaller is not None and control is not None:
            plain = replace(candidate, changes=())
            other = await self._run(form, plain, f"{step} control", 1)
            if not _goes_well(other) or _tools(other.conversation) != _tools(control):
                return None, True
            self._controls[fingerprint(plain)] = other.conversation
        return smaller, decided

    async def _still_fails(
        self, form: Reduced, candidate: Scenario, step: str
    ) -> tuple[Reduced | None, bool]:
        # The rate is the one of the original form, so that rates do not drift down.
        high = max(form.rate.k / form.rate.n / 2, _LEAST_RATE)
        shrink = self.settings.shrink
        errors = ErrorRates(missed=_MISSED, holds=shrink.error)
        test = RatioTest(high=high, low=high * _REJECTED_SHARE, last=shrink.max_runs, errors=errors)
        hits = values = 0
        found: Reduced | None = None
        while test.is_open(values, hits):
            result = await self._run(form, candidate, step, values + 1)
            violation = self.violation_in(candidate, result)
            values += 1
            if violation is not None:
                hits += 1
                found = found or Reduced(candidate, result, violation, form.rate)
            if self.is_steady:
                return found, True
        decision = test.standing(values, hits)
        is_accepted = decision is SequentialDecision.HOLDS
        return found if is_accepted else None, decision is not SequentialDecision.OPEN

    async def _control(self, form: Reduced) -> Conversation | None:
        if not form.scenario.changes:
            return None
        plain = replace(form.scenario, changes=())
        mark = fingerprint(plain)
        if mark not in self._controls:
            self._steps += 1
            result = await self._run(form, plain, f"step {self._steps} control", 1)
            self._controls[mark] = result.conversation if _goes_well(result) else None
        return self._controls[mark]

    async def _run(self, form: Reduced, scenario: Scenario, step: str, number: int) -> ConversationResult:
        if self.left <= 0:
            raise _OutOfBudget(form)
        self.left -= 1
        try:
            return await self.observe(scenario, f"{self.name} · {step}", number)
        except BudgetSpent:
            raise _OutOfBudget(form) from None


class _OutOfBudget(Exception):
    def __init__(self, form: Reduced) -> None:
        super().__init__()
        self.form = form


_NOTHING: Any = None


def _goes_well(result: ConversationResult) -> bool:
    return result.conversation.failure is None and conversation_passed(result)


def _tools(conversation: Conversation) -> list[tuple[str, bool]]:
    return [(call.name, call.failed) for call in conversation.tool_calls]


def _essence(conversation: Conversation) -> tuple[Any, ...]:
    turns = [
        (turn.user_message, turn.agent_message, *map(_call, turn.tool_calls)) for turn in conversation.turns
    ]
    rest = conversation.unfinished
    failure = conversation.failure.message if conversation.failure else None
    return turns, rest and (rest.user_message, *map(_call, rest.tool_calls)), failure


def _call(call: ToolCall) -> tuple[Any, ...]:
    return call.name, call.args, call.result, call.error, call.invalid_arguments
