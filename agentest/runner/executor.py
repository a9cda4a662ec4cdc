"""The order of a run: when each conversation starts, and when each unit is decided and reported.

One limiter bounds the conversations of all scenarios. A conversation releases its slot when its last turn
closes, before its judges finish. Three kinds of conversations run one at a time:

- those of a scenario that is not `parallel` share one slot until the last of them ends;
- those of an `exclusive` agent queue across all scenarios, and occupy no slot while they wait;
- those whose mocks the agent may ignore, until the agent has handed a call to Agentest (`Trials`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from agentest.domain.events import (
    ConversationFinished,
    ConversationHeld,
    ConversationStarted,
    ScenarioStarted,
    TurnFinished,
)
from agentest.domain.reasons import conversation_failed
from agentest.domain.results import ModelUsage, ScenarioResult, Status
from agentest.runner.conversation_run import (
    ConversationRunner,
    JudgedConversation,
    LocalConversationRunner,
    Trial,
    Trials,
    blamed_on_agent,
    bypass_reason,
)
from agentest.runner.plan import Unit
from agentest.runner.run_summary import NOT_JOINED, JoinedCauses, joined_causes
from agentest.runner.session import RunSession, UnitConnections, connect, local_gates
from agentest.runner.sources import Origin
from agentest.runner.units import UnitDecision, UnitProgress, report_result
from agentest.runner.verdict_warnings import never_connected, unreached_servers
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.domain.results.exploration import Explored


@dataclass(frozen=True, slots=True)
class UnitResults:
    """The outcome of all units: their results by scope, and the root causes that a model joined."""

    results: Mapping[str, ScenarioResult]
    joined: JoinedCauses = NOT_JOINED
    explored: Explored | None = None
    """What an exploration of the passing units found; None: the run explored nothing."""


RunUnits = Callable[[], Awaitable[UnitResults]]


class LocalEngine:
    """Runs all units in this process."""

    has_workers = False
    opens = "agents and models to be opened"

    @asynccontextmanager
    async def open(self, session: RunSession, origin: Origin) -> AsyncIterator[RunUnits]:
        async with self.connect(session, origin) as (runner, connections):
            yield units_in_order(session, runner, connections, origin)

    @asynccontextmanager
    async def connect(
        self, session: RunSession, origin: Origin
    ) -> AsyncIterator[tuple[LocalConversationRunner, UnitConnections]]:
        """Open the models and agents of a run. Raises UsageError."""
        prepared = session.prepared
        async with AsyncExitStack() as stack:
            gates = local_gates(session) if prepared.user or prepared.judge else None
            connections, _ = await connect(session, stack, gates)
            source = await origin.make(connections.models, stack)
            yield (
                LocalConversationRunner(source, prepared.plan.custom, session.settings, connections),
                connections,
            )


def units_in_order(
    session: RunSession, runner: ConversationRunner, connections: UnitConnections, origin: Origin
) -> RunUnits:
    """Return a function that runs the remaining units in order, in any process."""

    async def run() -> UnitResults:
        plan = session.prepared.plan
        results = await _Scheduler(session, runner, connections, origin).run(plan.remaining)
        finished_earlier = [unit.finished_part.result for unit in plan.units if unit.finished_part.result]
        return UnitResults(
            results, await joined_causes([*finished_earlier, *results.values()], session, connections)
        )

    return run


class _Scheduler:
    def __init__(
        self, session: RunSession, runner: ConversationRunner, connections: UnitConnections, origin: Origin
    ) -> None:
        settings = session.settings
        self._settings = settings
        self._runner = runner
        self._decision = UnitDecision(settings, connections)
        self._ledger = connections.ledger
        self._allowance = connections.allowance
        self.report = session.emit
        self._stop = session.stop
        self._slots = anyio.Semaphore(settings.concurrency, fast_acquire=True)
        self._rejoining = anyio.Lock()
        """Serializes re-queueing: two conversations that alternate could block each other forever."""
        self._queue_slots: defaultdict[str, anyio.Semaphore] = defaultdict(lambda: anyio.Semaphore(1))
        """By exclusive agent. It outlives the agent's queue, because a lost conversation may run again."""
        self._queues: dict[str, _Queue] = {}  # by exclusive agent that is running now: the units in its queue
        self.trials = Trials(live=origin.earlier is None)
        self._trial_lock = anyio.Lock()
        self._units_on_trial: dict[str, deque[Unit]] = {}
        """By agent that is on trial: the units that wait for it to hand over a call."""
        self._reached = origin.is_reached
        self._undecided: list[UnitProgress] = []
        """Finished units that later conversations may decide: nothing shows so far that a client connected to
        their agent's mock servers, or that the agent, which refused them, answers anything."""
        self.answering = {
            unit.agent
            for unit in session.prepared.plan.units
            if any(each.conversation.turns for each in unit.finished_part.conversations)
        }
        self._denied: defaultdict[str, dict[int, JudgedConversation]] = defaultdict(dict)
        """By scope and number: conversations that the agent refused, until their unit is decided."""
        self._in_progress: dict[str, UnitProgress] = {}
        self._results: dict[str, ScenarioResult] = {}

    async def run(self, units: Iterable[Unit]) -> dict[str, ScenarioResult]:
        """Run the units. Returns results by scope for every unit that began, even if it was interrupted."""
        with self._stop.scope:
            async with anyio.create_task_group() as tasks:
                # A task of its own, because each free slot would wake all that waits for the run's end.
                tasks.start_soon(self._start, units, tasks)
            for progress in self._undecided:
                await self._decide(progress)
        if self._in_progress:
            await self._runner.settle()
        for progress in list(self._in_progress.values()):
            self._settle_denied(progress)
            self._finish(progress, self._decision.decide_early(progress, self._stop))
        return self._results

    async def _start(self, units: Iterable[Unit], tasks: TaskGroup) -> None:
        delay = StartDelay(self._settings.debounce_s)
        await self._slots.acquire()
        for unit in units:
            await delay.wait()
            if unit.traits.queue in self._queues:
                self._queues[unit.traits.queue].waiting.append(unit)
            elif unit.traits.queue is not None:
                self._queues[unit.traits.queue] = _Queue(deque([unit]), self._queue_slots[unit.traits.queue])
                tasks.start_soon(self._run_queue, unit.traits.queue, tasks)
                await self._slots.acquire()
            elif unit.agent in self._units_on_trial and self.trials.are_needed(unit):
                self._units_on_trial[unit.agent].append(unit)
            elif self.trials.are_needed(unit):
                self._units_on_trial[unit.agent] = deque([unit])
                tasks.start_soon(self._run_trials, unit.agent, tasks)
                await self._slots.acquire()
            else:
                await self._start_conversations(self._begin(unit), tasks)
        self._slots.release()

    async def _run_trials(self, agent: str, tasks: TaskGroup) -> None:
        waiting, delay = self._units_on_trial[agent], StartDelay(self._settings.debounce_s)
        while waiting:
            await delay.wait()
            progress = self._begin(waiting.popleft())
            await self._start_conversations(progress, tasks, await self._run_unit_trials(progress, tasks))
        del self._units_on_trial[agent]
        self._slots.release()

    async def _run_unit_trials(self, progress: UnitProgress, tasks: TaskGroup) -> set[int]:
        begun: set[int] = set()
        unit, number = progress.unit, 1
        while not progress.is_complete() and self.trials.are_needed(unit) and await progress.wants(number):
            if number not in progress.results:
                await self._wait_for_budget(unit, number, self._slots)
                begun.add(number)
                await self._run_trial(progress, number, self._slots, tasks)
                await self._slots.acquire()
            number += 1
        return begun

    async def _run_trial(
        self, progress: UnitProgress, number: int, slot: anyio.Semaphore, tasks: TaskGroup
    ) -> None:
        """Run one conversation alone, because agents may share a real tool, until the next may begin."""
        unit = progress.unit
        try:
            self._trial_lock.acquire_nowait()
        except anyio.WouldBlock:
            self._slots.release()  # the conversation on trial may need this slot
            await self._trial_lock.acquire()
            await self._slots.acquire()
        try:
            trial = self.trials.begin(unit.agent)
            tasks.start_soon(self._run_conversation, progress, number, slot, trial)
            in_turn = unit.traits.queue is not None or not unit.is_parallel(self._settings.parallel)
            await (trial.ended if in_turn else trial.decided).wait()
        finally:
            self._trial_lock.release()

    def _begin(self, unit: Unit) -> UnitProgress:
        progress = self._in_progress[unit.scope] = UnitProgress(unit, self._settings.keep_conversations)
        to_run = unit.conversations - len(unit.finished_part.conversations)
        self.report(ScenarioStarted(unit.scenario.name, unit.agent, to_run))
        return progress

    async def _run_queue(self, name: str, tasks: TaskGroup) -> None:
        queue, delay = self._queues[name], StartDelay(self._settings.debounce_s)
        if not queue.free.value:  # a lost conversation is running again and may need this slot
            self._slots.release()
            await self.rejoin_queue(queue.free)
            queue.free.release()
        while queue.waiting:
            await delay.wait()
            await self._run_one_by_one(self._begin(queue.waiting.popleft()), queue.free, tasks)
        del self._queues[name]
        self._slots.release()

    async def rejoin_queue(self, queue: anyio.Semaphore) -> None:
        """Acquire the queue's slot and one among all conversations, both available at the same time."""
        async with self._rejoining:
            while True:
                await self._slots.acquire()
                try:
                    queue.acquire_nowait()
                except anyio.WouldBlock:
                    self._slots.release()  # a conversation ahead in the queue may need it
                    async with queue:
                        pass
                else:
                    return

    async def _start_conversations(
        self, progress: UnitProgress, tasks: TaskGroup, begun: Collection[int] = ()
    ) -> None:
        if progress.is_complete():
            if begun:  # the last of them concludes the unit and may find that more are needed
                tasks.start_soon(self._run_additional, progress, progress.wanted + 1, tasks)
            else:
                tasks.start_soon(self._conclude_or_go_on, progress, tasks)
            return
        if not progress.unit.is_parallel(self._settings.parallel):

            async def run_in_slot() -> None:
                await self._run_one_by_one(progress, anyio.Semaphore(1), tasks)
                self._slots.release()

            tasks.start_soon(run_in_slot)
            await self._slots.acquire()
            return
        first = progress.wanted + 1
        left = [n for n in range(1, progress.wanted + 1) if n not in progress.results and n not in begun]
        for number in left:
            if self._allowance:
                await self._wait_for_budget(progress.unit, number, self._slots)
            tasks.start_soon(self._run_conversation, progress, number, self._slots)
            await self._slots.acquire()
        tasks.start_soon(self._run_additional, progress, first, tasks)

    async def _conclude_or_go_on(self, progress: UnitProgress, tasks: TaskGroup) -> None:
        if not await self._conclude(progress):
            await self._slots.acquire()
            await self._start_conversations(progress, tasks)
            self._slots.release()

    async def _run_additional(self, progress: UnitProgress, number: int, tasks: TaskGroup) -> None:
        while await progress.wants(number):
            await self._slots.acquire()
            await self._wait_for_budget(progress.unit, number, self._slots)
            tasks.start_soon(self._run_conversation, progress, number, self._slots)
            number += 1

    async def _run_one_by_one(self, progress: UnitProgress, free: anyio.Semaphore, tasks: TaskGroup) -> None:
        if progress.is_complete() and await self._conclude(progress):
            return
        finished_earlier, number = frozenset(progress.results), 1
        while await progress.wants(number):
            if number not in finished_earlier:
                await free.acquire()
                await self._wait_for_budget(progress.unit, number, free)
                if self.trials.are_needed(progress.unit):
                    await self._run_trial(progress, number, free, tasks)
                else:
                    tasks.start_soon(self._run_conversation, progress, number, free)
            number += 1
        async with free:  # wait for the last conversation
            pass

    async def _wait_for_budget(self, unit: Unit, number: int, slot: anyio.Semaphore) -> None:
        if not self._allowance or self._allowance.starts(unit, number):
            return
        self._slots.release()
        if slot is self._slots:
            await self._allowance.wait(unit, number)
            await self._slots.acquire()
        else:
            slot.release()
            await self._allowance.wait(unit, number)
            await self.rejoin_queue(slot)

    async def _run_conversation(
        self, progress: UnitProgress, number: int, slot: anyio.Semaphore, trial: Trial | None = None
    ) -> None:
        unit = progress.unit
        self.report(ConversationStarted(unit.scenario.name, unit.agent, number))
        ongoing = _RunningConversation(unit, number, slot, self._slots, self)
        try:
            finished = await self._runner.run(unit, number, ongoing)
        finally:
            ongoing.leave()
        progress.add(number, finished.result)
        if finished.rerun_reason:
            progress.rerun_reason[number] = finished.rerun_reason
        failure = finished.result.conversation.failure
        if failure and failure.denied:
            self._denied[unit.scope][number] = finished
        else:
            self._report_finished(unit, number, finished)
        if self._allowance:
            self._allowance.finished(unit, number, has_failures=bool(finished.result.failures))
        if failure and failure.bypassed:
            self._stop.because_of_real_tool(bypass_reason(unit, failure))
            return
        if trial:
            self.trials.end(unit.agent, trial)
        if progress.is_complete():
            await self._conclude(progress)

    def _report_finished(self, unit: Unit, number: int, finished: JudgedConversation) -> None:
        self.report(
            ConversationFinished(
                name=unit.scenario.name,
                agent=unit.agent,
                result=finished.result if finished.json is None else finished.json,
                number=number,
                case=unit.scenario.case,
                thresholds=unit.thresholds,
                failed=conversation_failed(finished.result),
                used=self.usage(unit),
                measured=finished.measured,
            )
        )

    def _settle_denied(self, progress: UnitProgress) -> None:
        unit = progress.unit
        for number, finished in self._denied.pop(unit.scope, {}).items():
            settled = blamed_on_agent(finished) if unit.agent in self.answering else finished
            progress.results[number] = settled.result
            self._report_finished(unit, number, settled)

    def usage(self, unit: Unit) -> ModelUsage:
        """Return the unit's model usage so far, over all roles."""
        used = self._ledger.of(unit.scope).values()
        return sum(used, ModelUsage())

    async def _conclude(self, progress: UnitProgress) -> bool:
        decidable = [each for each in self._undecided if not self._must_wait(each.unit)]
        self._undecided = [each for each in self._undecided if each not in decidable]
        for each in decidable:
            await self._decide(each)
        if self._must_wait(progress.unit):
            progress.close(progress.ordered)
            self._undecided.append(progress)
            return True
        return await self._decide(progress)

    def _must_wait(self, unit: Unit) -> bool:
        is_refused = unit.scope in self._denied and unit.agent not in self.answering
        return is_refused or bool(unreached_servers(unit, self._reached))

    async def _decide(self, progress: UnitProgress) -> bool:
        unit = progress.unit
        self._settle_denied(progress)
        missing = unreached_servers(unit, self._reached)
        unknown = never_connected(unit, missing) if missing else None
        with self._allowance.deciding(unit) if self._allowance else nullcontext():
            result = await self._decision.decide(progress, unknown)
        if result is None:
            return False
        if self._allowance:
            self._allowance.decided(unit)
        self._finish(progress, result)
        if self._settings.fail_fast and result.verdict.status is Status.FAILED:
            self._stop("stopped by --fail-fast", Status.SKIPPED)
        return True

    def _finish(self, progress: UnitProgress, result: ScenarioResult) -> None:
        scope = progress.unit.scope
        del self._in_progress[scope]
        self._runner.end(progress.unit)
        self._results[scope] = report_result(result, self.report, self._settings)


