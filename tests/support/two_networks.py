"""Two networks on this machine, joined by one wire: commands in either see only its own addresses.

Needs Linux, `ip`, and root or a system on which every user may create namespaces.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_USERS = [] if os.geteuid() == 0 else ["--user"]
_NEW = ["unshare", "--net", *(["--user", "--map-root-user"] if _USERS else [])]
_UNTIL_CLOSED = ["sh", "-c", "echo ready; exec cat"]


@dataclass(frozen=True, slots=True)
class Network:
    """A network namespace that lasts as long as its first process."""

    address: str
    _first_process: int

    def inside(self, *command: str) -> list[str]:
        """The command that runs this one in the network."""
        users = [*_USERS, "--preserve-credentials"] if _USERS else []
        return ["nsenter", f"--target={self._first_process}", "--net", *users, *command]

    def run(self, *command: str) -> None:
        """Run a command in the network. Raises CalledProcessError."""
        subprocess.run(self.inside(*command), check=True, timeout=60)


@contextmanager
def two_networks() -> Iterator[tuple[Network, Network]]:
    """The two networks, which end with the block."""
    with ExitStack() as stack:
        east = Network("10.99.0.1", _begun(stack, _NEW))
        west = Network("10.99.0.2", _begun(stack, east.inside("unshare", "--net")))
        wire = ["type", "veth", "peer", "name", "wire", "netns", str(west._first_process)]
        east.run("ip", "link", "add", "wire", *wire)
        for network, other in ((east, west), (west, east)):
            network.run("ip", "link", "set", "lo", "up")
            network.run("ip", "address", "add", f"{network.address}/24", "dev", "wire")
            network.run("ip", "link", "set", "wire", "up")
            network.run("ip", "route", "add", "default", "via", other.address)
        yield east, west


def _begun(stack: ExitStack, start: Sequence[str]) -> int:
    """The id of a process that ends with the stack."""
    pipe = subprocess.PIPE
    process = stack.enter_context(subprocess.Popen([*start, *_UNTIL_CLOSED], stdin=pipe, stdout=pipe))
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", f"{' '.join(start)} has failed: may this user do it?"
    return process.pid
