"""The order of a run: which conversation runs when, and that it converses, evaluates, decides and reports.

Conversations share one limiter, over all scenarios. Judging a turn starts when it closes, in the
conversation's own task group but outside its place in the limiter: a slow judge delays no conversation. The
conversations of a scenario that is not `parallel` keep one place among them until the last has been held, and
so do all scenarios with an agent that is `exclusive`: they stand in a line and take no place while they wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agentest.conversation.loop import OnTurn
from agentest.evaluate.custom import Metric
from agentest.events import (
    ConversationFinished,
    ConversationHeld,
    ConversationStarted,
    Emit,
    ScenarioFinished,
    ScenarioStarted,
    TurnFinished,
)
from agentest.llm.port import CallKey
from agentest.results import ConversationResult, ModelUsage, ScenarioResult, Status
from agentest.run.connections import Connections
from agentest.run.plan import Unit
from agentest.run.settings import Settings
from agentest.run.stop import Stop
from agentest.run.totals import slimmed
from agentest.run.units import UnitDecision, UnitEvaluation, UnitProgress
from agentest.run.user_check import Finding, user_check
from agentest.storing import stored
from agentest.transcript import Conversation, Turn
from agentest.verdict import conversation_failed


class UnitQueue(Protocol):
    """Gives each unit of a run to one runner."""

    async def next(self) -> Unit | None:
        """The next unit, when it may begin; None when there is none left."""
        ...


class Pace:
    """Lets each unit begin at least `debounce_s` after the one before it."""

    def __init__(self, debounce_s: float) -> None:
        self._debounce_s = debounce_s
        self._next_start = 0.0

    async def wait(self) -> None:
        """Wait until the next unit may begin."""
        if self._debounce_s:
            await anyio.sleep_until(self._next_start)
            self._next_start = anyio.current_time() + self._debounce_s


class PacedUnits:
    """All units in their order, each at least `debounce_s` after the one before it."""

    def __init__(self, units: Iterable[Unit], debounce_s: float = 0.0) -> None:
        self._units = iter(units)
        self._pace = Pace(debounce_s)

    async def next(self) -> Unit | None:
        unit = next(self._units, None)
        if unit is not None:
            await self._pace.wait()
        return unit


class _Waiting:
    """A conversation that has its place but may not begin yet leaves the place to others."""

    def __init__(self, places: anyio.Semaphore) -> None:
        self._places = places
        self.seconds = 0.0
        """How long it waited."""

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[None]:
        """A block in which the conversation waits: without its place, and not in its own time."""
        began = perf_counter()
        self._places.release()
        try:
            yield
        finally:
            await self._places.acquire()
            self.seconds += perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Held:
    """A conversation that was held, and when that was, by `perf_counter`."""

    conversation: Conversation
    began: float
    """Without the time in which it waited for others."""
    ended: float


async def run_units(
    units: UnitQueue,
    custom: Sequence[Metric],
    settings: Settings,
    connections: Connections,
    emit: Emit,
    stop: Stop,
) -> dict[str, ScenarioResult]:
    """Run units, each when there is a place for its first conversation.

    Never raises for what happens inside a conversation. Returns the results by scope of all units that began,
    also of those that a stop has ended.

    Args:
        emit: receives every event, in order; must not raise.
    """
    return await _Runner(custom, settings, connections, emit, stop).run(units)


class _Runner:
    def __init__(
        self, custom: Sequence[Metric], settings: Settings, connections: Connections, emit: Emit, stop: Stop
    ) -> None:
        self._settings = settings
        self._source = connections.source
        self._evaluation = UnitEvaluation(custom, settings, connections)
        self._decision = UnitDecision(settings, connections)
        self._check = user_check(connections.models.judge, settings.samples, wanted=settings.check_user)
        self._redact = connections.redact.error
        self._ledger = connections.ledger
        self._report = emit
        self._stop = stop
        self._places = anyio.Semaphore(settings.concurrency)
        self._lines: dict[str, deque[Unit]] = {}
        """Of each exclusive agent that converses now, the units that wait for that."""
        self._begun: dict[str, UnitProgress] = {}
        self._results: dict[str, ScenarioResult] = {}

    async def run(self, units: UnitQueue) -> dict[str, ScenarioResult]:
        with self._stop.scope:
            async with anyio.create_task_group() as tasks:
                await self._start(units, tasks)
        for progress in list(self._begun.values()):
            self._finish(progress, self._decision.decide_early(progress, self._stop))
        return self._results

    async def _start(self, units: UnitQueue, tasks: TaskGroup) -> None:
        """Start each conversation when there is a place for it: tasks that wait would fill the memory."""
        await self._places.acquire()
        while unit := await units.next():
            if unit.about.line in self._lines:
                self._lines[unit.about.line].append(unit)
            elif unit.about.line is not None:
                self._lines[unit.about.line] = deque([unit])
                tasks.start_soon(self._run_line, unit.about.line, tasks)
                await self._places.acquire()
            else:
                await self._start_conversations(self._begin(unit), tasks)
        self._places.release()

    def _begin(self, unit: Unit) -> UnitProgress:
        progress = self._begun[unit.scope] = UnitProgress(
            unit, perf_counter(), results=dict(unit.kept.conversations)
        )
        to_hold = unit.conversations - len(unit.kept.conversations)
        self._report(ScenarioStarted(unit.scenario.name, unit.agent, to_hold))
        return progress

    async def _run_line(self, line: str, tasks: TaskGroup) -> None:
        """Run the units of an exclusive agent one after another, all in one place."""
        waiting, pace = self._lines[line], Pace(self._settings.debounce_s)
        while waiting:
            await pace.wait()
            await self._hold_in_turn(self._begin(waiting.popleft()), tasks)
        del self._lines[line]
        self._places.release()

    async def _start_conversations(self, progress: UnitProgress, tasks: TaskGroup) -> None:
        """Start a unit's conversations from a place that is there, and return with the next one."""
        if progress.is_complete():
            tasks.start_soon(self._conclude, progress)
            return
        if not self._is_parallel(progress.unit):
            tasks.start_soon(self._run_in_turn, progress, tasks)
            await self._places.acquire()
            return
        first = progress.wanted + 1
        for number in progress.left:
            tasks.start_soon(self._run_conversation, progress, number, self._places.release)
            await self._places.acquire()
        tasks.start_soon(self._run_further, progress, first, tasks)

    async def _run_further(self, progress: UnitProgress, number: int, tasks: TaskGroup) -> None:
        """Start the conversations from this number on that turn out to be needed."""
        while await progress.wants(number):
            await self._places.acquire()
            tasks.start_soon(self._run_conversation, progress, number, self._places.release)
            number += 1

    def _is_parallel(self, unit: Unit) -> bool:
        own = unit.scenario.parallel
        return self._settings.parallel if own is None else own

    async def _run_in_turn(self, progress: UnitProgress, tasks: TaskGroup) -> None:
        """Start each conversation of a unit when the one before has been held, all in one place."""
        await self._hold_in_turn(progress, tasks)
        self._places.release()

    async def _hold_in_turn(self, progress: UnitProgress, tasks: TaskGroup) -> None:
        if progress.is_complete():
            await self._conclude(progress)
            return
        kept, number = frozenset(progress.results), 1
        while await progress.wants(number):
            if number not in kept:
                await self._hold_one(progress, number, tasks)
            number += 1

    async def _hold_one(self, progress: UnitProgress, number: int, tasks: TaskGroup) -> None:
        held = anyio.Event()
        tasks.start_soon(self._run_conversation, progress, number, held.set)
        await held.wait()

    async def _run_conversation(
        self, progress: UnitProgress, number: int, on_held: Callable[[], object]
    ) -> None:
        """The steps of one conversation, and those of its unit after the last one.

        Args:
            on_held: is called when it has been held, before judges have finished.
        """
        unit = progress.unit
        self._report(ConversationStarted(unit.scenario.name, unit.agent, number))
        result = stored(await self._converse_and_evaluate(progress, number, on_held))
        progress.results[number] = self._kept(unit, result)
        self._report(
            ConversationFinished(
                name=unit.scenario.name,
                agent=unit.agent,
                result=result,
                number=number,
                case=unit.scenario.case,
                thresholds=unit.thresholds,
                failed=conversation_failed(result),
                used=self._used(unit),
            )
        )
        if progress.is_complete():
            await self._conclude(progress)

    async def _converse_and_evaluate(
        self, progress: UnitProgress, number: int, on_held: Callable[[], object]
    ) -> ConversationResult:
        told = self._source.told_to_user(progress.unit) if self._check else None
        # Judges wait for the check of the user: what is thrown away need not be judged.
        evaluation = self._evaluation.begin(progress.unit, number, at_end=told is not None)
        async with anyio.create_task_group() as judging:

            def judge(turns: tuple[Turn, ...]) -> None:
                judging.start_soon(evaluation.add_turn, turns)

            try:
                if told is None:
                    held = await self._hold(progress.unit, number, judge)
                else:
                    held = await self._hold_checked(progress, number, told)
            finally:
                on_held()
            self._report_held(progress.unit, number)
            conversation = held.conversation
            if conversation.invalid is None:
                await evaluation.add_conversation(conversation)
        now = perf_counter()
        judges_ms = (now - held.ended) * 1000 if self._evaluation.asks_judge else 0.0
        time = replace(conversation.time, total_ms=(now - held.began) * 1000, judges_ms=judges_ms)
        if conversation.invalid is not None:
            return ConversationResult(conversation, time=time, invalid=conversation.invalid)
        return replace(evaluation.result(conversation), time=time)

    def _report_held(self, unit: Unit, number: int) -> None:
        self._report(ConversationHeld(unit.scenario.name, unit.agent, number, self._used(unit)))

    def _used(self, unit: Unit) -> ModelUsage:
        """What the unit has used of models so far, in all roles."""
        return sum(self._ledger.of(unit.scope).values(), ModelUsage())

    async def _hold_checked(self, progress: UnitProgress, number: int, told: str) -> _Held:
        """A conversation, held again where its user broke the role. Judges wait: the first may not count.

        It keeps its place meanwhile, so that the second follows the first before another begins.
        """
        first = await self._hold(progress.unit, number, _nothing)
        found = await self._look_at(first, progress.unit, number, told)
        if found is None or not found.broken:
            return _marked(first, found)
        progress.held_again[number] = found.text
        second = await self._hold(progress.unit, number, _nothing, attempt=1)
        return _marked(second, await self._look_at(second, progress.unit, number, told, attempt=1))

    async def _look_at(
        self, held: _Held, unit: Unit, number: int, told: str, attempt: int = 0
    ) -> Finding | None:
        """What a judge finds wrong with a user. What ended with an error tells that, whoever the user was."""
        conversation = held.conversation
        if self._check is None or conversation.failure or not conversation.turns:
            return None
        key = CallKey("judge", unit.scope, number)
        has_tools = bool(unit.scenario.user_tools)
        found = await self._check.look_at(told, conversation, key, attempt, has_tools=has_tools)
        return found and replace(found, text=self._redact(found.text))

    async def _hold(self, unit: Unit, number: int, judge: OnTurn, attempt: int = 0) -> _Held:
        conversation_id = f"{unit.slug}-{number}{'-again' * attempt}"
        waiting = _Waiting(self._places)

        def on_turn(turns: tuple[Turn, ...]) -> None:
            self._report(TurnFinished(unit.scenario.name, unit.agent, conversation_id, turns[-1].turn_index))
            judge(turns)

        began = perf_counter()
        conversation = await self._source.converse(
            unit, number, conversation_id, on_turn, waiting.outside, attempt
        )
        return _Held(conversation, began + waiting.seconds, perf_counter())

    def _kept(self, unit: Unit, result: ConversationResult) -> ConversationResult:
        """What is kept of a reported conversation until its scenario ends."""
        # A case's scores are shown with its messages.
        whole = self._settings.keep_conversations or unit.scenario.case is not None
        return result if whole else slimmed(result)

    async def _conclude(self, progress: UnitProgress) -> None:
        self._finish(progress, await self._decision.decide(progress))
        self._stop_after_failure(progress.unit)

    def _finish(self, progress: UnitProgress, result: ScenarioResult) -> None:
        scope = progress.unit.scope
        del self._begun[scope]
        self._evaluation.end(progress.unit)
        self._report(ScenarioFinished(result))
        kept = self._settings.keep_conversations
        self._results[scope] = result if kept else replace(result, conversations=())

    def _stop_after_failure(self, unit: Unit) -> None:
        failed = self._results[unit.scope].verdict.status is Status.FAILED
        if self._settings.fail_fast and failed:
            self._stop("stopped by --fail-fast", Status.SKIPPED)


def _marked(held: _Held, found: Finding | None) -> _Held:
    """The conversation, marked where it says nothing of the agent."""
    if found is None:
        return held
    return replace(held, conversation=replace(held.conversation, invalid=found.text))


def _nothing(turns: tuple[Turn, ...]) -> None:
    """Judges wait."""
