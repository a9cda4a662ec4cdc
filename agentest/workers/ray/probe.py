"""What a node has. The function is sent by value, as the node may have no agentest."""

from __future__ import annotations

from typing import Any


def look() -> dict[str, Any]:
    """What is on this node; plain values, as nothing of ours may be there to read others."""
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
    except OSError:  # no Linux: whoever has the same name is taken for the same machine
        network = socket.gethostname()
    return {
        "version": version,
        "python": platform.python_version(),
        "host": socket.gethostname(),
        "network": network,
    }
