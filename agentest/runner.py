"""The order of a run: which conversation when, what is judged meanwhile, and what becomes of it.

Conversations share one limiter, over all scenarios. Judging a turn starts when it closes, in the
conversation's own task group but outside its place in the limiter: a slow judge holds no conversation back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any, Protocol

import anyio
from anyio.abc import TaskGroup

from agentest import __version__
from agentest.config import sight_of
from agentest.evaluate.custom import Metric
from agentest.evaluate.dedup import deduplicate, group_by_label
from agentest.evaluate.evaluation import Evaluator, OngoingEvaluation
from agentest.evaluate.judge import Judge
from agentest.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
    TurnFinished,
)
from agentest.holding import Holder
from agentest.llm.open import Models
from agentest.llm.port import Ledger
from agentest.metric_names import PASS_RATE
from agentest.plan import Plan, Unit, endpoint
from agentest.redact import Redactor
from agentest.results import (
    ConversationResult,
    Deduplication,
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Severity,
    Status,
    Verdict,
)
from agentest.seeing import silence
from agentest.sight import Sight, ways_to_see
from agentest.storing import stored
from agentest.totals import slimmed, totals_of, warnings_of
from agentest.transcript import Turn
from agentest.verdict import averages, decide, skipped_metrics

Emit = Callable[[Event], object]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a run is run."""

    concurrency: int = 20
    debounce_s: float = 0.0
    fail_on: Severity = Severity.CRITICAL
    samples: int = 1
    batch: bool = False
    fail_fast: bool = False
    keep_conversations: bool = True
    """Whether results hold their conversations after they have been told of."""


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


class Stop:
    """Stops a run before its end; the first reason counts. What had finished is kept.

    Args:
        on_stop: is told once, when the first reason is given.
    """

    def __init__(self, on_stop: Callable[[Stop], None] = lambda _: None) -> None:
        self.scope = anyio.CancelScope()
        self._on_stop = on_stop
        self.reason: str | None = None
        self.status = Status.ERRORED
        self.interrupted = False

    def __call__(self, reason: str, status: Status = Status.ERRORED, *, interrupted: bool = False) -> None:
        """Stop, for this reason; `status` is what becomes of the scenarios that had not finished."""
        first = self.reason is None
        if first:
            self.reason, self.status, self.interrupted = reason, status, interrupted
        self.scope.cancel()
        if first:
            self._on_stop(self)

    def interrupt(self) -> None:
        """Stop because the user wants it."""
        self("interrupted", interrupted=True)


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


class RunOrder:
    """The frame around a run's units: what is told before the first and after the last."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        models: Mapping[str, str | None],
        emit: Emit,
        stop: Stop,
        redact: Redactor,
    ) -> None:
        self._plan = plan
        self._redact = redact
        self._settings = settings
        self._models = models
        self._emit = emit
        self._stop = stop
        self._sights = {name: sight_of(agent) for name, agent in plan.agents.items()}
        self._began = 0.0
        self._started_at = ""

    def begin(self) -> None:
        """Tell that the run begins, and of what is not run at all."""
        self._began, self._started_at = perf_counter(), datetime.now(UTC).isoformat(timespec="milliseconds")
        agents = {name: self._redact(endpoint(agent)) for name, agent in self._plan.agents.items()}
        conversations = sum(unit.conversations for unit in self._plan.units)
        self._emit(
            RunStarted(
                version=__version__,
                started_at=self._started_at,
                agents=agents,
                scenarios=len(self._plan.entries),
                conversations=conversations,
                concurrency=self._settings.concurrency,
                models=self._models,
                comparison=self._plan.comparison,
                planned=tuple((unit.scenario.name, unit.agent, unit.planned) for unit in self._plan.units),
                sights=self._sights,
            )
        )
        for entry in self._plan.entries:
            if isinstance(entry, ScenarioResult):
                self._emit(ScenarioFinished(entry))

    def conclude(self, results: Mapping[str, ScenarioResult]) -> RunResult:
        """The whole run from its units' results, by scope; units without one were never begun."""
        scenarios = tuple(
            entry if isinstance(entry, ScenarioResult) else results.get(entry.scope) or self._unbegun(entry)
            for entry in self._plan.entries
        )
        result = RunResult(
            scenarios=scenarios,
            agents=tuple(self._plan.agents),
            comparison=self._plan.comparison,
            started_at=self._started_at,
            duration_ms=(perf_counter() - self._began) * 1000,
            version=__version__,
            models=self._models,
            interrupted=self._stop.interrupted,
            stopped=self._stop.reason,
            sights=self._sights,
            silent=silence(self._plan, results),
        )
        self._emit(RunFinished(result))
        return result

    def _unbegun(self, unit: Unit) -> ScenarioResult:
        reason = _stopped(self._stop, 0, unit)
        result = scenario_result(unit, Verdict(self._stop.status, (reason,)))
        self._emit(ScenarioFinished(result))
        return result


def model_names(models: Models) -> dict[str, str | None]:
    """Role → model; None is offline."""
    return {
        "user": models.user.name if models.user else None,
        "judge": models.judge.name if models.judge else None,
    }


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

    def _evaluator(self, unit: Unit) -> Evaluator:
        return Evaluator(
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
        stopped = _stopped(self._stop, len(state.finished), state.unit)
        return self._result(state, group_by_label(failures), stopped)


def scenario_result(unit: Unit, verdict: Verdict, **found: Any) -> ScenarioResult:
    """A unit's result: what it was, and what was found out."""
    scenario = unit.scenario
    return ScenarioResult(
        name=scenario.name,
        agent=unit.agent,
        file=unit.file,
        line=scenario.line,
        verdict=verdict,
        thresholds=unit.thresholds,
        tags=scenario.tags,
        case=scenario.case,
        planned=unit.planned,
        **found,
    )


def _stopped(stop: Stop, finished: int, unit: Unit) -> Reason:
    done = f"after {finished} of {unit.conversations} conversations"
    return Reason(stop.status, ReasonKind.INTERRUPTED, f"{stop.reason}: {done}")


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
