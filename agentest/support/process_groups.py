"""Start process groups, end them as a whole, and have a reaper end them if this process is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import ByteReceiveStream, Process

from agentest.support.reaper import send

signal_group = send

_POLL_S = 0.02
CHILDREN_GRACE_S = 1.0
_MAX_OUTPUT_BYTES = 100_000
_REAPER = Path(__file__).with_name("reaper.py")


class Reaper:
    """A process that ends our groups if this process is killed without a chance to do so."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_REAPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """Add a group to end when this process is gone."""
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        """Remove a group that has ended, because its number may be reused soon."""
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it was killed or closed
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Close the reaper. It ends the remaining groups."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def search_path() -> str:
    """Return the search path for programs.

    The folder of the running interpreter comes last, so `python` is found even if only a virtual environment
    has it.
    """
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


async def run_in_group(command: Sequence[str], cwd: Path) -> tuple[int, bytes, bytes]:
    """Run a program and return its exit status and the beginnings of its output and of its errors.

    The whole process group is ended if this is cancelled. Raises OSError.
    """
    process = await anyio.open_process(command, stdin=subprocess.DEVNULL, cwd=cwd, start_new_session=True)
    out, err = bytearray(), bytearray()

    async def read(stream: ByteReceiveStream | None, into: bytearray) -> None:
        assert stream is not None
        async for piece in stream:
            into.extend(piece[: _MAX_OUTPUT_BYTES - len(into)])

    try:
        async with anyio.create_task_group() as reading:
            reading.start_soon(read, process.stdout, out)
            reading.start_soon(read, process.stderr, err)
        status = await process.wait()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await end_group(process, CHILDREN_GRACE_S)
        raise
    await process.aclose()
    return status, bytes(out), bytes(err)


async def end_group(process: Process, grace_s: float, children_grace_s: float = CHILDREN_GRACE_S) -> None:
    """End the whole process group, first with a request, then by force.

    `children_grace_s`: time limit, within `grace_s`, for processes that outlive the first one.
    """
    signal_group(process.pid, signal.SIGTERM)
    with anyio.move_on_after(grace_s):
        await process.wait()
        # Its children may still be running, because a shell exits before the programs it started.
        with anyio.move_on_after(children_grace_s):
            while _group_runs(process.pid):  # noqa: ASYNC110 - the end of a group cannot be awaited
                await anyio.sleep(_POLL_S)
    signal_group(process.pid, signal.SIGKILL)
    await process.aclose()


def _group_runs(group: int) -> bool:
    """Return True if a process of the group is still running.

    In many containers nothing collects dead orphans, which stay in the group as zombies. Linux shows them.
    """
    if not signal_group(group, 0):
        return False
    listed = list(Path("/proc").glob("[0-9]*/stat"))
    for stat in listed:
        with suppress(OSError, ValueError):  # gone in the meantime
            state, _, its_group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(its_group) == group and state not in ("Z", "X"):
                return True
    return not listed
