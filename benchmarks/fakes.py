"""Starting the fake servers, asking them what they counted, and ending them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Counted:
    """What the servers counted, since they began or between two moments."""

    agent_requests: int
    model_requests: int
    connections: int
    received_bytes: int
    cpu_s: float

    def since(self, before: Counted) -> Counted:
        return Counted(
            self.agent_requests - before.agent_requests,
            self.model_requests - before.model_requests,
            self.connections - before.connections,
            self.received_bytes - before.received_bytes,
            self.cpu_s - before.cpu_s,
        )


@dataclass(frozen=True, slots=True)
class Fakes:
    """The running servers."""

    process: subprocess.Popen[str]
    agent_port: int
    model_port: int

    def counted(self) -> Counted:
        assert self.process.stdin
        self.process.stdin.write("counters\n")
        self.process.stdin.flush()
        told = _line(self.process)
        return Counted(
            told["agent"]["requests"],
            told["model"]["requests"],
            told["agent"]["connections"] + told["model"]["connections"],
            told["agent"]["received_bytes"] + told["model"]["received_bytes"],
            told["cpu_s"],
        )


@contextmanager
def fakes(agent_s: float, model_s: float) -> Iterator[Fakes]:
    """A fake agent and a fake model with these latencies in seconds."""
    command = [sys.executable, "-m", "benchmarks.server", f"--agent-s={agent_s}", f"--model-s={model_s}"]
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        ports = _line(process)
        yield Fakes(process, ports["agent"], ports["model"])
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(timeout=10)


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the fake servers died")
    told: dict[str, Any] = json.loads(line)
    return told
