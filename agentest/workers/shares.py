"""How many workers a run has."""

from __future__ import annotations

import os
from pathlib import Path

from agentest.runner.prepare import Prepared

AUTO = "auto"


_CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


def worker_count(prepared: Prepared, wanted: int | str) -> int:
    """How many workers to start: no more than there are conversations and places for them."""
    count = cores() if wanted == AUTO else int(wanted)
    left = sum(unit.conversations - len(unit.kept.conversations) for unit in prepared.plan.left)
    return max(1, min(count, left, prepared.concurrency))


def cores(quota: Path = _CGROUP_CPU) -> int:
    """How many cores this process may use, by its affinity and its container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(count, int(allowed) // int(period)))
    except (OSError, ValueError):  # no such file, or `max`
        return count
