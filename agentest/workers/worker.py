"""A worker, in any kind of process: it runs conversations and reports their progress to the run."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agentest.domain.events import Event, Noted
from agentest.domain.transcript import Conversation
from agentest.models.tape import NO_PAGE, CassetteMode
from agentest.runner.agents import connected_agents
from agentest.runner.conversation_run import (
    JudgedConversation,
    LocalConversationRunner,
    lost_conversation_result,
)
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.runner.session import (
    RunSession,
    Settings,
    Stop,
    UnitConnections,
    open_models,
    scenario_names,
    settings_of,
    stopping,
)
from agentest.runner.sources import ConversationSource, FinishedConversations, LiveConversations
from agentest.runner.warnings import without_unneeded_parts
from agentest.store.codec import conversation_json
from agentest.support.errors import UsageError, described
from agentest.support.json_text import encoded
from agentest.workers.channel import (
    BeginConversation,
    CannotStart,
    CloseWorker,
    ConversationDone,
    ConversationRan,
    EndUnit,
    QuestionCanceled,
    RunConversation,
    SecretsLearned,
    SlotFreed,
    SlotGranted,
    SlotRequested,
    SpansResponse,
    StopRun,
    ToolQuestion,
    TurnClosed,
    WaitForTurn,
    WorkerClosed,
    WorkerFailed,
    WorkerIdle,
    WorkerNote,
    WorkerReady,
    packed,
)
from agentest.workers.forwarding import ForwardedOutput, OutputLines, PageTape, SendingLedger, ServerExited
from agentest.workers.lease_client import LeasedGates
from agentest.workers.lease_coordinator import LeaseResponse
from agentest.workers.mock_proxy import ProxiedConversations
from agentest.workers.worker_agents import open_worker_agents

ToHost = WaitForTurn | BeginConversation | ToolQuestion | QuestionCanceled | SpansResponse
ToWorker = (
    RunConversation
    | SlotGranted
    | EndUnit
    | StopRun
    | CloseWorker
    | ToHost
    | LeaseResponse
    | OutputLines
    | ServerExited
)


class WorkerConnection(Protocol):
    """A worker's end of the channel to the run's process."""

    def send(self, message: object) -> None:
        """Send a message. Messages arrive in the order in which they were sent."""
        ...


class Worker:
    """Runs conversations on request until there are no more.

        worker = Worker(prepared)
        line = …                    # delivers every message to `worker.receive`
        await worker.run(line)

    Args:
        number: number of this worker, from 1, counting replacements.
        earlier: True if the conversations come from an earlier run and are part of the requests.
    """

    def __init__(self, prepared: Prepared, *, number: int = 1, earlier: bool = False) -> None:
        self._prepared = prepared
        self._number = number
        self._earlier = earlier
        self._units = {unit.scope: unit for unit in prepared.plan.units}
        self._given: dict[tuple[str, int], Conversation] = {}
        self._ongoing: dict[int, _Ongoing] = {}
        self._send_orders, self._orders = anyio.create_memory_object_stream[RunConversation](float("inf"))
        self._closing = anyio.Event()
        self._stop = Stop(lambda s: self._line.send(StopRun(str(s.reason), s.status, s.interrupted)))
        self._line: WorkerConnection
        self._hosted = ProxiedConversations(lambda message: self._line.send(message))
        self._gates = LeasedGates(lambda message: self._line.send(message), prepared.loaded.redact)
        self._printed = ForwardedOutput(prepared.managed_servers.printed)
        self._tape: PageTape | None = None
        self._holder: LocalConversationRunner

    async def run(self, line: WorkerConnection) -> None:
        """Do all of the worker's work. Errors are reported to the run's process."""
        self._line = line
        try:
            await self._work()
            line.send(WorkerClosed())
        except UsageError as error:
            line.send(CannotStart(str(error)))
        except Exception as error:  # noqa: BLE001 - the process's boundary: the run has to be notified
            line.send(WorkerFailed(self._prepared.loaded.redact(described(error))))

    def receive(self, message: ToWorker) -> None:
        """Handle a message from the run's process."""
        match message:
            case RunConversation():
                self._send_orders.send_nowait(message)
            case SlotGranted() if ongoing := self._ongoing.get(message.hold):
                ongoing.may_go_on.set()
            case EndUnit():
                self._holder.end(self._units[message.scope])
            case StopRun():
                self._stop(message.reason, message.status, interrupted=message.interrupted)
            case CloseWorker():
                self._closing.set()
            case WaitForTurn() | BeginConversation() | ToolQuestion() | QuestionCanceled() | SpansResponse():
                self._hosted.receive(message)
            case LeaseResponse():
                self._gates.receive(message)
            case OutputLines() | ServerExited():
                self._printed.receive(message)

    async def _work(self) -> None:
        session = self._session()
        problem: UsageError | None = None
        async with anyio.create_task_group() as looking_after:  # supervises servers until they have exited
            try:
                async with AsyncExitStack() as stack:
                    self._holder = await self._open(session, stack, looking_after)
                    await stack.enter_async_context(self._hosted.answering())
                    self._line.send(WorkerReady())
                    await self._until_closed()
            except UsageError as error:  # stored because a task group would wrap it
                problem = error
            looking_after.cancel_scope.cancel()
        if problem:
            raise problem

    async def _until_closed(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hold_all)
            await self._closing.wait()
            tasks.cancel_scope.cancel()

    async def _hold_all(self) -> None:
        """Run conversations as they are requested, until the run is stopped."""
        with self._stop.scope:
            async with anyio.create_task_group() as tasks:
                async for order in self._orders:
                    tasks.start_soon(self._hold, order)
        self._line.send(WorkerIdle())

    def _session(self) -> RunSession:
        return RunSession(
            prepared=self._prepared,
            settings=self._settings(),
            emit=self._emit,
            stop=self._stop,
            on_note=lambda text: self._line.send(WorkerNote(self._prepared.loaded.redact(text))),
        )

    def _settings(self) -> Settings:
        return settings_of(self._prepared.loaded.config, self._prepared.request.options)

    def _emit(self, event: Event) -> None:
        assert isinstance(event, Noted)  # all other events come from the run's process
        self._line.send(event)

    async def _open(
        self, session: RunSession, stack: AsyncExitStack, tasks: TaskGroup
    ) -> LocalConversationRunner:
        """Connect to agents and models.

        The run's process has checked recordings and started the servers that workers share.
        """
        ledger = SendingLedger(self._line.send)
        tape = self._tape = self._pages(session)
        models, _ = await open_models(session, tape, stack, self._gates, ledger)
        source: ConversationSource = FinishedConversations(self._held_earlier)
        if not self._earlier:
            opened = await open_worker_agents(
                session, self._number, stack, tasks, self._line.send, self._hosted
            )
            prepared, client = opened.prepared, opened.client
            agents = await connected_agents(prepared, client, stack, session.on_note, self._send_secrets)
            source = LiveConversations(prepared, agents, models, registry=opened.conversations)
        connections = UnitConnections(models, ledger, self._prepared.loaded.redact)
        return LocalConversationRunner(source, self._prepared.plan.custom, session.settings, connections)

    def _pages(self, session: RunSession) -> PageTape | None:
        mode, redact = self._prepared.tape_mode, self._prepared.loaded.redact
        if mode is None:
            return None
        names = scenario_names(self._prepared)
        return PageTape(CassetteMode(mode), redact, self._line.send, names, stopping(session))

    def _held_earlier(self, unit: Unit, number: int) -> Conversation:
        return self._given.pop((unit.scope, number))

    async def _hold(self, order: RunConversation) -> None:
        unit = self._units[order.scope]
        if order.earlier is not None:
            self._given[unit.scope, order.number] = pickle.loads(order.earlier)
        if self._tape:
            self._tape.begin(unit.scope, order.number, order.page or NO_PAGE)
        ongoing = self._ongoing[order.hold] = _Ongoing(order.hold, self._line)
        try:
            finished = await self._holder.run(unit, order.number, ongoing, order.ids_end)
        finally:
            del self._ongoing[order.hold]
            if self._tape:
                self._tape.end(unit.scope, order.number)
        self._line.send(self._encoded_or_failed(order, unit, finished))

    def _encoded_or_failed(
        self, order: RunConversation, unit: Unit, finished: JudgedConversation
    ) -> ConversationDone:
        """Encode the result. A conversation whose values cannot be shown as text counts as failed to run."""
        try:
            return self._encode_result(order, unit, finished)
        except Exception as error:  # noqa: BLE001 - user classes may raise anything
            which = finished.result.conversation.conversation_id
            problem = f"conversation {which} cannot be written: {described(error)}"
            nothing = lost_conversation_result(unit, order.number, self._prepared.loaded.redact(problem))
            return self._encode_result(order, unit, replace(finished, result=nothing))

    def _encode_result(
        self, order: RunConversation, unit: Unit, finished: JudgedConversation
    ) -> ConversationDone:
        """Encode the result in this process."""
        result = finished.result
        # The scores of an evaluation case are shown with its messages.
        keeps_details = self._prepared.request.reports.verbose or unit.scenario.case is not None
        return ConversationDone(
            order.hold,
            packed(result if keeps_details else without_unneeded_parts(result)),
            encoded(conversation_json(result, unit.scenario.case, unit.thresholds)),
            finished.rerun_reason,
        )

    def _send_secrets(self, texts: Iterable[str]) -> None:
        self._line.send(SecretsLearned(tuple(texts)))


class _Ongoing:
    """A conversation of this worker. The run's process manages its slot."""

    def __init__(self, hold: int, line: WorkerConnection) -> None:
        self._hold = hold
        self._line = line
        self.may_go_on = anyio.Event()

    def on_turn(self, conversation_id: str, turn_index: int, *, handed_over: bool) -> None:
        self._line.send(TurnClosed(self._hold, conversation_id, turn_index, handed_over))

    def on_ended(self) -> None:
        self._line.send(ConversationRan(self._hold))

    @asynccontextmanager
    async def slot_released(self) -> AsyncIterator[None]:
        self._line.send(SlotFreed(self._hold))
        try:
            yield
        finally:
            self.may_go_on = anyio.Event()
            self._line.send(SlotRequested(self._hold))
            await self.may_go_on.wait()

    async def reacquire_slot(self) -> None:
        """Never called: another attempt is a new order."""
