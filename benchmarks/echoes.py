"""Workers that hold one conversation, and give it as the result of all others: nothing is waited for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from agentest.runner.conversation_run import JudgedConversation
from agentest.runner.plan import Unit
from agentest.workers.channel import ConversationDone, ConversationRan, RunConversation, TurnClosed
from agentest.workers.ray.channel import WorkerEnd
from agentest.workers.ray.worker_process import RedactedOutput, RunWorker
from agentest.workers.worker import Worker
from agentest.workers.worker_pool import Connection, OnDisconnect, WorkerSource


class EchoWorker(Worker):
    """A worker whose later conversations are its first one, of whatever scenario they are."""

    _first: tuple[str, int, ConversationDone] | None = None

    async def _hold(self, order: RunConversation) -> None:
        if self._first is None:
            await super()._hold(order)
            return
        conversation_id, turns, done = self._first
        for turn in range(turns):
            self._line.send(TurnClosed(order.hold, conversation_id, turn))
        self._line.send(ConversationRan(order.hold))
        self._line.send(replace(done, hold=order.hold))

    def _told(self, order: RunConversation, unit: Unit, finished: JudgedConversation) -> ConversationDone:
        told = super()._told(order, unit, finished)
        conversation = finished.result.conversation
        self._first = conversation.conversation_id, len(conversation.turns), told
        return told


class EchoHolding(RunWorker):
    """The life of such a worker on a cluster."""

    async def __call__(self, line: WorkerEnd, output: RedactedOutput) -> None:
        with patch("agentest.workers.ray.worker_process.Worker", EchoWorker):
            await RunWorker.__call__(self, line, output)


class CountedFleet:
    """A fleet whose messages are counted."""

    def __init__(self, fleet: WorkerSource) -> None:
        self._fleet = fleet
        self.size, self.needed, self.called = fleet.size, fleet.needed, fleet.called
        self.sent = self.received = 0

    async def connect(self, on_message: Callable[[Any], None], on_disconnect: OnDisconnect) -> Connection:
        def receive(message: Any) -> None:
            self.received += 1
            on_message(message)

        return _Counted(await self._fleet.connect(receive, on_disconnect), self)


class _Counted:
    def __init__(self, connection: Connection, fleet: CountedFleet) -> None:
        self._connection = connection
        self._fleet = fleet
        self.close, self.kill, self.death = connection.close, connection.kill, connection.death

    def send(self, message: object) -> None:
        self._fleet.sent += 1
        self._connection.send(message)
