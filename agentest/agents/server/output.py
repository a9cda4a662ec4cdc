"""What servers print, as far as a turn that fails needs it: in memory that all processes of a run share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from mmap import mmap

from agentest.transcript import ServerOutput

AGENTS_SERVER = "the agent's server"
"""What an agent's own server is called that has no name."""
_ROOM = 65_536
_SHOWN_LINES = 20
_LINE_CHARS = 500
_LATE_S = 0.3
"""How long a turn that failed waits for what a server prints of it: tracebacks come after the answer."""
_QUIET_S = 0.06


class Printed:
    """The last of what one server printed, and whether it has ended.

    It is made before processes are forked: one writes to it, all read.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._numbers = memoryview(mmap(-1, 24)).cast("q")
        """Bytes printed so far, whether the server has ended, its exit status."""
        self._bytes = memoryview(mmap(-1, _ROOM))

    def add(self, lines: str) -> None:
        """Keep whole lines, without secrets."""
        data = f"{lines}\n".encode("utf-8", "backslashreplace")
        kept, end = data[-_ROOM:], self.position + len(data)
        at = (end - len(kept)) % _ROOM
        first = kept[: _ROOM - at]
        self._bytes[at : at + len(first)] = first
        self._bytes[: len(kept) - len(first)] = kept[len(first) :]
        self._numbers[0] = end

    @property
    def position(self) -> int:
        """How many bytes have been printed."""
        return self._numbers[0]

    def end(self, status: int) -> None:
        """It has ended, and not by our doing."""
        self._numbers[2], self._numbers[1] = status, 1

    @property
    def exit_status(self) -> int | None:
        """None: it runs, or was never started."""
        return self._numbers[2] if self._numbers[1] else None

    def since(self, position: int) -> ServerOutput | None:
        """What came from that position on; None: nothing, of a server that runs."""
        end = self.position
        start = max(position, end - _ROOM)
        text = self._between(start, end).decode("utf-8", "ignore")
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

    def _between(self, start: int, end: int) -> bytes:
        at, length = start % _ROOM, end - start
        first = bytes(self._bytes[at : min(at + length, _ROOM)])
        return first + bytes(self._bytes[: length - len(first)])


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
