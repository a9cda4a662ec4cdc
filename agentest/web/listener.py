"""Where the server listens, and the address that opens it: both are there before all that answers is loaded.

Who connects meanwhile waits in line.
"""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from agentest.support.errors import UsageError
from agentest.support.http.connection_limits import listening
from agentest.web.guard import Guard
from agentest.web.project import Project
from agentest.web.run_index import Runs

_LOOPBACK = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Sockets of loopback that listen, and who may come in."""

    sockets: tuple[socket.socket, ...]
    guard: Guard

    @classmethod
    def at(cls, port: int) -> Self:
        """At a port; 0: any that is free. Raises UsageError."""
        sockets = _bound(port)
        return cls(sockets=tuple(sockets), guard=Guard(port=sockets[0].getsockname()[1]))

    def address(self, project: Project) -> str:
        """The first address, with the token, and with the run that was named."""
        chosen = Runs(project).chosen
        return self.guard.address + (f"#/run?of={chosen}" if chosen else "")


def _bound(port: int) -> list[socket.socket]:
    """Sockets of loopback and nothing else: `localhost` may mean either of the two addresses.

    Were only one of them ours, somebody else on this machine could listen at the other.
    """
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, host in _LOOPBACK:
            try:
                sock = listening(family, host, sockets[0].getsockname()[1] if sockets else port)
            except OSError as error:
                if sockets and error.errno != errno.EADDRINUSE:
                    continue  # a machine without IPv6
                why = error.strerror or str(error)
                raise UsageError(
                    f"--port {port}: cannot listen there ({why}); choose another, or 0 for any free one"
                ) from None
            sockets.append(sock)
            stack.callback(sock.close)
        stack.pop_all()
        return sockets
