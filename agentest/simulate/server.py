"""Starting the agent's own server before a run and ending it afterwards, however the run ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx
from anyio.abc import Process, TaskGroup
from anyio.streams.text import TextReceiveStream

from agentest.config import Server
from agentest.errors import ServerError
from agentest.http import CONNECTION_ERRORS, RefusedAddress, describe

_TAIL_LINES = 30
_TAIL_CHARS = 4000
_POLL_S = (0.02, 0.5)
_POLL_TIMEOUT_S = 5.0
_GRACE_S = 5.0
_REAPER = Path(__file__).parent.parent / "reaper.py"


@asynccontextmanager
async def running_server(
    config: Server,
    root: Path,
    client: httpx.AsyncClient,
    tasks: TaskGroup,
    redact: Callable[[str], str],
    on_death: Callable[[str], None],
) -> AsyncIterator[None]:
    """Have the server running meanwhile. One that is ready already is used as it is (`reuse`).

    Its output is read by a task of `tasks`, which ends with the server.

    Raises ServerError with the tail of its output when it dies or does not get ready in time. `on_death` is
    told when it dies later, while the run goes on.
    """
    if await _problem(config.ready, client) is None:
        if config.reuse:
            yield
            return
        raise ServerError(
            f"something answers at {config.ready} already, and reuse is off: "
            "stop it, or set server.reuse to true"
        )
    started = await _start(config, root)
    reaper = _start_reaper(started.pid)
    server = _Running(started)
    try:
        tasks.start_soon(server.read)
        await _until_ready(config, started, client, lambda: redact(server.tail()))
        tasks.start_soon(server.watch, lambda problem: on_death(redact(problem)))
        yield
    finally:
        server.ending = True
        with anyio.CancelScope(shield=True):
            await _end(started)
            _dismiss(reaper)


class _Running:
    """A started server's output, and whether its end is our doing."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._output: deque[str] = deque(maxlen=_TAIL_LINES)
        self.ending = False

    async def read(self) -> None:
        """Keep reading, so that the server never blocks on a full pipe; only the tail is kept."""
        assert self._process.stdout is not None
        rest = ""
        with suppress(anyio.ClosedResourceError):  # the run has ended
            async for text in TextReceiveStream(self._process.stdout, errors="replace"):
                *lines, rest = (rest + text).split("\n")
                self._output.extend(lines)
                if len(rest) > _TAIL_CHARS:
                    self._output.append(rest)
                    rest = ""
        self._output.append(rest)

    async def watch(self, on_death: Callable[[str], None]) -> None:
        """Tell of its end, unless we ended it."""
        status = await self._process.wait()
        if not self.ending:
            on_death(f"the agent's server exited with status {status} during the run{self.tail()}")

    def tail(self) -> str:
        """The last of what it printed, as the end of a message."""
        text = "\n".join(self._output)[-_TAIL_CHARS:].strip()
        return f"\nIts last output:\n{text}" if text else "; it printed nothing"


async def _start(config: Server, root: Path) -> Process:
    cwd = root / (config.cwd or ".")
    if not cwd.is_dir():
        raise ServerError(f"server.cwd: the folder {cwd} does not exist")
    # The interpreter that runs us comes last: `python` is found even where only a virtual environment has it.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    try:
        return await anyio.open_process(
            config.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, "PATH": path, **config.env},
            start_new_session=True,
        )
    except OSError as error:
        raise ServerError(f"the server command {config.command!r} cannot be started: {error}") from None


async def _until_ready(
    config: Server, process: Process, client: httpx.AsyncClient, tail: Callable[[], str]
) -> None:
    problem: str | None = "it was not asked"
    pause, longest = _POLL_S
    with anyio.move_on_after(config.timeout_s):
        while True:
            # Asked before looking at the problem: what answers may be another process on the same port.
            if process.returncode is not None:
                await anyio.sleep(_POLL_S[0])  # let its last words arrive
                raise ServerError(
                    f"the server command {config.command!r} exited with status {process.returncode} "
                    f"before it was ready{tail()}"
                )
            problem = await _problem(config.ready, client)
            if problem is None and process.returncode is None:
                return
            await anyio.sleep(pause)
            pause = min(pause * 1.5, longest)
    raise ServerError(
        f"the server command {config.command!r} was not ready within {config.timeout_s:g} s: "
        f"{config.ready}: {problem}{tail()}"
    )


async def _problem(ready: str, client: httpx.AsyncClient) -> str | None:
    """Why the server is not ready, or None when it is."""
    parts = urlsplit(ready)
    try:
        with anyio.fail_after(_POLL_TIMEOUT_S):
            if parts.scheme == "tcp":
                stream = await anyio.connect_tcp(parts.hostname or "", parts.port or 0)
                await stream.aclose()
                return None
            response = await client.get(ready)
            return None if response.status_code < 500 else f"answers {response.status_code}"
    except TimeoutError:
        return "no answer"
    except RefusedAddress as error:
        raise ServerError(str(error)) from None
    except CONNECTION_ERRORS as error:
        return describe(error)


async def _end(process: Process) -> None:
    """End the whole process group: politely, then for certain."""
    _signal_group(process.pid, signal.SIGTERM)
    with anyio.move_on_after(_GRACE_S):
        await process.wait()
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()
    await process.aclose()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):  # gone already
        os.killpg(pid, number)


def _start_reaper(pid: int) -> subprocess.Popen[bytes]:
    """A process that ends the server's group if we are killed without a chance to do so ourselves."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_REAPER), str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _dismiss(reaper: subprocess.Popen[bytes]) -> None:
    with suppress(BrokenPipeError):  # somebody killed it
        reaper.communicate(b"done")
