"""The programs that are measured: `agentest run`, and the bare clients that do the same calls."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fakes import REPOSITORY, Counted, Fakes
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
            write_project(folder, self.work, *ports)
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


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    with open(folder / ".agentest" / "journal.jsonl", encoding="utf-8") as journal:
        for line in journal:
            yield json.loads(line)


def conversations(folder: Path) -> Iterator[dict[str, Any]]:
    """The conversations of the run in `folder`, in the shape of results.json."""
    return (line["conversation"] for line in _lines(folder) if line["type"] == "conversation")


def summary(folder: Path) -> dict[str, Any]:
    """The summary of the run in `folder`. Raises ValueError when it did not come to its end."""
    last = None
    for last in _lines(folder):  # noqa: B007 - the last line is wanted
        pass
    if last is None or last["type"] != "end":
        raise ValueError(f"{folder}: the journal does not end with the run's summary")
    found: dict[str, Any] = last["run"]["summary"]
    return found


def ids(folder: Path) -> set[str]:
    """The ids of the conversations of the run in `folder`. Raises ValueError when one is there twice."""
    found: set[str] = set()
    for conversation in conversations(folder):
        if conversation["conversationId"] in found:
            raise ValueError(f"{folder}: conversation {conversation['conversationId']} is there twice")
        found.add(conversation["conversationId"])
    return found
