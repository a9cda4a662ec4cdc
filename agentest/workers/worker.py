"""A worker, in any kind of process: it runs conversations and reports their progress to the run."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from agentest.domain.reasons import measured_conversation
from agentest.domain.results import Status
from agentest.domain.transcript import Conversation
from agentest.domain.truncation import without_unneeded
from agentest.models.tape import NO_PAGE, CassetteMode
from agentest.runner.agents import connected_agents, in_worker, part_of, start_servers, with_ports
from agentest.runner.call_sources import RunResources, ServerReports, SourcesOfAgents, open_call_sources
from agentest.runner.conversation_run import (
    JudgedConversation,
    LocalConversationRunner,
    lost_conversation_result,
)
from agentest.runner.plan import Unit
from agentest.runner.prepare import Prepared
from agentest.runner.session import (
    RunSession,
    Stop,
    UnitConnections,
    open_models,
    scenario_names,
    settings_of,
    stopping,
)
from agentest.runner.sources import ConversationSource, FinishedConversations, LiveConversations
from agentest.store.codec import CODECS, conversation_json
from agentest.support.errors import UsageError, described
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import Client, open_client
from agentest.support.json_text import encoded
from agentest.workers.channel import ConversationOrder, Send, deliver, packed, remote
from agentest.workers.forwarding import PageTape, SendingLedger, output_part
from agentest.workers.leases import LEASES, LeasedGates
from agentest.workers.worker_pool import OBSERVED, POOL, WORKER, AssignedConversation, call_source_part

if TYPE_CHECKING:
    from agentest.workers.coordinator import WorkerNews


class Worker:
    """Runs conversations on request until there are no more.

    Args:
        send: sends a message to the run's process, whose messages go to `receive`.
        number: number of this worker, from 1, counting replacements.
        earlier: True if the conversations come from an earlier run and are part of the requests.
    """

    def __init__(self, prepared: Prepared, send: Send, *, number: int = 1, earlier: bool = False) -> None:
        self._send = send
        self._prepared = prepared
        self._number = number
        self._earlier = earlier
        self._units = {unit.scope: unit for unit in prepared.plan.units}
        self._given: dict[tuple[str, int], Conversation] = {}
        self._ongoing: dict[int, OngoingConversation] = {}
        self._send_orders, self._orders = anyio.create_memory_object_stream[ConversationOrder](float("inf"))
        self._closing = anyio.Event()
        self._stop = Stop(lambda s: self._run.stop(str(s.reason), s.status, interrupted=s.interrupted))
        self._run: WorkerNews = remote(POOL, send)
        self._gates = LeasedGates(send, prepared.loaded.redact)
        self._parts: dict[str, object] = {
            WORKER: self,
            LEASES: self._gates,
            **{output_part(each.name): each for each in prepared.managed_servers.printed},
        }
        self._tape: PageTape | None = None
        self._holder: LocalConversationRunner
        self._ledger: SendingLedger

    async def run(self) -> None:
        """Do all of the worker's work. Errors are reported to the run's process."""
        try:
            await self._work()
            self._run.closed()
        except UsageError as error:
            self._run.cannot_start(str(error))
        except Exception as error:  # noqa: BLE001 - the process's boundary: the run has to be notified
            self._run.failed(self._prepared.loaded.redact(described(error)))

    def receive(self, message: object) -> None:
        """Make a call that the run's process has sent."""
        deliver(message, self._parts, self._ongoing)

    def run_conversation(self, order: ConversationOrder) -> None:
        """Run a conversation and have it judged."""
        self._send_orders.send_nowait(order)

    def end_unit(self, scope: str) -> None:
        """Release a unit whose conversations have all finished."""
        self._holder.end(self._units[scope])

    def stop(self, reason: str, status: Status, *, interrupted: bool) -> None:
        """End early."""
        self._stop(reason, status, interrupted=interrupted)

    def close_all(self) -> None:
        """Close everything, because no work is left."""
        self._closing.set()

    async def _work(self) -> None:
        session = self._session()
        problem: UsageError | None = None
        async with anyio.create_task_group() as looking_after:  # supervises servers until they have exited
            try:
                async with AsyncExitStack() as stack:
                    self._holder = await self._open(session, stack, looking_after)
                    self._run.ready()
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._hold_all)
                        await self._closing.wait()
                        tasks.cancel_scope.cancel()
            except UsageError as error:  # stored because a task group would wrap it
                problem = error
            looking_after.cancel_scope.cancel()
        if problem:
            raise problem

    async def _hold_all(self) -> None:
        with self._stop.scope:
            async with anyio.create_task_group() as tasks:
                async for order in self._orders:
                    tasks.start_soon(self._hold, order)
        self._ledger.report()
        self._run.idle()

    def _session(self) -> RunSession:
        return RunSession(
            prepared=self._prepared,
            settings=settings_of(self._prepared),
            emit=self._run.emit,
            stop=self._stop,
            on_note=lambda text: self._run.note(self._prepared.loaded.redact(text)),
        )

    async def _open(
        self, session: RunSession, stack: AsyncExitStack, tasks: TaskGroup
    ) -> LocalConversationRunner:
        """Connect to agents and models.

        The run's process has checked recordings and started the servers that workers share.
        """
        exact = self._prepared.request.options.has_budget
        ledger = self._ledger = SendingLedger(self._send, self._gates.report, exact=exact)
        tape = self._tape = self._pages(session)
        models, _ = await open_models(session, tape, stack, self._gates, ledger)
        source: ConversationSource = FinishedConversations(
            lambda unit, number: self._given.pop((unit.scope, number))
        )
        if not self._earlier:
            prepared = stack.enter_context(with_ports(in_worker(session.prepared, self._number)))
            client, call_sources = await self._start_agents(session, prepared, stack, tasks)
            agents = await connected_agents(prepared, client, stack, session.on_note, self._run.learn_secrets)
            source = LiveConversations(prepared, agents, models, call_sources=call_sources)
        connections = UnitConnections(models, ledger, self._prepared.loaded.redact)
        return LocalConversationRunner(source, self._prepared.plan.custom, session.settings, connections)

    async def _start_agents(
        self, session: RunSession, prepared: Prepared, stack: AsyncExitStack, tasks: TaskGroup
    ) -> tuple[Client, SourcesOfAgents]:
        """Start the agents that each worker starts, with their call sources. The stack stops them.

        A worker may be on another machine, so the servers of such an agent run here as well. All other agents
        use those of the run's process. Returns the call sources of all agents. Raises UsageError.
        """
        reports = ServerReports(
            on_note=session.on_note,
            say=lambda text: session.say(f"worker {self._number}: {text}"),
            keep_output=self._run.store_output,
            keep_span=self._run.store_span,
            on_end=self._run.agent_died,
            observed=remote(OBSERVED, self._send),
        )
        own, shared = (part_of(prepared, per_worker=is_own) for is_own in (True, False))
        call_sources: SourcesOfAgents = {}
        if own.plan.agents:
            try:
                client, call_sources = await start_servers(own, stack, tasks, reports)
            except UsageError as error:
                text = prepared.loaded.redact(f"worker {self._number}: {error}")
                raise type(error)(text) from None
        else:
            client = await stack.enter_async_context(open_client(AddressGuard()))
        resources = RunResources(shared, client, stack, reports)
        ends = await open_call_sources(
            resources, other_end=lambda name: remote(call_source_part(name), self._send)
        )
        self._parts |= {call_source_part(name): end for of in ends.values() for name, end in of.items()}
        return client, {**call_sources, **ends}

    def _pages(self, session: RunSession) -> PageTape | None:
        mode, redact = self._prepared.tape_mode, self._prepared.loaded.redact
        agent_modes = self._prepared.agent_tape_modes
        if mode is None and not any(agent_modes.values()):
            return None
        return PageTape(
            CassetteMode(mode) if mode else None,
            redact,
            self._send,
            scenario_names(self._prepared),
            stopping(session),
            {scope: CassetteMode(mode) if mode else None for scope, mode in agent_modes.items()},
        )

    async def _hold(self, order: ConversationOrder) -> None:
        unit = self._units[order.scope]
        if order.earlier is not None:
            self._given[unit.scope, order.number] = pickle.loads(order.earlier)
        if self._tape:
            self._tape.begin(unit.scope, order.number, order.page or NO_PAGE)
        run: AssignedConversation = remote(order.id, self._send)
        ongoing = self._ongoing[order.id] = OngoingConversation(run)
        try:
            finished = await self._holder.run(unit, order.number, ongoing, order.ids_end)
        finally:
            del self._ongoing[order.id]
            if self._tape:
                self._tape.end(unit.scope, order.number)
        self._ledger.report()
        run.finish(*self._encoded_or_failed(order, unit, finished))

    def _encoded_or_failed(
        self, order: ConversationOrder, unit: Unit, finished: JudgedConversation
    ) -> tuple[bytes, bytes, bytes, str]:
        try:
            return self._encode_result(unit, finished)
        except Exception as error:  # noqa: BLE001 - user classes may raise anything
            which = finished.result.conversation.conversation_id
            problem = f"conversation {which} cannot be written: {described(error)}"
            nothing = lost_conversation_result(unit, order.number, self._prepared.loaded.redact(problem))
            return self._encode_result(unit, replace(finished, result=nothing))

    def _encode_result(self, unit: Unit, finished: JudgedConversation) -> tuple[bytes, bytes, bytes, str]:
        result = finished.result
        # The scores of an evaluation case are shown with its messages.
        keeps_details = self._prepared.request.reports.shows_conversations or unit.scenario.case is not None
        return (
            packed(result if keeps_details else without_unneeded(result)),
            encoded(conversation_json(result, unit.scenario.case, unit.thresholds)),
            encoded(CODECS.write(measured_conversation(result))),
            finished.rerun_reason,
        )


class OngoingConversation:
    """A conversation of this worker. The run's process manages its slot."""

    def __init__(self, run: AssignedConversation) -> None:
        self._run = run
        self.on_turn = run.on_turn
        self.on_ended = run.on_ended
        self._has_slot = anyio.Event()

    @asynccontextmanager
    async def slot_released(self) -> AsyncIterator[None]:
        self._run.free_slot()
        try:
            yield
        finally:
            self._has_slot = anyio.Event()
            self._run.request_slot()
            await self._has_slot.wait()

    def grant_slot(self) -> None:
        """Called by the run's process: the conversation may continue."""
        self._has_slot.set()

    async def reacquire_slot(self) -> None:
        """Never called: another attempt is a new order."""
