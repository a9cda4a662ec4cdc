"""Which port the demo's agent listens at."""

from __future__ import annotations

import socket
from pathlib import Path
from zlib import crc32

_FIRST, _MANY = 10_000, 10_000
"""Below the ports that systems hand out to connections."""


def port_for(folder: Path) -> int:
    """A port that is free now, and mostly the same for the same folder.

    Two demos on one machine get two ports: at one, each would take the other's agent for its own.
    """
    start = crc32(str(folder.resolve()).encode("utf-8", "surrogateescape"))
    ports = (_FIRST + (start + step) % _MANY for step in range(_MANY))
    return next((port for port in ports if _is_free(port)), _FIRST)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
