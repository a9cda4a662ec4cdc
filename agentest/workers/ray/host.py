"""On a node: the process of one worker.

Its event loop runs in a thread of its own. Ray's threads take calls meanwhile, so that a metric that computes
for long keeps neither messages nor Ray waiting. No exception of the run leaves a call: Ray would write it
into files.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Protocol

import anyio

from agentest.support.redact import environment_secrets
from agentest.support.task_errors import described
from agentest.workers.messages import Failed
from agentest.workers.ray.boxes import Batch
from agentest.workers.ray.line import Called
from agentest.workers.ray.outputs import RedactedOutput

_OPEN_WITHIN_S = 60.0

CALLS_AT_ONCE = 8
"""One to receive, one to be asked; more where answers were lost."""


class Life(Protocol):
    """What a worker does from its first message to its last. It can be pickled."""

    def __call__(self, line: Called, output: RedactedOutput) -> Awaitable[None]:
        """Do it. Errors that the user can do something about are sent."""
        ...


class Host:
    """A worker on a node; an actor of Ray. All that is handed over is bytes: Ray shows no value of it."""

    def __init__(self) -> None:
        self._line: Future[Called] = Future()
        self._begun = False

    def begin(self, variables: bytes, life: bytes) -> int:
        """Begin, once; the process's id.

        Args:
            variables: a packed dict, for the environment.
            life: a packed `Life`.
        """
        if not self._begun:
            self._begun = True
            os.environ.update(pickle.loads(variables))
            arguments = (_live, life, self._line)
            threading.Thread(target=anyio.run, args=arguments, name="agentest worker", daemon=True).start()
        return os.getpid()

    def receive(self, batch: Batch) -> None:
        """Messages of the run's own process."""
        self._line.result(_OPEN_WITHIN_S).receive(batch)

    def take(self, acknowledged: int) -> Batch | None:
        """Messages for the run's own process (`Called.take`)."""
        return self._line.result(_OPEN_WITHIN_S).take(acknowledged)


async def _live(life: bytes, opened: Future[Called]) -> None:
    """The worker's life. It is no method: with a coroutine, the actor would be one of Ray's event loop."""
    output = RedactedOutput(environment_secrets(os.environ))
    line = Called(on_broken=lambda error: line.send(_failed(error, output)))
    opened.set_result(line)
    try:
        lived: Life = pickle.loads(life)
        await lived(line, output)
    except BaseException as error:  # noqa: BLE001 - the worker's boundary: the run must learn of it
        line.send(_failed(error, output))
    await line.close()


def _failed(error: BaseException, output: RedactedOutput) -> Failed:
    return Failed(output.redact(described(error)))
