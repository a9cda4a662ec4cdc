"""The process of one worker on a node of the cluster.

The worker's event loop runs in its own thread, and Ray's threads accept calls meanwhile. A metric with a long
computation therefore blocks neither messages nor Ray. Calls never raise exceptions of the run, because Ray
would write them to files.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from io import TextIOWrapper
from pathlib import Path

import anyio

from agentest.plugins.ray.channel import MessageBatch, WorkerEnd
from agentest.runner.agents import with_known_ports
from agentest.runner.engines import PreparationRecipe
from agentest.runner.environment import make_room
from agentest.runner.prepare import Prepared
from agentest.support.errors import UsageError, described
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor, environment_secrets
from agentest.support.text import first_names
from agentest.workers.channel import remote
from agentest.workers.worker import Worker
from agentest.workers.worker_pool import POOL

_OPEN_WITHIN_S = 60.0

CALLS_AT_ONCE = 8  # one call to receive, one to poll, and more after lost responses


class WorkerActor:
    """A worker on a node, as a Ray actor. All arguments are bytes, so that Ray shows none of their values."""

    def __init__(self) -> None:
        self._line: Future[WorkerEnd] = Future()
        self._begun = False

    def begin(self, variables: bytes, life: bytes) -> int:
        """Start the worker if it has not started yet. Returns the process id.

        Args:
            variables: a pickled dict of environment variables.
            life: a pickled `RunWorker`.
        """
        if not self._begun:
            self._begun = True
            os.environ.update(pickle.loads(variables))
            arguments = (_run_worker, life, self._line)
            threading.Thread(target=anyio.run, args=arguments, name="agentest worker", daemon=True).start()
        return os.getpid()

    def receive(self, batch: MessageBatch) -> None:
        """Accept messages from the run's process."""
        self._line.result(_OPEN_WITHIN_S).receive(batch)

    def take(self, acknowledged: int) -> MessageBatch | None:
        """Return messages for the run's process (see `WorkerEnd.take`)."""
        return self._line.result(_OPEN_WITHIN_S).take(acknowledged)


async def _run_worker(life: bytes, opened: Future[WorkerEnd]) -> None:
    output = RedactedOutput(environment_secrets(os.environ))

    def fail(error: BaseException) -> None:
        remote(POOL, line.send).failed(output.redact(described(error)))

    line = WorkerEnd(on_broken=fail)
    opened.set_result(line)
    try:
        lived: RunWorker = pickle.loads(life)
        await lived(line, output)
    except BaseException as error:  # noqa: BLE001 - the worker's boundary: the run has to be notified
        fail(error)
    await line.close()


_MAX_SHOWN_FILES = 3


@dataclass(frozen=True, slots=True)
class RunWorker:
    """The work of a worker on a node. It can be pickled and contains no secrets."""

    recipe: PreparationRecipe
    root: Path | None  # folder with the project's files; None for the folder in which the process was started
    files: Mapping[str, str]  # scope of every expected unit → its file
    ports: Mapping[str, int]  # ports of servers that all workers share, by name
    earlier: bool
    number: int = 1  # number of this worker, from 1, counting replacements

    async def __call__(self, line: WorkerEnd, output: RedactedOutput) -> None:
        """Prepare the run and work until there are no more conversations."""
        try:
            prepared = self._prepared()
        except UsageError as error:
            remote(POOL, line.send).cannot_start(output.redact(f"on {socket.gethostname()}: {error}"))
            return
        output.redact = prepared.loaded.redact
        make_room(prepared)
        worker = Worker(prepared, line.send, number=self.number, earlier=self.earlier)
        line.listen(worker.receive)
        await worker.run()

    def _prepared(self) -> Prepared:
        """Prepare the run with all of its units. Raises UsageError."""
        if self.root:
            os.chdir(self.root)
        prepared = self.recipe.prepared(Path.cwd())
        scopes = {unit.scope for unit in prepared.plan.units}
        lacking = sorted({file for scope, file in self.files.items() if scope not in scopes})
        if lacking:
            why = _READ_OTHERWISE if all(Path(file).exists() for file in lacking) else _NOT_SENT
            raise UsageError(f"scenarios of {first_names(lacking, _MAX_SHOWN_FILES)} are missing. {why}")
        return with_known_ports(prepared, self.ports)


_READ_OTHERWISE = (
    "These files are read again by each worker, and must define the same scenarios there: do names depend on "
    "random numbers, the time, sys.argv or files that .gitignore or .rayignore names?"
)
_NOT_SENT = (
    "Files named in .gitignore or .rayignore are not sent to the nodes: are these "
    "files, or files that they read, among them?"
)

_MAX_LINE_BYTES = 65_536
_MIN_PART_CHARS = 8  # minimum length of a line that may be part of a multi-line secret


class RedactedOutput:
    """Redact standard output and error of this process and of all programs that it starts from now on.

    Secrets may become known later: `redact` can be replaced at any time.

    Args:
        secrets: the secrets known at the start.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self.redact: Callable[[str], str] = Redactor(secrets)
        # A multi-line key is printed one line at a time.
        parts = [part for secret in secrets for part in secret.split("\n") if "\n" in secret]
        self._redact_parts = Redactor(part for part in parts if len(part.strip()) >= _MIN_PART_CHARS)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            if isinstance(stream, TextIOWrapper):
                stream.flush()
                stream.reconfigure(line_buffering=True)
            original = os.dup(number)
            reading, writing = os.pipe()
            os.dup2(writing, number)
            os.close(writing)
            if number == 2:  # no thread can forward what is written during a crash; it contains no values
                faulthandler.enable(original)
            threading.Thread(
                target=self._forward, args=(reading, original), name=f"output {number}", daemon=True
            ).start()

    def _forward(self, reading: int, original: int) -> None:
        with open(reading, "rb") as source:
            while line := source.readline(_MAX_LINE_BYTES):
                text = self._redact_parts(self.redact(line.decode("utf-8", "replace")))
                os.write(original, text.encode("utf-8", "replace"))
