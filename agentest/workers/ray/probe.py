"""Inspect a node. The function is sent by value, because the node may lack the agentest package."""

from __future__ import annotations

from typing import Any


def describe_node() -> dict[str, Any]:
    """Describe this node in plain values, which the caller can read without our classes."""
    import os
    import platform
    import socket

    try:
        from agentest.version import __version__

        version: str | None = __version__
    except ModuleNotFoundError:
        version = None
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            network = file.read().strip() + os.readlink("/proc/self/ns/net")  # noqa: PTH115 - the target is no path
    except OSError:  # not Linux: machines with the same name count as the same machine
        network = socket.gethostname()
    return {
        "version": version,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "network": network,
    }
