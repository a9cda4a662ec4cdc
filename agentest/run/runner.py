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
from dataclasses import replace
from time import perf_counter
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agentest.evaluate.custom import Metric
from agentest.events import ConversationFinished, Emit, ScenarioFinished, ScenarioStarted, TurnFinished
from agentest.results import ConversationResult, ScenarioResult, Status
from agentest.run.connections import Connections
from agentest.run.plan import Unit
from agentest.run.settings import Settings
from agentest.run.stop import Stop
from agentest.run.totals import slimmed
from agentest.run.units import UnitDecision, UnitEvaluation, UnitProgress
from agentest.storing import stored
from agentest.transcript import Turn


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
        progress = self._begun[unit.scope] = UnitProgress(unit, perf_counter())
        self._report(ScenarioStarted(unit.scenario.name, unit.agent, unit.conversations))
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
        if not self._is_parallel(progress.unit):
            tasks.start_soon(self._run_in_turn, progress, tasks)
            await self._places.acquire()
            return
        for number in range(1, progress.unit.conversations + 1):
            tasks.start_soon(self._run_conversation, progress, number, self._places.release)
            await self._places.acquire()

    def _is_parallel(self, unit: Unit) -> bool:
        own = unit.scenario.parallel
        return self._settings.parallel if own is None else own

    async def _run_in_turn(self, progress: UnitProgress, tasks: TaskGroup) -> None:
        """Start each conversation of a unit when the one before has been held, all in one place."""
        await self._hold_in_turn(progress, tasks)
        self._places.release()

    async def _hold_in_turn(self, progress: UnitProgress, tasks: TaskGroup) -> None:
        for number in range(1, progress.unit.conversations + 1):
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
        result = stored(await self._converse_and_evaluate(unit, number, on_held))
        progress.results[number] = self._kept(unit, result)
        self._report(
            ConversationFinished(
                name=unit.scenario.name,
                agent=unit.agent,
                result=result,
                number=number,
                case=unit.scenario.case,
                thresholds=unit.thresholds,
            )
        )
        if len(progress.results) == unit.conversations:
            self._finish(progress, await self._decision.decide(progress))
            self._stop_after_failure(unit)

    async def _converse_and_evaluate(
        self, unit: Unit, number: int, on_held: Callable[[], object]
    ) -> ConversationResult:
        conversation_id = f"{unit.slug}-{number}"
        evaluation = self._evaluation.begin(unit, number)

        def on_turn(turns: tuple[Turn, ...]) -> None:
            self._report(TurnFinished(unit.scenario.name, unit.agent, conversation_id, turns[-1].turn_index))
            judging.start_soon(evaluation.add_turn, turns)

        start, waiting = perf_counter(), _Waiting(self._places)
        async with anyio.create_task_group() as judging:
            try:
                conversation = await self._source.converse(
                    unit, number, conversation_id, on_turn, waiting.outside
                )
            finally:
                on_held()
            end_of_conversation = perf_counter()
            await evaluation.add_conversation(conversation)
        now = perf_counter()
        judges_ms = (now - end_of_conversation) * 1000 if self._evaluation.asks_judge else 0.0
        time = replace(
            conversation.time, total_ms=(now - start - waiting.seconds) * 1000, judges_ms=judges_ms
        )
        return replace(evaluation.result(conversation), time=time)

    def _kept(self, unit: Unit, result: ConversationResult) -> ConversationResult:
        """What is kept of a reported conversation until its scenario ends."""
        # A case's scores are shown with its messages.
        whole = self._settings.keep_conversations or unit.scenario.case is not None
        return result if whole else slimmed(result)

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
