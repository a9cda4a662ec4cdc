"""Listening sockets and the address of the page. Both exist before the slow imports of the server.

Clients that connect in the meantime wait in the listen queue.
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Self

from agentest.support.errors import UsageError
from agentest.support.http.caller_guard import listening
from agentest.support.lazy_dataclasses import dataclass
from agentest.web.guard import RequestGuard
from agentest.web.project import WebProject
from agentest.web.run_index import WebRuns

_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSockets:
    """Listening loopback sockets and the guard that checks requests."""

    sockets: tuple[socket.socket, ...]
    guard: RequestGuard

    @classmethod
    def at(cls, port: int) -> Self:
        """Listen at a port; 0 means any free port. Raises UsageError."""
        sockets = _loopback_sockets(port)
        return cls(sockets=tuple(sockets), guard=RequestGuard(port=sockets[0].getsockname()[1]))

    def address(self, project: WebProject) -> str:
        """Return the URL to open first, with the token and the selected run."""
        chosen = WebRuns(project).chosen
        return self.guard.address + (f"#/run?of={chosen}" if chosen else "")


def _loopback_sockets(port: int) -> list[socket.socket]:
    """Open sockets on all loopback addresses and no others, because `localhost` can mean IPv4 or IPv6.

    If only one of them were ours, another user on this machine could listen on the other.
    """
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, host in _LOOPBACK:
            try:
                sock = listening(family, host, sockets[0].getsockname()[1] if sockets else port)
            except OSError as error:
                if sockets and error.errno != errno.EADDRINUSE:
                    continue  # the machine has no IPv6
                why = error.strerror or str(error)
                raise UsageError(
                    f"--port {port}: cannot listen there ({why}); choose another, or 0 for any free one"
                ) from None
            sockets.append(sock)
            stack.callback(sock.close)
        stack.pop_all()
        return sockets