@asynccontextmanager
async def released(slots: anyio.Semaphore) -> AsyncIterator[None]:
    """Give a slot to others for a block in which its conversation waits for them."""
    slots.release()
    try:
        yield
    finally:
        await slots.acquire()


@dataclass(slots=True, eq=False)
class _RunningConversation:
    """One running conversation. `slot` is the one it acquired: one of all `slots`, or that of its queue."""

    _unit: Unit
    _number: int
    _slot: anyio.Semaphore
    _slots: anyio.Semaphore
    _scheduler: _Scheduler
    _has_slot: bool = True
    _has_shared_slot: bool = False
    """True if it occupies a slot of all conversations in addition to the one of its queue."""
    _has_reported_end: bool = False

    def on_turn(self, conversation_id: str, turn_index: int, *, handed_over: bool) -> None:
        unit = self._unit
        self._scheduler.answering.add(unit.agent)
        if handed_over:
            self._scheduler.trials.hand_over(unit.agent)
        self._scheduler.report(TurnFinished(unit.scenario.name, unit.agent, conversation_id, turn_index))

    def on_ended(self) -> None:
        self.leave()
        if not self._has_reported_end:  # a lost conversation is run twice but counts once
            self._has_reported_end = True
            unit, used = self._unit, self._scheduler.usage(self._unit)
            self._scheduler.report(ConversationHeld(unit.scenario.name, unit.agent, self._number, used))

    def leave(self) -> None:
        """Release the slot for others, unless that has happened already."""
        if self._has_slot:
            self._has_slot = False
            self._slot.release()
        if self._has_shared_slot:
            self._has_shared_slot = False
            self._slots.release()

    def slot_released(self) -> AbstractAsyncContextManager[None]:
        return released(self._slots)

    async def reacquire_slot(self) -> None:
        if self._has_slot:
            return
        if self._slot is self._slots:
            await self._slots.acquire()
        else:
            await self._scheduler.rejoin_queue(self._slot)
            self._has_shared_slot = True
        self._has_slot = True


@dataclass(slots=True, eq=False)
class _Queue:
    waiting: deque[Unit]
    free: anyio.Semaphore


class StartDelay:
    """Delays each unit so that it begins at least `debounce_s` after the previous one."""

    def __init__(self, debounce_s: float) -> None:
        self._debounce_s = debounce_s
        self._next_start = 0.0

    async def wait(self) -> None:
        if self._debounce_s:
            await anyio.sleep_until(self._next_start)
            self._next_start = anyio.current_time() + self._debounce_s
