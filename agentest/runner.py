"""The order of a run: which conversation when, what is judged meanwhile, and what becomes of it.

Conversations share one limiter, over all scenarios. Judging a turn starts when it closes, in the
conversation's own task group but outside its place in the limiter: a slow judge holds no conversation back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from time import perf_counter

import anyio

from agentest import __version__
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
    started: float | None = None
    beginning: anyio.Lock = field(default_factory=anyio.Lock)
    finished: dict[int, ConversationResult] = field(default_factory=dict)
    result: ScenarioResult | None = None


class Stop:
    """Stops a run before its end; the first reason counts. What had finished is kept."""

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.reason: str | None = None
        self.status = Status.ERRORED
        self.interrupted = False

    def __call__(self, reason: str, status: Status = Status.ERRORED, *, interrupted: bool = False) -> None:
        """Stop, for this reason; `status` is what becomes of the scenarios that had not finished."""
        if self.reason is None:
            self.reason, self.status, self.interrupted = reason, status, interrupted
        self.scope.cancel()

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
    return await _Run(plan, settings, ports, emit, stop or Stop()).run()


class _Run:
    def __init__(self, plan: Plan, settings: Settings, ports: Ports, emit: Emit, stop: Stop) -> None:
        self._plan = plan
        self._settings = settings
        self._ports = ports
        self._emit = emit
        self._stop = stop
        self._places = anyio.CapacityLimiter(settings.concurrency)
        self._pace = anyio.Lock()
        self._next_start = 0.0
        self._judge = (
            Judge(ports.models.judge, settings.samples, settings.batch) if ports.models.judge else None
        )
        self._states = {id(unit): _UnitState(unit) for unit in plan.units}

    async def run(self) -> RunResult:
        began, started_at = perf_counter(), datetime.now(UTC).isoformat(timespec="milliseconds")
        self._emit(self._started())
        for entry in self._plan.entries:
            if isinstance(entry, ScenarioResult):
                self._emit(ScenarioFinished(entry))
        with self._stop.scope:
            async with anyio.create_task_group() as tasks:
                for unit in self._plan.units:
                    tasks.start_soon(self._run_unit, unit)
        result = RunResult(
            scenarios=tuple(
                entry if isinstance(entry, ScenarioResult) else self._result_of(self._states[id(entry)])
                for entry in self._plan.entries
            ),
            agents=tuple(self._plan.agents),
            comparison=self._plan.comparison,
            started_at=started_at,
            duration_ms=(perf_counter() - began) * 1000,
            version=__version__,
            models=self._model_names(),
            interrupted=self._stop.interrupted,
            stopped=self._stop.reason,
        )
        self._emit(RunFinished(result))
        return result

    def _started(self) -> RunStarted:
        return RunStarted(
            version=__version__,
            agents={name: endpoint(agent) for name, agent in self._plan.agents.items()},
            scenarios=len(self._plan.entries),
            conversations=sum(unit.conversations for unit in self._plan.units),
            concurrency=self._settings.concurrency,
            models=self._model_names(),
            comparison=self._plan.comparison,
        )

    def _model_names(self) -> dict[str, str | None]:
        models = self._ports.models
        return {
            "user": models.user.name if models.user else None,
            "judge": models.judge.name if models.judge else None,
        }

    async def _run_unit(self, unit: Unit) -> None:
        state = self._states[id(unit)]
        async with anyio.create_task_group() as tasks:
            for number in range(1, unit.conversations + 1):
                tasks.start_soon(self._run_conversation, state, number)
        deduplication = await self._deduplicate(state)
        state.result = self._judged(state, deduplication)
        self._emit(ScenarioFinished(state.result))
        if self._settings.fail_fast and state.result.verdict.status is Status.FAILED:
            self._stop("stopped by --fail-fast", Status.SKIPPED)

    async def _run_conversation(self, state: _UnitState, number: int) -> None:
        unit = state.unit
        conversation_id = f"{unit.slug}-{number}"
        evaluation = OngoingEvaluation(self._evaluator(unit), number)

        def closed(turns: tuple[Turn, ...]) -> None:
            self._emit(TurnFinished(unit.scenario.name, unit.agent, conversation_id, turns[-1].turn_index))
            judging.start_soon(evaluation.add_turn, turns)

        async with anyio.create_task_group() as judging:
            async with self._places:
                await self._begin(state)
                conversation = await self._ports.holder.hold(unit, number, conversation_id, closed)
            await evaluation.add_conversation(conversation)
        result = evaluation.result(conversation)
        state.finished[number] = result
        self._emit(ConversationFinished(unit.scenario.name, unit.agent, result))

    async def _begin(self, state: _UnitState) -> None:
        """Let the scenario begin, `debounce_s` after the one before it; later conversations find it begun."""
        async with state.beginning:
            if state.started is not None:
                return
            async with self._pace:
                await anyio.sleep_until(self._next_start)
                self._next_start = anyio.current_time() + self._settings.debounce_s
            state.started = perf_counter()
        unit = state.unit
        self._emit(ScenarioStarted(unit.scenario.name, unit.agent, unit.conversations))

    def _evaluator(self, unit: Unit) -> Evaluator:
        return Evaluator(
            unit.scenario,
            unit.scope,
            unit.metrics,
            self._plan.custom,
            unit.graders,
            self._judge,
            self._ports.redact.error,
        )

    async def _deduplicate(self, state: _UnitState) -> Deduplication:
        failures = [f for n in sorted(state.finished) for f in state.finished[n].failures]
        unit = state.unit
        found = await deduplicate(
            failures, unit.scenario.name, unit.scenario.goal, self._ports.models.judge, unit.scope
        )
        return replace(found, error=self._ports.redact.error(found.error)) if found.error else found

    def _judged(
        self, state: _UnitState, deduplication: Deduplication, stopped: Reason | None = None
    ) -> ScenarioResult:
        unit = state.unit
        conversations = tuple(state.finished[n] for n in sorted(state.finished))
        thresholds = _of_a_part(unit.thresholds) if stopped else unit.thresholds
        verdict = decide(conversations, deduplication, thresholds, self._settings.fail_on)
        return ScenarioResult(
            name=unit.scenario.name,
            agent=unit.agent,
            file=unit.file,
            line=unit.scenario.line,
            verdict=_cut_short(verdict, stopped) if stopped else verdict,
            conversations=conversations,
            averages=averages(conversations),
            thresholds=unit.thresholds,
            errors=deduplication.groups,
            skipped_metrics=skipped_metrics(conversations),
            tags=unit.scenario.tags,
            duration_ms=(perf_counter() - state.started) * 1000 if state.started else 0.0,
            usage=self._ports.ledger.of(unit.scope),
            case=unit.scenario.case,
        )

    def _result_of(self, state: _UnitState) -> ScenarioResult:
        """The unit's result; made of what had finished where the run was stopped before its end."""
        if state.result:
            return state.result
        done = f"after {len(state.finished)} of {state.unit.conversations} conversations"
        stopped = Reason(self._stop.status, ReasonKind.INTERRUPTED, f"{self._stop.reason}: {done}")
        # Groups would cost another call to the model: the failures keep their labels, at medium severity.
        failures = [failure for found in state.finished.values() for failure in found.failures]
        return self._judged(state, group_by_label(failures), stopped)


def _of_a_part(thresholds: Mapping[str, float]) -> dict[str, float]:
    """Thresholds for a part of a scenario: none, as the rest might have met them; nor does one failed
    conversation decide where some may fail."""
    return {PASS_RATE: 0.0} if PASS_RATE in thresholds else {}


def _cut_short(verdict: Verdict, stopped: Reason) -> Verdict:
    """The verdict on a part of a scenario: it may have failed already, but it cannot have passed."""
    status = Status.FAILED if verdict.status is Status.FAILED else stopped.status
    kept = tuple(r for r in verdict.reasons if r.kind is not ReasonKind.INTERRUPTED)
    return Verdict(status, (*kept, stopped))
