"""Starting a server before a run and ending it afterwards, however the run ends."""

from __future__ import annotations

import asyncio
import codecs
import os
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import anyio
from anyio.abc import Process, TaskGroup

from agentest.agents.server_output import AGENTS_SERVER
from agentest.config.agents.server import Server
from agentest.support.errors import ServerError
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.client import Client
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.process_groups import CHILDREN_GRACE_S, Reaper, end_group, search_path
from agentest.support.terminal import clean_rows, without_colours

_TAIL_LINES = 30
_TAIL_CHARS = 4000
_PIECE_BYTES = 65536
_POLL_S = (0.02, 0.5)
_POLL_TIMEOUT_S = 5.0
_LAST_WORDS_S = 1.0


@asynccontextmanager
async def running_server(
    config: Server,
    root: Path,
    client: Client,
    tasks: TaskGroup,
    redact: Callable[[str], str],
    on_note: Callable[[str], None],
    grace_s: float = 5.0,
    children_grace_s: float = CHILDREN_GRACE_S,
    untold: str | None = None,
    *,
    called: str = AGENTS_SERVER,
    heard: Heard | None = None,
) -> AsyncIterator[None]:
    """Have the server running meanwhile. One that is ready already is used as it is (`reuse`).

    `untold` is what only a server that we start can know: then one that is ready already is of no use.

    Its output is read by a task of `tasks`, which ends with the server, and given to `heard`. After `grace_s`
    seconds a server that does not end when it is asked to is killed; what it has started is, where it goes on
    for `children_grace_s` after the server's end. Messages call it `called`.

    Raises ServerError with the tail of its output when it dies or does not get ready in time. `on_note` is
    called when it was running before, and when it dies while the run goes on.
    """
    if await _problem(config.ready, client) is None:
        if config.reuse and untold:
            raise ServerError(
                f"something answers at {config.ready} already, and it cannot know {untold}. Stop it, so that "
                "this run starts it and tells it; or write a fixed `port`, and start it with that address"
            )
        if config.reuse:
            on_note(_used_as_it_is(config))
            yield
            return
        raise ServerError(
            f"something answers at {config.ready} already, and reuse is off: "
            f"stop it{'' if untold else ', or set server.reuse to true'}"
        )
    reaper = Reaper()
    try:
        server = await _start(config, root, called, heard or Heard(), redact)
    except BaseException:
        reaper.close()
        raise
    try:
        reaper.watch(server.process.pid)
        tasks.start_soon(server.read)
        await _until_ready(config, server, client)
        tasks.start_soon(server.watch, on_note)
        yield
    finally:
        server.ending = True
        with anyio.CancelScope(shield=True):
            await end_group(server.process, grace_s, children_grace_s)
            server.close()
            reaper.forget(server.process.pid)
            reaper.close()


@dataclass(frozen=True, slots=True)
class Heard:
    """Who is told what a server prints, in whole lines without secrets, and that it has died."""

    lines: Callable[[str], None] = lambda _: None
    end: Callable[[int], None] = lambda _: None
    """Receives the exit status, at once."""


def _used_as_it_is(config: Server) -> str:
    restart = "; what `watch` names does not restart it" if config.watch else ""
    return f"what answers at {config.ready} was running already: used as it is, not started{restart}"


class _Running:
    """A started server's output, and whether its end is our doing.

    The pipe is our own: asyncio, where it opens one, takes a process for running until the pipe is closed,
    and what the server started may keep it open for ever.
    """

    def __init__(
        self, process: Process, output: BinaryIO, called: str, heard: Heard, redact: Callable[[str], str]
    ) -> None:
        self.process = process
        self.called = called
        self.redact = redact
        self._heard = heard
        self.ending = False
        self._output: BinaryIO | asyncio.ReadTransport = output
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._line = ""
        self._closed = anyio.Event()

    async def read(self) -> None:
        """Keep reading, so that the server never blocks on a full pipe; only the tail is kept."""
        reader = asyncio.StreamReader()
        self._output, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._output
        )
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while piece := await reader.read(_PIECE_BYTES):
            *lines, self._line = (self._line + decoder.decode(piece)).split("\n")
            self._lines.extend(lines)
            self._line = self._line[-_PIECE_BYTES:]
            self._tell(lines)
        self._tell([self._line] if self._line else [])
        self._closed.set()

    def _tell(self, lines: list[str]) -> None:
        if lines:
            # All at once: a secret may have several lines.
            self._heard.lines(clean_rows(self.redact(without_colours("\n".join(lines)))))

    def close(self) -> None:
        """Stop reading, though others may still write."""
        self._output.close()

    async def watch(self, on_death: Callable[[str], None]) -> None:
        """Report its end, unless we ended it."""
        status = await self.process.wait()
        if not self.ending:
            self._heard.end(status)
            await self.last_words()
            on_death(f"{self.called} exited with status {status} during the run{self.tail()}")

    async def last_words(self) -> None:
        """Wait until all that an ended server printed has come; others may keep its output open."""
        with anyio.move_on_after(_LAST_WORDS_S):
            await self._closed.wait()

    def tail(self) -> str:
        """The last of what it printed, as the end of a message. It is cut last: half a secret is one, too."""
        whole = self.redact(without_colours("\n".join((*self._lines, self._line))))
        text = whole[-_TAIL_CHARS:].strip()
        return f"\nIts last output:\n{text}" if text else "; it printed nothing"


async def _start(
    config: Server, root: Path, called: str, heard: Heard, redact: Callable[[str], str]
) -> _Running:
    cwd = root / (config.cwd or ".")
    if not cwd.is_dir():
        of = "server" if called == AGENTS_SERVER else called
        raise ServerError(f"{of}.cwd: the folder {cwd} does not exist")
    ours, theirs = os.pipe()
    output = os.fdopen(ours, "rb", 0)
    try:
        process = await anyio.open_process(
            config.command,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "PATH": search_path(), **config.env},
            start_new_session=True,
        )
    except BaseException as error:
        output.close()
        if isinstance(error, OSError | ValueError):  # ValueError: a NUL in the command or the environment
            problem = f"{_its_command(called, repr(config.command))} cannot be started: {error}"
            raise ServerError(problem) from None
        raise
    finally:
        os.close(theirs)
    return _Running(process, output, called, heard, redact)


def _its_command(called: str, command: str) -> str:
    named = "" if called == AGENTS_SERVER else f"{called}: "
    return f"{named}the server command {command}"


async def _until_ready(config: Server, server: _Running, client: Client) -> None:
    process, problem = server.process, "it was not asked"
    pause, longest = _POLL_S
    with anyio.move_on_after(config.timeout_s):
        while process.returncode is None:
            problem_now = await _problem(config.ready, client)
            # Looked at again: what answers may be another process on the same port.
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
    command = _its_command(server.called, server.redact(repr(config.command)))
    raise ServerError(f"{command} {what}{server.tail()}")


async def _problem(ready: str, client: Client) -> str | None:
    """Why the server is not ready, or None when it is."""
    parts = urlsplit(ready)
    try:
        with anyio.fail_after(_POLL_TIMEOUT_S):
            if parts.scheme == "tcp":
                await client.check_listening(parts.hostname or "", parts.port or 0)
                return None
            async with client.stream("GET", ready) as response:  # the status is enough: a body may never end
                status = response.status_code
            return None if status < 500 else f"answers {status}"
    except TimeoutError:
        return "no answer"
    except RefusedAddress as error:
        raise ServerError(str(error)) from None
    except CONNECTION_ERRORS as error:
        return describe(error)
