"""A cluster of several nodes on this machine, only on loopback, in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_ENDS_WITHIN_S = 60
_CLUSTER = """
import os, sys
import ray
from ray.cluster_utils import Cluster
ray.__version__ = os.environ.get("VERSION_OF_THE_TEST", ray.__version__)
head = {"num_cpus": int(sys.argv[2]), "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=head)
for _ in range(int(sys.argv[1])):
    cluster.add_node(num_cpus=1)
print("address", cluster.address, flush=True)
for _ in sys.stdin:
    cluster.add_node(num_cpus=1)
cluster.shutdown()
"""
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listens on loopback alone
    "RAY_AUTH_MODE": "disabled",  # else it depends on whether this user has a token
}


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A cluster; its head has no CPUs for workers unless requested."""

    address: str
    folder: Path
    """RAY_TMPDIR: where its sessions are, and the address that `auto` finds."""
    _input: IO[str]

    @property
    def head_raylet(self) -> int:
        """The process that manages the head's workers; runs on this machine connect to it."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has ended meanwhile
                words = path.read_bytes().decode(errors="replace").split("\0")
                if "--head" in words and any(str(self.folder) in word for word in words):
                    return int(path.parent.name)
        raise ProcessLookupError(f"the head of the cluster in {self.folder} has no raylet")

    def add_node(self) -> None:
        """One more node, with one CPU; it is there some seconds later."""
        self._input.write("add\n")
        self._input.flush()


@contextmanager
def ray_cluster(
    nodes: int, environment: Mapping[str, str] | None = None, *, head_cpus: int = 0
) -> Iterator[RayCluster]:
    """A cluster that ends with the block.

    Args:
        nodes: beside the head, with one CPU each.
        environment: of all of its processes.
        head_cpus: of the head, for workers.
    """
    with (
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder,  # short: for sockets
        subprocess.Popen(
            [sys.executable, "-c", _CLUSTER, str(nodes), str(head_cpus)],
            cwd=folder,
            env={**os.environ, **_ENVIRONMENT, "RAY_TMPDIR": folder, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            lines = iter(process.stdout.readline, "")
            address = next(line.split()[1] for line in lines if line.startswith("address "))
            yield RayCluster(address, Path(folder), process.stdin)
        finally:
            process.communicate(timeout=_ENDS_WITHIN_S)
