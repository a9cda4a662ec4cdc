"""What servers print, as far as a turn that fails needs it: the last of it, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentest.domain.transcript import ServerOutput

AGENTS_SERVER = "the agent's server"
"""What an agent's own server is called that has no name."""
ROOM_BYTES = 65_536
_SHOWN_LINES = 20
_LINE_CHARS = 500
_LATE_S = 0.3
"""How long a turn that failed waits for what a server prints of it: tracebacks come after the answer."""
_QUIET_S = 0.06


OnLines = Callable[[str], object]
"""Receives whole lines, without secrets."""
OnEnd = Callable[[int], object]
"""Receives an exit status."""


class Printed:
    """The last of what one server printed, and whether it has ended.

    Who holds conversations in other processes follows it, and keeps another one like it there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._bytes = bytearray()
        self._position = 0
        self._exit_status: int | None = None
        self._followers: list[tuple[OnLines, OnEnd]] = []

    def follow(self, on_lines: OnLines, on_end: OnEnd) -> None:
        """Have what it prints from now on told, and its end."""
        self._followers.append((on_lines, on_end))

    def add(self, lines: str) -> None:
        """Keep whole lines, without secrets."""
        data = f"{lines}\n".encode("utf-8", "backslashreplace")
        self._bytes += data
        del self._bytes[: max(0, len(self._bytes) - ROOM_BYTES)]
        self._position += len(data)
        for on_lines, _ in self._followers:
            on_lines(lines)

    @property
    def position(self) -> int:
        """How many bytes have been printed."""
        return self._position

    def end(self, status: int) -> None:
        """It has ended, and not by our doing."""
        self._exit_status = status
        for _, on_end in self._followers:
            on_end(status)

    @property
    def exit_status(self) -> int | None:
        """None: it runs, or was never started."""
        return self._exit_status

    def since(self, position: int) -> ServerOutput | None:
        """What came from that position on; None: nothing, of a server that runs."""
        end = self.position
        start = max(position, end - len(self._bytes))
        text = self._bytes[len(self._bytes) - (end - start) :].decode("utf-8", "ignore")
        lines = text.removesuffix("\n").split("\n") if text else []
        if start > position:  # the first is the end of one
            lines = lines[1:] or lines
        if not lines and self.exit_status is None:
            return None
        return ServerOutput(
            server=self.name,
            lines=tuple(line[:_LINE_CHARS] for line in lines[-_SHOWN_LINES:]),
            lines_before=max(0, len(lines) - _SHOWN_LINES),
            exit_status=self.exit_status,
        )


Positions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AgentServers:
    """What the servers of one agent print."""

    printed: tuple[Printed, ...] = ()

    def positions(self) -> Positions:
        """Where the output of each stands now."""
        return {each.name: each.position for each in self.printed}

    async def since(self, positions: Positions) -> tuple[ServerOutput, ...]:
        """What each printed from there on; what comes a little later is waited for."""
        if not self.printed:
            return ()
        import anyio  # a tenth of a second to import: plans know these values, too

        with anyio.move_on_after(_LATE_S):
            before = self.positions()
            while True:
                await anyio.sleep(_QUIET_S)
                now = self.positions()
                if now == before != positions:
                    break
                before = now
        found = (each.since(positions[each.name]) for each in self.printed)
        return tuple(each for each in found if each)


NO_SERVERS = AgentServers()
