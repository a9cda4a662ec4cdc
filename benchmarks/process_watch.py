"""Running a program whose work is done by several processes, and looking at each of them while it goes on.

A process that holds conversations leaves a file named by its id (`benchmarks.worker_runs`). By these files
workers are found wherever they were started: those of Ray are no children of the run. Linux only.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from benchmarks.cluster import ray_environment
from benchmarks.process import Failed

_EVERY_S = 0.05
_SHOWN_LINES = 20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Watched:
    """What a run took, by process."""

    wall_s: float
    driver_cpu_s: float
    """Of the run's own process."""
    worker_cpu_s: float
    """Of all others that held conversations."""
    driver_peak_mb: float
    worker_peak_mb: float
    """Of the largest of the others."""
    first_s: float
    """From the start of the program to its first conversation."""


def watch(
    command: list[str], cwd: Path, began: Path, while_running: Callable[[float], None] = lambda _: None
) -> Watched:
    """Run a command to its end. Raises Failed with the end of its output unless it exits with 0.

    Args:
        began: the folder of the files by which workers are found.
        while_running: is called now and then with the seconds since the start.
    """
    variables = ray_environment()  # before the clock runs: the first time it compiles all modules
    with tempfile.TemporaryFile("w+") as output:
        at_start = monotonic()
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        peak, workers, worker_peak = 0.0, dict[int, float](), 0.0
        waiting = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, process.pid, waiting) is None:
            peak = max(peak, _peak_mb(process.pid))
            for pid in _others(began, process.pid):
                workers[pid] = max(workers.get(pid, 0.0), _cpu_s(pid))
                worker_peak = max(worker_peak, _peak_mb(pid))
            while_running(monotonic() - at_start)
            sleep(_EVERY_S)
        wall_s = monotonic() - at_start
        driver_cpu_s = _cpu_s(process.pid)  # it has ended, and nobody has waited for it: it is all of it
        if process.wait():
            output.seek(0)
            end = "".join(output.readlines()[-_SHOWN_LINES:])
            raise Failed(f"{' '.join(command[1:])} ended with {process.returncode}:\n{end}")
    first_s = min((float(file.read_text()) for file in began.iterdir()), default=at_start) - at_start
    return Watched(wall_s, driver_cpu_s, sum(workers.values()), peak, worker_peak, first_s)


def _others(began: Path, driver: int) -> list[int]:
    return [pid for file in began.iterdir() if (pid := int(file.name)) != driver]


def _cpu_s(pid: int) -> float:
    """User and system time of a process; 0 where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _peak_mb(pid: int) -> float:
    """The most memory that a process has had; 0 where there is none."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    lines = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return sum(int(line.split()[1]) * 1024 / 1e6 for line in lines)
