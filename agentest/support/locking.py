"""Locks between processes: one run per folder, and ports that only one process uses.

The system releases a lock when its process dies.
"""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing is locked
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"  # the locked file in the folder. It contains `{"process", "startedAt"}`.

_LOOKS, _LOOK_S = 1_000, 0.005
"""How often, and for how long, to wait for processes that look whether a folder is locked."""
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)


class FolderLocked(Exception):
    """Another run has locked the folder. The message says which."""


@contextmanager
def locked(
    folder: Path, started_at: str, pause: Callable[[float], object] = time.sleep, name: str = LOCK
) -> Iterator[None]:
    """Lock an existing folder. Raises FolderLocked, and OSError if nothing can be written.

    On file systems without locks, nothing is locked. `pause` waits while another process calls `is_locked`.
    """
    with lock_file(folder / name, pause) as end:
        with suppress(OSError):  # a full disk: the lock works without content
            os.ftruncate(end, 0)
            os.pwrite(end, json.dumps({"process": os.getpid(), "startedAt": started_at}).encode(), 0)
        yield


@contextmanager
def lock_file(path: Path, pause: Callable[[float], object] = time.sleep) -> Iterator[int]:
    """Lock a file, yield its descriptor, and remove the file. Raises FolderLocked or OSError."""
    end = _acquire(path, pause)
    _held.add(end)
    try:
        yield end
    finally:
        # Remove it while locked: a process that waits for the removed file notices that it was replaced.
        path.unlink(missing_ok=True)
        _held.discard(end)
        os.close(end)


def is_locked(folder: Path, name: str = LOCK) -> bool:
    """Return True if a run has locked the folder. Several processes may check at the same time.

    On file systems without locks, nothing is locked.
    """
    try:
        end = os.open(folder / name, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        _lock(end, folder / name, shared=True)
    except (FolderLocked, OSError):
        return True
    finally:
        os.close(end)
    return False


def _acquire(path: Path, pause: Callable[[float], object]) -> int:
    looks = _LOOKS
    while True:
        end = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            _lock(end, path)
            if _is_in_place(end, path):
                return end
        except BaseException as error:
            os.close(end)
            looks -= 1
            # Processes that only look would share the lock with us; a run would not.
            only_looked_at = isinstance(error, FolderLocked) and not is_locked(path.parent, path.name)
            if not looks or not only_looked_at:
                raise
            pause(_LOOK_S)
        else:
            os.close(end)


def _lock(end: int, path: Path, *, shared: bool = False) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(end, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            holder = ""
            with suppress(OSError, ValueError, KeyError, TypeError):
                record = json.loads(path.read_bytes())
                holder = f": process {int(record['process'])}, started at {record['startedAt']}"
            raise FolderLocked(f"another run writes to {path.parent.absolute()}{holder}") from None


def _is_in_place(end: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(end), path.stat())
    except FileNotFoundError:
        return False


_held: set[int] = set()


def _close_inherited_locks() -> None:
    """Close inherited locks in a forked process, because a lock lasts as long as any descriptor is open."""
    for end in _held:
        os.close(end)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited_locks)


_PORT_RANGE = range(20_000, 32_000)
"""Below the range from which systems choose ports for connections, which could take a port before a server
does.
"""


@contextmanager
def free_ports(count: int, among: Sequence[int] = _PORT_RANGE) -> Iterator[list[int]]:
    """Find free ports. No other process gets them from here until the block ends. Raises OSError.

    A port stays free until the program listens on it, which takes a while. Without a lock, the servers of two
    workers might get the same port, and one would be mistaken for the other.
    """
    # This user's processes record the ports in use here.
    folder = Path(tempfile.gettempdir()) / f"agentest-ports-{os.getuid() if hasattr(os, 'getuid') else ''}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        ports: list[int] = []
        for port in random.sample(among, len(among)):
            if len(ports) == count:
                break
            if _is_free(port):
                with suppress(FolderLocked):
                    stack.enter_context(lock_file(folder / str(port)))
                    ports.append(port)
        if len(ports) < count:
            raise OSError(f"only {len(ports)} of {len(among)} ports are free")
        yield ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # like servers do: remains of connections to an earlier one block no port
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
