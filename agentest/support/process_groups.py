"""Start programs, and end each with everything that it started, however this process ends.

No other module starts programs. Each program has a session of its own, and a reaper ends the sessions if this
process is killed.
"""

from __future__ import annotations

import asyncio
import atexit
import codecs
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL
from time import monotonic
from typing import Any

import anyio

from agentest.support.interrupts import start_helper
from agentest.support.reaper import GRACE_S, MARK
from agentest.support.reaper import send as send_to_session
from agentest.support.terminal import without_colours

_POLL_S = 0.02
CHILDREN_GRACE_S = 1.0
_DEATH_S = 5.0  # seconds to wait for a killed process, which a lost network drive may delay
_REAPER = Path(__file__).with_name("reaper.py")


class _Reaper:
    """The process that ends our programs if this process is killed. It starts before the first of them."""

    def __init__(self) -> None:
        self.mark = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is None:
            self.mark = os.urandom(8).hex()
            words = [sys.executable, "-I", "-S", str(_REAPER), self.mark]
            self._process = start_helper(words, stdin=subprocess.PIPE, bufsize=0)

    def tell(self, line: str) -> None:
        if self._process and self._process.stdin:
            with suppress(BrokenPipeError):  # it was killed
                self._process.stdin.write(f"{line}\n".encode())

    @contextmanager
    def starting(self) -> Iterator[list[int]]:
        """Watch a program from before it starts. The block adds its number to the yielded list."""
        started: list[int] = []
        self.tell("?")
        try:
            yield started
        except BaseException as error:
            for session in started:
                send_to_session(session, signal.SIGKILL)
            if isinstance(error, Exception):  # an interrupted start may have begun a program without a number
                self.tell("!")
            raise
        self.tell(f"+{started[0]}")

    def leave(self) -> None:
        """Leave the reaper to the process from which this one was forked."""
        if self._process and self._process.stdin:
            self._process.stdin.close()  # it would hide the end of that process
            self._process.returncode = 0
        self._process = None

    def close(self) -> None:
        """Close the reaper, which ends the programs that are left."""
        process, self._process = self._process, None
        if process and process.stdin:
            process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                process.wait(2 * GRACE_S)


_reaper = _Reaper()
atexit.register(_reaper.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reaper.leave)


def search_path() -> str:
    """Return the search path for programs.

    The folder of the running interpreter comes last, so `python` is found even if only a virtual environment
    has it.
    """
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


class ChildProcess:
    """A program that `start_process` started, with everything in its session."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.wait = process.wait
        self.stdin: asyncio.WriteTransport | None = None  # standard input, if it was requested
        self._pipes: list[asyncio.BaseTransport] = []

    async def connect(self, into: Any, outputs: Sequence[tuple[Any, asyncio.Protocol]]) -> None:
        """Connect our ends of the pipes, as open files: standard input, and outputs with their receivers."""
        loop = asyncio.get_running_loop()
        for file, receiver in outputs:
            transport, _ = await loop.connect_read_pipe(lambda: receiver, file)  # noqa: B023 - called at once
            self._pipes.append(transport)
        if into:
            self.stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, into)
            self._pipes.append(self.stdin)

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def send(self, number: int) -> bool:
        """Send a signal to all processes. Return False if none is running."""
        return send_to_session(self.pid, number)

    async def end(self, grace_s: float, children_grace_s: float = CHILDREN_GRACE_S) -> None:
        """End all processes, first with a request, then by force.

        Cancellation skips nothing, not even that of a `TimeLimit`, from which scopes do not shield.

        Args:
            grace_s: seconds to exit after the request.
            children_grace_s: time limit, within `grace_s`, for processes that outlive the first one.
        """
        runs = True
        try:
            runs = self.send(signal.SIGTERM)
            with anyio.move_on_after(grace_s if runs else 0, shield=True):
                await self.wait()
                # A shell exits before the programs that it started.
                with anyio.move_on_after(children_grace_s):
                    while runs := self.send(0):  # noqa: ASYNC110 - their end cannot be awaited
                        await anyio.sleep(_POLL_S)
        finally:
            if runs:
                self.send(signal.SIGKILL)
            _reaper.tell(f"-{self.pid}")
            for pipe in self._pipes:  # others may hold the other ends open
                pipe.close()
            give_up = monotonic() + _DEATH_S
            with anyio.CancelScope(shield=True):
                while self.returncode is None and monotonic() < give_up:  # noqa: ASYNC110 - of real time
                    await anyio.sleep(_POLL_S)


async def start_process(
    command: str | Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bool = False,
    stdout: asyncio.Protocol | None = None,
    stderr: asyncio.Protocol | int = DEVNULL,
) -> ChildProcess:
    """Start a program; `end` ends it. Raises OSError, and ValueError for a NUL in a text.

    We create the pipes: with its own, asyncio reports a process as running until they are closed, and a child
    of the program may keep them open indefinitely.

    Args:
        command: words, or a text for the shell.
        env: variables in addition to those of this process.
        stdin: True to write to standard input. Otherwise it is empty.
        stdout: receives the output.
        stderr: receives the errors; STDOUT: they are part of the output.
    """
    start: Any = asyncio.create_subprocess_exec
    if isinstance(command, str):
        command, start = [command], asyncio.create_subprocess_shell
    environment = {**os.environ, "PATH": search_path(), **(env or {})}
    _reaper.start()
    with ExitStack() as theirs, ExitStack() as ours:
        into, stdin_end = _pipe("wb", ours, theirs) if stdin else (None, DEVNULL)
        outputs, ends = [], []
        for receiver in (stdout, stderr):
            end = receiver if isinstance(receiver, int) else DEVNULL
            if isinstance(receiver, asyncio.Protocol):
                opened, end = _pipe("rb", ours, theirs)
                outputs.append((opened, receiver))
            ends.append(end)
        streams = dict(zip(("stdin", "stdout", "stderr"), (stdin_end, *ends), strict=True))
        with anyio.CancelScope(shield=True), _reaper.starting() as started:
            process = await start(
                *command, cwd=cwd, env={**environment, MARK: _reaper.mark}, **streams, start_new_session=True
            )
            child = ChildProcess(process)
            started.append(child.pid)
            await child.connect(into, outputs)
        ours.pop_all()
    return child


def _pipe(mode: str, ours: ExitStack, theirs: ExitStack) -> tuple[Any, int]:
    reading, writing = os.pipe()
    end, other = (reading, writing) if mode == "rb" else (writing, reading)
    theirs.callback(os.close, other)
    return ours.enter_context(open(end, mode, 0)), other


class OutputTail(asyncio.Protocol):
    """Stores the end of what a program writes."""

    def __init__(self, most_chars: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._most = most_chars
        self._text = ""
        self._ended = asyncio.Event()
        self.received = 0  # bytes so far

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self._text = (self._text + self._decoder.decode(data))[-2 * self._most :]

    def connection_lost(self, _: Exception | None) -> None:
        self._ended.set()

    async def end(self, limit_s: float = 1.0) -> None:
        """Wait for the rest of an exited program's output, within a limit: others may hold the pipe open."""
        with anyio.move_on_after(limit_s):
            await self._ended.wait()

    @property
    def is_cut(self) -> bool:
        """True if the beginning is not stored any more."""
        return len(self._text) > self._most

    @property
    def text(self) -> str:
        return without_colours(self._text).strip()[-self._most :]
