"""Where a cluster is, and whether anybody answers there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TypeGuard

from agentest.errors import UsageError

VARIABLE = "RAY_ADDRESS"
_LOCAL = "local"
_AUTO = "auto"
_PORT = 6379
_CLIENT = "ray://"
_CLIENT_PORT = 10001
_ANSWERED_WITHIN_S = 5.0


def cluster_address(named: str | None, environ: Mapping[str, str]) -> str | None:
    """The cluster to join: the one that is named, else that of RAY_ADDRESS; None: one is started."""
    address = named or environ.get(VARIABLE, "").strip() or _LOCAL
    return None if address == _LOCAL else address


def check_reachable(address: str) -> None:
    """Raise UsageError where nobody answers: Ray itself would try for minutes."""
    if address == _AUTO:
        return
    host, port = host_and_port(address)
    try:
        socket.create_connection((host, port), timeout=_ANSWERED_WITHIN_S).close()
    except OSError as error:
        raise UsageError(
            f"--ray-address {address}: nobody answers at {host}, port {port} ({_cause(error)}). "
            "Is the cluster running, and may this machine reach it? HOST:6379 is its head node, "
            "ray://HOST:10001 its server for clients"
        ) from None


def is_of_clients(address: str | None) -> TypeGuard[str]:
    """Whether it is that of a server which has the cluster's calls made for clients."""
    return address is not None and address.startswith(_CLIENT)


def host_and_port(address: str) -> tuple[str, int]:
    """Where a cluster answers. Raises UsageError."""
    client = is_of_clients(address)
    host, colon, port = address.removeprefix(_CLIENT).rstrip("/").rpartition(":")
    if not colon:
        return port, _CLIENT_PORT if client else _PORT
    if "://" in host or not host or not port.isdecimal():
        raise UsageError(
            f"--ray-address {address} is not an address of Ray: write auto, HOST:6379 or ray://HOST:10001"
        )
    return host.strip("[]"), int(port)


def _cause(error: OSError) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
