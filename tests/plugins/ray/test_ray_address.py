"""Finding the address of a cluster, without Ray."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from project import free_port

from agentest.plugins.ray.address import is_loopback_only

OWN = "127.0.0.2"
"""Stands for this machine's address in its network."""


def listening(stack: ExitStack, port: int, *hosts: str) -> None:
    for host in hosts:
        stack.enter_context(socket.create_server((host, port)))


@pytest.mark.parametrize(
    ("hosts", "alone"), [(["127.0.0.1"], True), (["127.0.0.1", OWN], False)], ids=["alone", "everywhere"]
)
def test_a_head_that_answers_on_loopback_alone(hosts: list[str], alone: bool, tmp_path: Path) -> None:
    """A head that answers in the network, too, is to be found there, as are its nodes."""
    with ExitStack() as stack:
        port = free_port()
        listening(stack, port, *hosts)
        assert is_loopback_only(f"127.0.0.1:{port}", {}, OWN) == alone
        assert is_loopback_only(f"localhost:{port}", {}, OWN) == alone
        assert not is_loopback_only(f"{OWN}:{port}", {}, OWN)
        assert not is_loopback_only(f"ray://127.0.0.1:{port}", {}, OWN)
        assert is_loopback_only("auto", {"RAY_ADDRESS": f"127.0.0.1:{port}"}, OWN) == alone
        latest = tmp_path / "ray" / "ray_current_cluster"
        latest.parent.mkdir()
        latest.write_text(f"127.0.0.1:{port}")
        assert is_loopback_only("auto", {"RAY_TMPDIR": str(tmp_path)}, OWN) == alone


def test_there_is_no_latest_cluster(tmp_path: Path) -> None:
    assert not is_loopback_only("auto", {"RAY_TMPDIR": str(tmp_path)}, OWN)
