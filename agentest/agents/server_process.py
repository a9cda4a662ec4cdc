"""Start a server before a run and end it afterwards, however the run ends. Its recent output is stored."""

from __future__ import annotations

import asyncio
import codecs
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import anyio
from anyio.abc import TaskGroup

from agentest.config.agents.server import AGENTS_SERVER, Server
from agentest.domain.transcript import ServerOutput
from agentest.support.errors import ServerError
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.client import Client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.process_groups import CHILDREN_GRACE_S, ChildProcess, start_process
from agentest.support.terminal import clean_rows, without_colours

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


_TAIL_LINES = 30
_TAIL_CHARS = 4000
_PIECE_BYTES = 65536
_POLL_TIMEOUT_S = 5.0
_FINAL_OUTPUT_S = 1.0


@asynccontextmanager
async def running_server(
    config: Server,
    root: Path,
    client: Client,
    tasks: TaskGroup,
    callbacks: ServerCallbacks,
    *,
    name: str = AGENTS_SERVER,
    required_knowledge: str | None = None,
    graces_s: tuple[float, float] = (5.0, CHILDREN_GRACE_S),
) -> AsyncIterator[None]:
    """Run a server during the block. A server that already runs is used as it is (`reuse`).

    A task in `tasks` reads its output. Raises ServerError, with the end of the output, if the server exits or
    is not ready in time.

    Args:
        required_knowledge: data that only a server started by this run can have. A running server cannot be
            used then.
        graces_s: seconds that the server has to exit before it is killed, and then its children.
    """
    if await _not_ready_reason(config.ready, client) is None:
        if config.reuse and required_knowledge:
            raise ServerError(
                f"something answers at {config.ready} already, and it cannot know "
                f"{required_knowledge}. Stop it, so that this run starts it with that address; "
                f"or write a fixed `port`, and start it with "
                "that address"
            )
        if config.reuse:
            restart = "; what `watch` names does not restart it" if config.watch else ""
            callbacks.on_note(
                f"something at {config.ready} was running already, so the server was not started{restart}"
            )
            yield
            return
        raise ServerError(
            f"something answers at {config.ready} already, and reuse is off: "
            f"stop it{'' if required_knowledge else ', or set server.reuse to true'}"
        )
    server = await _start(config, root, name, callbacks)
    try:
        tasks.start_soon(server.read)
        await _until_ready(config, server, client)
        tasks.start_soon(server.watch)
        yield
    finally:
        server.ending = True
        await server.process.end(*graces_s)


@dataclass(frozen=True, slots=True)
class ServerCallbacks:
    """The functions that receive a server's output and its exit status."""

    redact: Callable[[str], str]
    on_note: Callable[[str], None]
    """Receives a note if the server was already running, or if it exits during the run."""
    lines: Callable[[str], None] = lambda _: None  # receives the output, in whole redacted lines
    end: Callable[[int], None] = lambda _: None  # receives the status of an unexpected exit, immediately


class _RunningServer:
    def __init__(
        self, process: ChildProcess, output: asyncio.StreamReader, name: str, callbacks: ServerCallbacks
    ) -> None:
        self.process = process
        self.name = name
        self.redact = callbacks.redact
        self._callbacks = callbacks
        self.ending = False
        self._output = output
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._line = ""
        self._closed = anyio.Event()

    async def read(self) -> None:
        """Read continuously, so that the server never blocks on a full pipe. Only the tail is stored."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while piece := await self._output.read(_PIECE_BYTES):
            *lines, self._line = (self._line + decoder.decode(piece)).split("\n")
            self._lines.extend(lines)
            self._line = self._line[-_PIECE_BYTES:]
            self._report(lines)
        self._report([self._line] if self._line else [])
        self._closed.set()

    def _report(self, lines: list[str]) -> None:
        if lines:
            # Redact the lines together, because a secret may span several lines.
            self._callbacks.lines(clean_rows(self.redact(without_colours("\n".join(lines)))))

    async def watch(self) -> None:
        """Report an exit, unless we ended the server."""
        status = await self.process.wait()
        if not self.ending:
            self._callbacks.end(status)
            await self.last_words()
            self._callbacks.on_note(f"{self.name} exited with status {status} during the run{self.tail()}")

    async def last_words(self) -> None:
        """Wait for the rest of an exited server's output, within a limit: others may keep the pipe open."""
        with anyio.move_on_after(_FINAL_OUTPUT_S):
            await self._closed.wait()

    def tail(self) -> str:
        """Return the end of the output, to append to a message. Redaction comes first, then shortening."""
        output = self.redact(without_colours("\n".join((*self._lines, self._line))))
        text = output[-_TAIL_CHARS:].strip()
        return f"\nIts last output:\n{text}" if text else "; it printed nothing"


async def _start(config: Server, root: Path, name: str, callbacks: ServerCallbacks) -> _RunningServer:
    cwd = root / (config.cwd or ".")
    if not cwd.is_dir():
        subject = "server" if name == AGENTS_SERVER else name
        raise ServerError(f"{subject}.cwd: the folder {cwd} does not exist")
    output = asyncio.StreamReader()
    try:
        process = await start_process(
            config.command,
            cwd=cwd,
            env=config.env,
            stdout=asyncio.StreamReaderProtocol(output),
            stderr=subprocess.STDOUT,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in the command or the environment
        named = "" if name == AGENTS_SERVER else f"{name}: "
        raise ServerError(
            f"{named}the server command {config.command!r} cannot be started: {error}"
        ) from None
    return _RunningServer(process, output, name, callbacks)


async def _until_ready(config: Server, server: _RunningServer, client: Client) -> None:
    process, problem = server.process, "it was not asked"
    pause, longest = 0.02, 0.5
    with anyio.move_on_after(config.timeout_s):
        while process.returncode is None:
            problem_now = await _not_ready_reason(config.ready, client)
            # Check again, because another process on the same port may have answered.
            if problem_now is None and process.returncode is None:
                return
            problem = problem_now or problem
            await anyio.sleep(pause)
            pause = min(pause * 1.5, longest)
    if process.returncode is not None:
        await server.last_words()
        what = f"exited with status {process.returncode} before it was ready"
    else:
        what = f"was not ready within {config.timeout_s:g} s: {config.ready}: {problem}"
    named = "" if server.name == AGENTS_SERVER else f"{server.name}: "
    command = server.redact(repr(config.command))
    raise ServerError(f"{named}the server command {command} {what}{server.tail()}")


async def _not_ready_reason(ready: str, client: Client) -> str | None:
    parts = urlsplit(ready)
    try:
        with anyio.fail_after(_POLL_TIMEOUT_S):
            if parts.scheme == "tcp":
                await client.check_listening(parts.hostname or "", parts.port or 0)
                return None
            response = await client.send_direct("GET", ready, (), None)
            await response.aclose()  # do not read the body: it may never end
            status = response.status_code
            return None if status < 500 else f"answers {status}"
    except TimeoutError:
        return "no answer"
    except RefusedAddress as error:
        raise ServerError(str(error)) from None
    except CONNECTION_ERRORS as error:
        return describe(error)
