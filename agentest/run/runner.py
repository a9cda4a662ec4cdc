"""The order of a run: which conversation when, what is judged meanwhile, and what becomes of it.

Conversations share one limiter, over all scenarios. Judging a turn starts when it closes, in the
conversation's own task group but outside its place in the limiter: a slow judge holds no conversation back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agentest.evaluate.custom import Metric
from agentest.evaluate.dedup import deduplicate, group_by_label
from agentest.evaluate.evaluation import OngoingEvaluation, ScenarioEvaluator
from agentest.evaluate.judge import Judge
from agentest.events import (
    ConversationFinished,
    Emit,
    ScenarioFinished,
    ScenarioStarted,
    TurnFinished,
)
from agentest.llm.open import Models
from agentest.llm.port import Ledger
from agentest.metrics import PASS_RATE
from agentest.results import (
    ConversationResult,
    Deduplication,
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Status,
    Verdict,
)
from agentest.run.frame import RunOrder, model_names, scenario_result, stop_reason
from agentest.run.plan import Plan, Unit
from agentest.run.settings import Settings
from agentest.run.sources import Holder
from agentest.run.stop import Stop
from agentest.run.totals import slimmed, warnings_of
from agentest.sight import Sight, ways_to_see
from agentest.storing import stored
from agentest.support.redact import Redactor
from agentest.totals import totals_of
from agentest.transcript import Turn
from agentest.verdict import averages, decide, skipped_metrics


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything outside the program that a run talks to; tests pass in their own."""

    holder: Holder
    models: Models = field(default_factory=Models)
    ledger: Ledger = field(default_factory=Ledger)
    redact: Redactor = field(default_factory=Redactor)


@dataclass(slots=True)
class _UnitState:
    """What a unit has come to so far; a run that is stopped makes its result from it."""

    unit: Unit
    started: float = 0.0
    finished: dict[int, ConversationResult] = field(default_factory=dict)


async def run(
    plan: Plan, settings: Settings, ports: Ports, emit: Emit, stop: Stop | None = None
) -> RunResult:
    """Run everything that is planned. Never raises for what happens inside a conversation.

    Args:
        emit: is told of every event, in order; must not raise.
        stop: whoever calls it stops the run; what had finished is in the result, which says why.
    """
    stop = stop or Stop()
    order = RunOrder(plan, settings, model_names(ports.models), emit, stop, ports.redact)
    order.begin()
    units = InOrder(plan.units, settings.debounce_s)
    return order.conclude(await run_units(units, plan.custom, settings, ports, emit, stop))


class UnitSource(Protocol):
    """Hands out the units of a run, each to one taker."""

    async def take(self) -> Unit | None:
        """The next unit, when it may begin; None when there is none left."""
        ...


class InOrder:
    """All units, one after another, each at least `debounce_s` after the one before it."""

    def __init__(self, units: Iterable[Unit], debounce_s: float = 0.0) -> None:
        self._units = iter(units)
        self._debounce_s = debounce_s
        self._next_start = 0.0

    async def take(self) -> Unit | None:
        unit = next(self._units, None)
        if unit is not None and self._debounce_s:
            await anyio.sleep_until(self._next_start)
            self._next_start = anyio.current_time() + self._debounce_s
        return unit


async def run_units(
    units: UnitSource,
    custom: Sequence[Metric],
    settings: Settings,
    ports: Ports,
    emit: Emit,
    stop: Stop,
) -> dict[str, ScenarioResult]:
    """Run units, each taken when there is a place for its first conversation.

    Returns the results by scope of all that were begun, those included that a stop cut short.
    """
    return await _Units(custom, settings, ports, emit, stop).run(units)


