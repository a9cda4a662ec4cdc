"""What a worker does on its node: prepare the run again from the project's files, and hold conversations."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentest.runner.file_descriptors import make_room
from agentest.runner.ports import with_known_ports
from agentest.runner.prepare import Prepared
from agentest.support.errors import UsageError
from agentest.workers.messages import CannotStart
from agentest.workers.ray.line import Called
from agentest.workers.ray.outputs import RedactedOutput
from agentest.workers.worker import Worker

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
