"""One run of a program: its process group, what goes in, and what comes out."""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

import anyio
from anyio.abc import Process

from agentest.support.errors import AgentError, CannotSend
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.http.shortages import shortage_in, shortage_told
from agentest.support.processes.groups import Reaper, end_group, search_path
from agentest.support.terminal import without_colours

_PIECE_BYTES = 65536
_LOG_CHARS = 2000
_LAST_WORDS_S = 1.0
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What is started. There is no shell."""

    words: Sequence[str]
    env: Mapping[str, str]
    """Beside our own environment."""
    cwd: Path


class _Log(asyncio.Protocol):
    """Keeps the last of what a program writes to standard error."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.text = ""

    def data_received(self, data: bytes) -> None:
        self.text = (self.text + self._decoder.decode(data))[-2 * _LOG_CHARS :]


class Program:
    """A started program. Its pipes are our own.

    asyncio, where it opens them, takes a process for running until they are closed, and what the program
    started may keep them open for ever.
    """

    def __init__(self, process: Process, reaper: Reaper, name: str) -> None:
        self._process = process
        self._reaper = reaper
        self._name = name
        self._log = _Log()
        self._output = asyncio.StreamReader(limit=MAX_BODY_BYTES)
        self._transports: list[asyncio.BaseTransport] = []
        self._input: asyncio.WriteTransport

    @classmethod
    async def start(cls, invocation: Invocation, reaper: Reaper) -> Self:
        """Start a program. Raises AgentError where it cannot be started, CannotSend for words too long, and
        where this machine has no processes or file descriptors left.
        """
        theirs, ours = _pipes(invocation.words[0])
        try:
            process = await _opened(invocation, theirs)
        except BaseException:
            for end in ours:
                os.close(end)
            raise
        finally:
            for end in theirs:
                os.close(end)
        reaper.watch(process.pid)
        program = cls(process, reaper, invocation.words[0])
        await program._connect(*ours)
        return program

    async def _connect(self, into: int, out: int, log: int) -> None:
        loop = asyncio.get_running_loop()
        self._input, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(into, "wb", 0))
        reading = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._output), os.fdopen(out, "rb", 0)
        )
        logging = await loop.connect_read_pipe(lambda: self._log, os.fdopen(log, "rb", 0))
        self._transports = [self._input, reading[0], logging[0]]

    def write(self, content: bytes, *, last: bool = False) -> None:
        """Hand something to its standard input, and close that with the `last`."""
        if not self._input.is_closing():
            self._input.write(content)
            if last:
                self._input.close()  # what was written is sent all the same

    async def line(self) -> bytes | None:
        """The next line of its output; None at the end. Raises AgentError for one without end."""
        try:
            return await self._output.readuntil(b"\n")
        except asyncio.IncompleteReadError as error:
            return error.partial or None
        except asyncio.LimitOverrunError:
            raise self.wrote_too_much() from None

    async def finished(self) -> bytes:
        """All that it wrote to standard output, once it has ended well. Raises AgentError."""
        written: list[bytes] = []
        reading = asyncio.ensure_future(self._read_into(written))
        ending = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.wait({reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            self.check_status(await ending)
            # What it has started may keep its output open: what has come by then is all.
            await asyncio.wait({reading}, timeout=_LAST_WORDS_S)
        finally:
            for task in (reading, ending):
                task.cancel()
            await asyncio.wait({reading, ending})
        return b"".join(written)

    async def _read_into(self, written: list[bytes]) -> None:
        size = 0
        while piece := await self._output.read(_PIECE_BYTES):
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise self.wrote_too_much()
            written.append(piece)

    def check_status(self, status: int | None) -> None:
        """Raise AgentError for an exit status that tells of a failure."""
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
            raise AgentError(f"the command {self._name!r} {how}{self.log}")

    async def how_it_ended(self) -> str:
        """Of a program that has closed its output: its exit status, for messages."""
        with anyio.move_on_after(_LAST_WORDS_S):
            return f"it exited with status {await self._process.wait()}{self.log}"
        return f"it closed its output and runs on{self.log}"

    @property
    def log(self) -> str:
        """The last of what it wrote to standard error, as the end of a message."""
        text = without_colours(self._log.text)[-_LOG_CHARS:].strip()
        return f"; its log ends with:\n{text}" if text else "; it logged nothing"

    def wrote_too_much(self) -> AgentError:
        """What to say of one that writes without end."""
        return AgentError(f"the command {self._name!r} wrote more than {MAX_BODY_BYTES // 2**20} MB")

    async def end(self) -> None:
        """End its whole process group, also when it has ended itself: what it started goes with it."""
        with anyio.CancelScope(shield=True):
            self._input.close()
            await end_group(self._process, _GRACE_S)
            self._reaper.forget(self._process.pid)
            for transport in self._transports:
                transport.close()


def _pipes(name: str) -> tuple[Sequence[int], Sequence[int]]:
    """Pipes for standard input, output and error: the program's ends and ours. Raises CannotSend."""
    opened: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            opened.append(os.pipe())
    except OSError as error:
        for end in chain(*opened):
            os.close(end)
        raise CannotSend(shortage_told(_cannot_start(name), error)) from None
    (stdin, into), (out, stdout), (log, stderr) = opened
    return (stdin, stdout, stderr), (into, out, log)


def _cannot_start(name: str) -> str:
    return f"the command {name!r} cannot be started"


async def _opened(invocation: Invocation, pipes: Sequence[int]) -> Process:
    stdin, stdout, stderr = pipes
    try:
        return await anyio.open_process(
            list(invocation.words),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            cwd=invocation.cwd,
            env={**os.environ, "PATH": search_path(), **invocation.env},
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in a word
        name = invocation.words[0]
        if isinstance(error, ValueError) or error.errno == errno.E2BIG:
            raise CannotSend(
                f"the command {name!r} cannot be given the message as an argument ({error}); let it read the "
                "message: input: stdin"
            ) from None
        if shortage_in([error]):
            raise CannotSend(shortage_told(_cannot_start(name), error)) from None
        raise AgentError(f"{_cannot_start(name)}: {error}") from None
