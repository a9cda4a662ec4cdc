"""Where a cluster is, and whether anybody answers there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

from agentest.support.errors import UsageError

VARIABLE = "RAY_ADDRESS"
_LOCAL = "local"
_AUTO = "auto"
_PORT = 6379
_CLIENT = "ray://"
_CLIENT_PORT = 10001
_ANSWERED_WITHIN_S = 5.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ELSEWHERE = "192.0.2.1"
"""An address that nobody has (RFC 5737)."""


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


def is_on_loopback_alone(address: str, environ: Mapping[str, str], own: str | None = None) -> bool:
    """Whether the cluster's head is on loopback and nowhere else, so that Ray must be told: it takes such an
    address for that of this machine in its network, where most clusters answer, too.

    Args:
        own: that address; None: it is looked up.
    """
    if address == _AUTO:
        address = _latest(environ)
    if not address or is_of_clients(address):
        return False
    host, port = host_and_port(address)
    if host not in _LOOPBACK:
        return False
    own = own or _own_address()
    try:
        socket.create_connection((own, port), timeout=_ANSWERED_WITHIN_S).close()
    except OSError:
        return True
    return own in _LOOPBACK


def _latest(environ: Mapping[str, str]) -> str:
    """The cluster that Ray takes for `auto`: that of RAY_ADDRESS, else the latest of this machine."""
    if named := environ.get(VARIABLE, "").strip():
        return "" if named == _AUTO else named
    with suppress(OSError):  # there is none, or it is another user's
        return Path(environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster").read_text().strip()
    return ""


def _own_address() -> str:
    """That of this machine in its network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((_ELSEWHERE, 1))  # nothing is sent
        except OSError:  # it has no network
            return _LOOPBACK[0]
        return str(asked.getsockname()[0])


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
