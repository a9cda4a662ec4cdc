"""What servers print, told to the workers: a turn that fails there shows it.

The run's own process starts the servers and reads what they print. A worker keeps the last of it, as it would
had it read it itself; messages are as prompt as memory that processes share, and reach other machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from agentest.agents.server.output import ROOM_BYTES, Printed
from agentest.workers.links import Send

_GATHER_S = 0.02
"""The least time between two messages on what is printed: a server that prints much sends few, but large."""


@dataclass(frozen=True, slots=True)
class LinesPrinted:
    """To a worker: the last of what a server has printed since the message before."""

    server: str
    lines: str


@dataclass(frozen=True, slots=True)
class ServerEnded:
    """To a worker: a server has ended, and not by our doing."""

    server: str
    status: int


class PrintedDesk:
    """In the run's own process: tells all workers what servers print.

    Args:
        send: sends a message to all workers. Called in the event loop.
    """

    def __init__(self, servers: Iterable[Printed], send: Send) -> None:
        self._servers = tuple(servers)
        self._send = send
        self._lines: dict[str, str] = {}
        self._pause: asyncio.TimerHandle | None = None
        for each in self._servers:
            each.follow(partial(self._hear, each.name), partial(self._end, each.name))

    def welcome(self, send: Send) -> None:
        """Tell a new worker which servers have ended. What they printed belongs to no turn of it."""
        for each in self._servers:
            if each.exit_status is not None:
                send(ServerEnded(each.name, each.exit_status))

    def close(self) -> None:
        """Tell nothing more."""
        if self._pause:
            self._pause.cancel()
        self._send = _nothing

    def _hear(self, server: str, lines: str) -> None:
        before = self._lines.get(server)
        self._lines[server] = _last(lines if before is None else f"{before}\n{lines}")
        if self._pause is None:
            self._tell()

    def _end(self, server: str, status: int) -> None:
        self._send_lines()
        self._send(ServerEnded(server, status))

    def _tell(self) -> None:
        self._pause = asyncio.get_running_loop().call_later(_GATHER_S, self._tell) if self._lines else None
        self._send_lines()

    def _send_lines(self) -> None:
        waiting, self._lines = self._lines, {}
        for server, lines in waiting.items():
            self._send(LinesPrinted(server, lines))


class PrintedHere:
    """In a worker: keeps what it is told of the servers."""

    def __init__(self, servers: Iterable[Printed]) -> None:
        self._servers = {each.name: each for each in servers}

    def receive(self, message: LinesPrinted | ServerEnded) -> None:
        match message:
            case LinesPrinted():
                self._servers[message.server].add(message.lines)
            case ServerEnded():
                self._servers[message.server].end(message.status)


def _last(text: str) -> str:
    """The last whole lines of it, as far as they are kept anyway."""
    if len(text) <= ROOM_BYTES:
        return text
    kept = text[-ROOM_BYTES:]
    _, cut, whole = kept.partition("\n")
    return whole if cut else kept


def _nothing(_: object) -> None:
    """Whoever is not told any more."""
