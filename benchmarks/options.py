"""What the command line asks for."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.workload import Workload


@dataclass(frozen=True, slots=True)
class Options:
    """The size of what is measured, and how often."""

    work: Workload
    concurrency: int
    runs: int
