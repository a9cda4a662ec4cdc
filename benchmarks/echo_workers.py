"""`agentest` that counts its messages to and from workers: `python -m benchmarks.echo_workers FILE MODE run`.

Writes the counts to FILE as JSON. MODE is `real`, or `echo` for workers that run one conversation and
return it as the result of all others, so that nothing is waited for.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agentest.cli.main import main as agentest
from agentest.plugins.ray.channel import WorkerEnd
from agentest.plugins.ray.worker_process import RedactedOutput, RunWorker
from agentest.runner.conversation_run import JudgedConversation
from agentest.runner.plan import Unit
from agentest.workers.channel import ConversationOrder, remote
from agentest.workers.coordinator import WorkerPool
from agentest.workers.worker import Worker
from agentest.workers.worker_pool import AssignedConversation, Connection, OnDisconnect, WorkerSource


class EchoWorker(Worker):
    """A worker whose later conversations are its first one, of whatever scenario they are."""

    _first: tuple[str, int, tuple[bytes, bytes, bytes, str]] | None = None

    async def _hold(self, order: ConversationOrder) -> None:
        if self._first is None:
            await super()._hold(order)
            return
        run: AssignedConversation = remote(order.id, self._send)
        conversation_id, turns, done = self._first
        for turn in range(turns):
            run.on_turn(conversation_id, turn, handed_over=False)
        run.on_ended()
        run.finish(*done)

    def _encode_result(self, unit: Unit, finished: JudgedConversation) -> tuple[bytes, bytes, bytes, str]:
        encoded = super()._encode_result(unit, finished)
        conversation = finished.result.conversation
        self._first = conversation.conversation_id, len(conversation.turns), encoded
        return encoded


class EchoHolding(RunWorker):
    """The life of such a worker on a cluster."""

    async def __call__(self, line: WorkerEnd, output: RedactedOutput) -> None:
        with patch("agentest.plugins.ray.worker_process.Worker", EchoWorker):
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


def main() -> None:
    """Entry point of the run's process."""
    _, file, mode, *rest = sys.argv
    sys.argv = ["agentest", *rest]
    fleets: list[CountedFleet] = []

    def crew(fleet: WorkerSource, *more: Any) -> WorkerPool:
        fleets.append(CountedFleet(fleet))
        return WorkerPool(fleets[-1], *more)

    with ExitStack() as patches:
        patches.enter_context(patch("agentest.workers.coordinator.WorkerPool", crew))
        if mode == "echo":
            patches.enter_context(patch("agentest.workers.processes.Worker", EchoWorker))
            patches.enter_context(patch("agentest.plugins.ray.engine.RunWorker", EchoHolding))
        try:
            agentest()
        finally:
            counted = {"sent": sum(f.sent for f in fleets), "received": sum(f.received for f in fleets)}
            Path(file).write_text(json.dumps(counted))


if __name__ == "__main__":
    main()
