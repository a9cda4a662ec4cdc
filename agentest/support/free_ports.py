"""Ports of this machine at which nobody listens, each for one taker at a time."""

from __future__ import annotations

import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from agentest.support.locking import Taken, locked_file

_FROM = range(20_000, 32_000)
"""Below those that systems give to connections: one of these could take the port before a server does."""


@contextmanager
def free_ports(count: int, among: Sequence[int] = _FROM) -> Iterator[list[int]]:
    """So many free ports; until the block ends, no other process gets them from here. Raises OSError.

    A port is free until the program that is told of it listens there, which takes a while: without a lock,
    the servers of two workers might be told the same one, and one would be taken for the other.
    """
    folder = _folder()
    with ExitStack() as stack:
        ports: list[int] = []
        for port in random.sample(among, len(among)):
            if len(ports) == count:
                break
            if _is_free(port) and _is_ours(folder / str(port), stack):
                ports.append(port)
        if len(ports) < count:
            raise OSError(f"only {len(ports)} of {len(among)} ports are free")
        yield ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # as servers do: what remains of connections to an earlier one holds up none
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_ours(path: Path, stack: ExitStack) -> bool:
    try:
        stack.enter_context(locked_file(path))
    except Taken:
        return False
    return True


def _folder() -> Path:
    """Where this user's processes tell each other of ports that they have taken."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    folder = Path(tempfile.gettempdir()) / f"agentest-ports-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
