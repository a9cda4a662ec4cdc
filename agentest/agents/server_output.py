"""Store the recent output of servers in memory, so that failed turns can include it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentest.domain.transcript import ServerOutput
from agentest.support.lazy_dataclasses import dataclass

ROOM_BYTES = 65_536
_SHOWN_LINES = 20
_LINE_CHARS = 500
_LATE_OUTPUT_S = 0.3
"""Seconds to wait for the output of a failed turn, because tracebacks follow the response."""
_QUIET_S = 0.06


OnLines = Callable[[str], object]  # receives whole, redacted lines
OnEnd = Callable[[int], object]  # receives an exit status


class RecentOutput:
    """The recent output of one server, and its exit status.

    Code that runs conversations in other processes follows it and mirrors it there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._bytes = bytearray()
        self.position = 0  # number of bytes printed so far
        self.exit_status: int | None = None  # None if the server is running or was never started
        self._followers: list[tuple[OnLines, OnEnd]] = []

    def follow(self, on_lines: OnLines, on_end: OnEnd) -> None:
        """Register callbacks for future output and for the server's exit."""
        self._followers.append((on_lines, on_end))

    def add(self, lines: str) -> None:
        """Add whole, redacted lines."""
        data = f"{lines}\n".encode("utf-8", "backslashreplace")
        self._bytes += data
        del self._bytes[: max(0, len(self._bytes) - ROOM_BYTES)]
        self.position += len(data)
        for on_lines, _ in self._followers:
            on_lines(lines)

    def end(self, status: int) -> None:
        """Record that the server exited on its own."""
        self.exit_status = status
        for _, on_end in self._followers:
            on_end(status)

    def since(self, position: int) -> ServerOutput | None:
        """Return the output after a position, or None if a running server printed nothing."""
        start = max(position, self.position - len(self._bytes))
        text = self._bytes[len(self._bytes) - (self.position - start) :].decode("utf-8", "ignore")
        lines = text.removesuffix("\n").split("\n") if text else []
        if start > position:  # the first line is incomplete
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
    """The output of the servers of one agent."""

    printed: tuple[RecentOutput, ...] = ()

    def positions(self) -> Positions:
        """Return the current position in each server's output."""
        return {each.name: each.position for each in self.printed}

    async def since(self, positions: Positions) -> tuple[ServerOutput, ...]:
        """Return each server's output after these positions, after a short wait for late lines."""
        if not self.printed:
            return ()
        import anyio  # imported late because it takes 0.1 s, and plans import this module too

        with anyio.move_on_after(_LATE_OUTPUT_S):
            before = self.positions()
            while True:
                await anyio.sleep(_QUIET_S)
                now = self.positions()
                if now == before != positions:
                    break
                before = now
        outputs = (each.since(positions[each.name]) for each in self.printed)
        return tuple(each for each in outputs if each)
