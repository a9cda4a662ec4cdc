"""Starting the fake servers, asking them what they counted, and ending them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.fault_plan import written

REPOSITORY = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Counted:
    """What the servers counted, since they began or between two moments."""

    agent_requests: int
    model_requests: int
    connections: int
    received_bytes: int
    cpu_s: float
    faulty: int = 0
    """Requests that met a fault."""
    most_at_model: int = 0
    """Of requests that were not answered yet; never reset."""
    model_span_s: float = 0.0
    """From the model's first request to its last; never reset."""

    @property
    def requests(self) -> int:
        return self.agent_requests + self.model_requests

    def since(self, before: Counted) -> Counted:
        return Counted(
            self.agent_requests - before.agent_requests,
            self.model_requests - before.model_requests,
            self.connections - before.connections,
            self.received_bytes - before.received_bytes,
            self.cpu_s - before.cpu_s,
            self.faulty - before.faulty,
            self.most_at_model,
            self.model_span_s,
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
            sum(told["agent"]["faulty"].values()) + sum(told["model"]["faulty"].values()),
            told["model"]["most"],
            told["model"]["span_s"],
        )


@contextmanager
def fakes(
    agent_s: float,
    model_s: float,
    agent_faults: Mapping[str, int] = {},
    model_faults: Mapping[str, int] = {},
) -> Iterator[Fakes]:
    """A fake agent and a fake model with these latencies in seconds, and faults of 200 requests."""
    command = [sys.executable, "-m", "benchmarks.server", f"--agent-s={agent_s}", f"--model-s={model_s}"]
    command += [f"--agent-faults={written(agent_faults)}", f"--model-faults={written(model_faults)}"]
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
