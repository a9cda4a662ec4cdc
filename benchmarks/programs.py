"""The programs that are measured: `agentest run`, and the bare clients that do the same calls."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.fakes import REPOSITORY, Counted, Fakes
from benchmarks.journal import summary
from benchmarks.process import Failed, Sample, measure
from benchmarks.workload import Workload, write_project

MAIN = [sys.executable, "-m", "agentest"]


@dataclass(slots=True)
class Bench:
    """Measures programs against the fake servers, and checks that they did the whole work."""

    servers: Fakes
    work: Workload
    counted: Counted | None = None
    """What the servers counted during the last run."""
    busiest: float = 0.0
    """Greatest share of a run's wall clock for which the servers' one thread was at work."""

    def agentest(self, concurrency: int) -> Sample:
        """`agentest run` in a folder made for it."""
        with tempfile.TemporaryDirectory(prefix="agentest-bench-") as made:
            folder = Path(made)
            ports = self.servers.agent_port, self.servers.model_port
            write_project(folder, self.work, *ports, concurrency=concurrency)
            sample = self._measured(run_command(concurrency), folder)
            check_passed(folder)
        return sample

    def bare(self, client: str, concurrency: int = 0) -> Sample:
        """A bare client; `concurrency` 0: all conversations at once."""
        options = {
            "client": client,
            "agent-port": self.servers.agent_port,
            "model-port": self.servers.model_port,
            "conversations": self.work.conversations,
            "turns": self.work.turns,
            "concurrency": concurrency,
        }
        command = [sys.executable, "-m", "benchmarks.bare"]
        command += [f"--{name}={value}" for name, value in options.items()]
        if self.work.scripted:
            command.append("--scripted")
        return self._measured(command, REPOSITORY)

    def _measured(self, command: list[str], cwd: Path) -> Sample:
        before = self.servers.counted()
        sample = measure(command, cwd)
        counted = self.counted = self.servers.counted().since(before)
        self.busiest = max(self.busiest, counted.cpu_s / sample.wall_s)
        expected = (self.work.agent_calls, self.work.model_calls)
        if (counted.agent_requests, counted.model_requests) != expected:
            raise Failed(f"{' '.join(command[1:])}: {counted}, not {expected} agent and model requests")
        return sample


def run_command(concurrency: int, *more: str) -> list[str]:
    """The command line that is measured."""
    return [*MAIN, "run", "--concurrency", str(concurrency), *more]


def check_passed(folder: Path) -> None:
    """Raise Failed unless the run in `folder` passed."""
    found = summary(folder)
    if not found["passed"]:
        raise Failed(f"agentest did not pass: {found}")
