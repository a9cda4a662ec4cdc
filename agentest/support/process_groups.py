"""Process groups that are ours: started, watched over by the reaper, and ended whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import anyio
from anyio.abc import Process

_POLL_S = 0.02
CHILDREN_GRACE_S = 1.0
_REAPER = Path(__file__).with_name("reaper.py")


class Reaper:
    """A process that ends our groups if we are killed without a chance to do so ourselves."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_REAPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def watch(self, group: int) -> None:
        """End this group, too, when we are gone."""
        self._say(f"+{group}\n")

    def forget(self, group: int) -> None:
        """This group has ended: its number may soon be somebody else's."""
        self._say(f"-{group}\n")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # somebody killed it, or it was closed
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Let it go. Groups that were not forgotten are ended."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def search_path() -> str:
    """Where programs are looked for.

    The interpreter that runs us comes last: `python` is found even where only a virtual environment has it.
    """
    return os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])


async def end_group(process: Process, grace_s: float, children_grace_s: float = CHILDREN_GRACE_S) -> None:
    """End the whole process group: politely, then for certain.

    `children_grace_s`: how long those that outlive its first process are given, within `grace_s`.
    """
    signal_group(process.pid, signal.SIGTERM)
    with anyio.move_on_after(grace_s):
        await process.wait()
        # Its children may still be at it: a shell, for one, dies before what it started.
        with anyio.move_on_after(children_grace_s):
            while _group_runs(process.pid):  # noqa: ASYNC110 - their end cannot be awaited
                await anyio.sleep(_POLL_S)
    signal_group(process.pid, signal.SIGKILL)
    await process.aclose()


def signal_group(pid: int, number: int) -> bool:
    """Whether there was still a group to send the signal to."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _group_runs(group: int) -> bool:
    """Whether a process of the group still runs.

    Where nobody takes note of orphans' ends, as in many containers, they stay in the group; Linux shows it.
    """
    if not signal_group(group, 0):
        return False
    listed = list(Path("/proc").glob("[0-9]*/stat"))
    return not listed or any(_runs_in(group, stat) for stat in listed)


def _runs_in(group: int, stat: Path) -> bool:
    try:
        state, _, its_group, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
    except (OSError, ValueError):  # gone meanwhile
        return False
    return int(its_group) == group and state not in ("Z", "X")
