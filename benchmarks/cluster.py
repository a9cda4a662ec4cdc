"""A Ray cluster of several nodes on this machine, in a process of its own: `python -m benchmarks.cluster 4`.

By Ray's own test cluster: each node has a CPU for one worker, and is a process group as on a machine of its
own. Prints the address as a line of JSON; answers `remove` on standard input by killing a node that has a
worker, and `nodes` with how many are left; ends when standard input does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.fakes import REPOSITORY
from benchmarks.process import Failed, environment

ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
"""With the first one, the nodes listen on loopback alone."""
_STORE_BYTES = 100_000_000
"""Of each node, for objects that we do not have."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The running cluster."""

    process: subprocess.Popen[str]
    address: str

    def remove_node(self) -> None:
        """Kill a node, with all of its processes."""
        assert self.process.stdin
        self.process.stdin.write("remove\n")
        self.process.stdin.flush()
        _line(self.process)


@contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """A head without a CPU, and so many nodes of one CPU each."""
    command = [sys.executable, "-m", "benchmarks.cluster", str(nodes)]
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=ray_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Cluster(process, _line(process)["address"])
    finally:
        assert process.stdin
        process.stdin.close()
        process.wait(timeout=60)


def ray_environment() -> dict[str, str]:
    """The environment of programs that start or join a cluster: nodes and they find the benchmarks, too."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    return {**environment(), **ON_LOOPBACK, "PYTHONPATH": path}


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line of JSON; Ray prints others, too."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith("{"):
            told: dict[str, Any] = json.loads(line)
            return told
    raise Failed("the cluster did not start, or died: is Ray installed?")


def main() -> None:
    """Entry point of the cluster's process."""
    from ray.cluster_utils import Cluster as RayCluster

    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    made = RayCluster(initialize_head=True, head_node_args=head)
    try:
        count = int(sys.argv[1])
        nodes = [made.add_node(num_cpus=1, object_store_memory=_STORE_BYTES) for _ in range(count)]
        print(json.dumps({"address": made.address}), flush=True)
        for line in sys.stdin:
            if line.strip() == "remove":
                made.remove_node(nodes.pop(), allow_graceful=False)
            print(json.dumps({"nodes": len(nodes)}), flush=True)
    finally:
        made.shutdown()


if __name__ == "__main__":
    main()
