"""On a node: the process of one worker.

Its event loop runs in a thread of its own. Ray's threads take calls meanwhile, so that a metric that computes
for long keeps neither messages nor Ray waiting. No exception of the run leaves a call: Ray would write it
into files.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Protocol

import anyio

from agentest.runner.agents import with_known_ports
from agentest.runner.environment import make_room
from agentest.runner.prepare import Prepared
from agentest.support.errors import UsageError, described
from agentest.support.redaction import Redactor, environment_secrets
from agentest.workers.channel import CannotStart, Failed
from agentest.workers.ray.channel import Batch, Called
from agentest.workers.worker import Worker

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


_SHOWN = 3


class Recipe(Protocol):
    """How a run is prepared again in another process: scenarios hold functions, which cannot be sent."""

    def prepared(self, root: Path) -> Prepared:
        """The run, with the project's files in this folder. Raises UsageError."""
        ...


@dataclass(frozen=True, slots=True)
class Holding:
    """A worker's life; it can be pickled, and holds no secret."""

    recipe: Recipe
    root: Path | None
    """Where the project's files are; None: in the folder in which the process was started."""
    files: Mapping[str, str]
    """Scope of every unit that there must be → its file."""
    ports: Mapping[str, int]
    """Of servers that are started once for all workers, by name."""
    earlier: bool
    number: int = 1
    """From 1, of all workers that there have been."""

    async def __call__(self, line: Called, output: RedactedOutput) -> None:
        """Live it."""
        try:
            prepared = self._prepared()
        except UsageError as error:
            line.send(CannotStart(output.redact(f"on {socket.gethostname()}: {error}")))
            return
        output.redact = prepared.loaded.redact
        make_room(prepared)
        worker = Worker(prepared, number=self.number, earlier=self.earlier)
        line.listen(worker.receive)
        await worker.run(line)

    def _prepared(self) -> Prepared:
        """The run, with all of its units. Raises UsageError."""
        if self.root:
            os.chdir(self.root)
        prepared = self.recipe.prepared(Path.cwd())
        there = {unit.scope for unit in prepared.plan.units}
        lacking = sorted({file for scope, file in self.files.items() if scope not in there})
        if lacking:
            more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
            raise UsageError(
                f"scenarios of {', '.join(lacking[:_SHOWN])}{more} are missing. {_why_missing(lacking)}"
            )
        return with_known_ports(prepared, self.ports)


def _why_missing(files: list[str]) -> str:
    if all(Path(file).exists() for file in files):
        return (
            "These files are read again by each worker, and must define the same scenarios there: do names "
            "depend on random numbers, the time, sys.argv or files that .gitignore or .rayignore names?"
        )
    return (
        "Do .gitignore or .rayignore name these files, or some that they read? What is named there is not "
        "sent to the nodes"
    )


_MOST_BYTES = 65_536
"""Of a line: what is longer is looked through in parts."""
_SHORTEST_PART = 8
"""Characters of a line that may be a part of a secret."""


class RedactedOutput:
    """Standard output and error of this process, and of all programs that it starts from now on.

    A secret may come while it is printed: `redact` may be set again.

    Args:
        secrets: what must not be printed, as far as it is known at the start.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self.redact: Callable[[str], str] = Redactor(secrets)
        # A key of several lines is printed a line at a time.
        parts = [part for secret in secrets for part in secret.split("\n") if "\n" in secret]
        self._redact_parts = Redactor(part for part in parts if len(part.strip()) >= _SHORTEST_PART)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            if isinstance(stream, TextIOWrapper):
                stream.flush()
                stream.reconfigure(line_buffering=True)
            self._divert(number)

    def _divert(self, number: int) -> None:
        kept = os.dup(number)
        reading, writing = os.pipe()
        os.dup2(writing, number)
        os.close(writing)
        if number == 2:  # what is written as a process crashes no thread could pass on; it has no values
            faulthandler.enable(kept)
        thread = threading.Thread(
            target=self._pass_on, args=(reading, kept), name=f"output {number}", daemon=True
        )
        thread.start()

    def _pass_on(self, reading: int, kept: int) -> None:
        with open(reading, "rb") as source:
            while line := source.readline(_MOST_BYTES):
                text = self._redact_parts(self.redact(line.decode("utf-8", "replace")))
                os.write(kept, text.encode("utf-8", "replace"))
