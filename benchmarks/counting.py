"""`agentest` that counts its messages to and from workers: `python -m benchmarks.counting FILE MODE run …`.

Writes them into FILE as JSON. MODE is `real`, or `echo` for workers that only answer (`benchmarks.echoes`).
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from agentest.cli.main import main as agentest
from agentest.workers.coordinator import WorkerPool
from agentest.workers.worker_pool import WorkerSource
from benchmarks.echoes import CountedFleet, EchoHolding, EchoWorker


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
            patches.enter_context(patch("agentest.workers.ray.engine.RunWorker", EchoHolding))
        try:
            agentest()
        finally:
            counted = {"sent": sum(f.sent for f in fleets), "received": sum(f.received for f in fleets)}
            Path(file).write_text(json.dumps(counted))


if __name__ == "__main__":
    main()
