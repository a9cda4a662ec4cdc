"""Free ports: each has one owner at a time, across processes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

from agentest.support.locking import free_ports

TAKER = """
import json, sys
from agentest.support.locking import free_ports
with free_ports(1, among=json.loads(sys.argv[1])) as (port,):
    print(port, flush=True)
    sys.stdin.read()
"""


UNUSED = range(32_000, 32_768)
"""Ports that nobody else takes meanwhile: they lie above those that runs and tests are given, and below those
that the system gives."""


@pytest.fixture
def three() -> list[int]:
    """The only ports available, none of them taken."""
    with free_ports(3, among=UNUSED) as found:
        return sorted(found)


def test_no_port_is_given_twice(three: list[int]) -> None:
    """A port is given to one process at a time, and is free again once its owner has died."""
    command = [sys.executable, "-c", TAKER, json.dumps(three)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        with free_ports(2, among=three) as ours:
            assert sorted([theirs, *ours]) == three
            with pytest.raises(OSError, match="only 0 of 3 ports are free"), free_ports(1, among=three):
                pass
        other.kill()
    with free_ports(3, among=three) as ports:
        assert sorted(ports) == three


def test_a_port_with_a_listener_is_not_free(three: list[int]) -> None:
    """Ports of other programs are skipped."""
    with socket.create_server(("127.0.0.1", three[1])), free_ports(2, among=three) as ports:
        assert sorted(ports) == [three[0], three[2]]