class _Units:
    def __init__(
        self, custom: Sequence[Metric], settings: Settings, ports: Ports, emit: Emit, stop: Stop
    ) -> None:
        self._custom = custom
        self._settings = settings
        self._ports = ports
        self._emit = emit
        self._stop = stop
        self._places = anyio.Semaphore(settings.concurrency)
        self._judge = (
            Judge(ports.models.judge, settings.samples, settings.batch) if ports.models.judge else None
        )
        self._begun: dict[str, _UnitState] = {}
        self._results: dict[str, ScenarioResult] = {}

    async def run(self, units: UnitSource) -> dict[str, ScenarioResult]:
        with self._stop.scope:
            async with anyio.create_task_group() as tasks:
                await self._start(units, tasks)
        for state in list(self._begun.values()):
            self._finish(state, self._cut_short(state))
        return self._results

    async def _start(self, units: UnitSource, tasks: TaskGroup) -> None:
        """Start each conversation when there is a place for it: tasks that wait would fill the memory."""
        await self._places.acquire()
        while unit := await units.take():
            state = self._begun[unit.scope] = _UnitState(unit, perf_counter())
            self._emit(ScenarioStarted(unit.scenario.name, unit.agent, unit.conversations))
            for number in range(1, unit.conversations + 1):
                tasks.start_soon(self._run_conversation, state, number)
                await self._places.acquire()
        self._places.release()

    async def _run_conversation(self, state: _UnitState, number: int) -> None:
        unit = state.unit
        conversation_id = f"{unit.slug}-{number}"
        evaluation = OngoingEvaluation(self._evaluator(unit), number)

        def closed(turns: tuple[Turn, ...]) -> None:
            self._emit(TurnFinished(unit.scenario.name, unit.agent, conversation_id, turns[-1].turn_index))
            judging.start_soon(evaluation.add_turn, turns)

        began = perf_counter()
        async with anyio.create_task_group() as judging:
            try:
                conversation = await self._ports.holder.hold(unit, number, conversation_id, closed)
            finally:
                self._places.release()
            held = perf_counter()
            await evaluation.add_conversation(conversation)
        now = perf_counter()
        judged_ms = (now - held) * 1000 if self._judge else 0.0
        time = replace(conversation.time, total_ms=(now - began) * 1000, judges_ms=judged_ms)
        result = stored(replace(evaluation.result(conversation), time=time))
        # A case's scores are shown with what was said; other conversations have been told of already.
        slim = not self._settings.keep_conversations and unit.scenario.case is None
        state.finished[number] = slimmed(result) if slim else result
        self._emit(
            ConversationFinished(
                unit.scenario.name, unit.agent, result, number, unit.scenario.case, unit.thresholds
            )
        )
        if len(state.finished) == unit.conversations:
            await self._judge_unit(state)

    async def _judge_unit(self, state: _UnitState) -> None:
        """What becomes of a unit whose conversations have all been held."""
        result = self._result(state, await self._deduplicate(state), _incomplete(state.unit))
        self._finish(state, result)
        if self._settings.fail_fast and result.verdict.status is Status.FAILED:
            self._stop("stopped by --fail-fast", Status.SKIPPED)

    def _finish(self, state: _UnitState, result: ScenarioResult) -> None:
        scope = state.unit.scope
        del self._begun[scope]
        self._emit(ScenarioFinished(result))
        kept = self._settings.keep_conversations
        self._results[scope] = result if kept else replace(result, conversations=())

    def _evaluator(self, unit: Unit) -> ScenarioEvaluator:
        return ScenarioEvaluator(
            unit.scenario,
            unit.scope,
            unit.metrics,
            self._custom,
            unit.graders,
            self._judge,
            self._ports.redact.error,
            ways_to_see(unit.agent) if unit.sight is Sight.UNSEEN else None,
            unit.metrics_named,
        )

    async def _deduplicate(self, state: _UnitState) -> Deduplication:
        failures = [f for n in sorted(state.finished) for f in state.finished[n].failures]
        unit = state.unit
        found = await deduplicate(
            failures, unit.scenario.name, unit.scenario.goal, self._ports.models.judge, unit.scope
        )
        return replace(found, error=self._ports.redact.error(found.error)) if found.error else found

    def _result(
        self, state: _UnitState, deduplication: Deduplication, stopped: Reason | None = None
    ) -> ScenarioResult:
        unit = state.unit
        conversations = tuple(state.finished[n] for n in sorted(state.finished))
        thresholds = _of_a_part(unit.thresholds) if stopped else unit.thresholds
        exact = unit.scenario.case is not None
        verdict = decide(conversations, deduplication, thresholds, self._settings.fail_on, exact=exact)
        return scenario_result(
            unit,
            _cut_short(verdict, stopped) if stopped else verdict,
            conversations=conversations,
            averages=averages(conversations, exact=exact),
            errors=deduplication.groups,
            skipped_metrics=skipped_metrics(conversations),
            duration_ms=(perf_counter() - state.started) * 1000,
            usage=self._ports.ledger.of(unit.scope),
            totals=totals_of(conversations),
            warnings=tuple(map(self._ports.redact.error, warnings_of(conversations))),
        )

    def _cut_short(self, state: _UnitState) -> ScenarioResult:
        """The unit's result, made of what had finished when the run was stopped."""
        # Groups would cost another call to the model: the failures keep their labels, at medium severity.
        failures = [failure for found in state.finished.values() for failure in found.failures]
        stopped = stop_reason(self._stop, len(state.finished), state.unit)
        return self._result(state, group_by_label(failures), stopped)


def _incomplete(unit: Unit) -> Reason | None:
    """Why the unit cannot pass: an earlier run was ended before it had held all of its conversations."""
    if unit.conversations >= unit.planned:
        return None
    message = f"of {unit.planned} conversations the earlier run held {unit.conversations}"
    return Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)


def _of_a_part(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Thresholds for a part of a scenario: none, as the rest might have met them; nor does one failed
    conversation decide where some may fail."""
    return {PASS_RATE: 0.0} if PASS_RATE in thresholds else {}


def _cut_short(verdict: Verdict, stopped: Reason) -> Verdict:
    """The verdict on a part of a scenario: it may have failed already, but it cannot have passed."""
    status = Status.FAILED if verdict.status is Status.FAILED else stopped.status
    kept = tuple(r for r in verdict.reasons if r.kind is not ReasonKind.INTERRUPTED)
    return Verdict(status, (*kept, stopped))
