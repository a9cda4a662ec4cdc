"""One run at a time in a folder, held by a lock that the system gives back when its holder dies."""

from __future__ import annotations

import errno
import json
import os
import random
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nobody is kept out
    fcntl = None  # type: ignore[assignment]

LOCK = "run.lock"
"""The file in the folder that is locked; it holds `{"process", "startedAt"}`."""

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)


class Taken(Exception):
    """Another run has the folder; the message says which."""


@contextmanager
def locked(folder: Path, started_at: str) -> Iterator[None]:
    """Have the folder, which exists, for ourselves. Raises Taken, and OSError where nothing can be written.

    Where the file system knows no locks, nobody is kept out.
    """
    with locked_file(folder / LOCK) as end:
        with suppress(OSError):  # a full disk: the lock holds without words
            os.ftruncate(end, 0)
            os.pwrite(end, json.dumps({"process": os.getpid(), "startedAt": started_at}).encode(), 0)
        yield


@contextmanager
def locked_file(path: Path) -> Iterator[int]:
    """Have a file for ourselves, which is gone afterwards; its descriptor. Raises Taken and OSError."""
    end = _acquired(path)
    _held.add(end)
    try:
        yield end
    finally:
        # While we have it: whoever waits for the removed file sees that it is not the one in the folder.
        path.unlink(missing_ok=True)
        _held.discard(end)
        os.close(end)


def is_locked(folder: Path) -> bool:
    """Whether a run has the folder now; others may look at the same time.

    Where the file system knows no locks, none has.
    """
    try:
        end = os.open(folder / LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return False
    try:
        _lock(end, folder / LOCK, shared=True)
    except (Taken, OSError):
        return True
    finally:
        os.close(end)
    return False


def _acquired(path: Path) -> int:
    """A descriptor of the lock file, locked."""
    while True:
        end = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            _lock(end, path)
            if _is_in_place(end, path):
                return end
        except BaseException:
            os.close(end)
            raise
        os.close(end)


def _lock(end: int, path: Path, *, shared: bool = False) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(end, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            raise Taken(_message(path)) from None


def _is_in_place(end: int, path: Path) -> bool:
    """Whether the file is still the one in the folder: its last holder may have removed it meanwhile."""
    try:
        return os.path.samestat(os.fstat(end), path.stat())
    except FileNotFoundError:
        return False


def _message(path: Path) -> str:
    holder = ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(path.read_bytes())
        holder = f": process {int(record['process'])}, started at {record['startedAt']}"
    return f"another run writes to {path.parent.absolute()}{holder}"


_held: set[int] = set()
"""Descriptors of the locks that we have."""


def _let_go() -> None:
    """In a forked process: a lock lasts as long as anybody has its descriptor."""
    for end in _held:
        os.close(end)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


_FROM = range(20_000, 32_000)
"""Below those that systems give to connections: one of these could take the port before a server does."""


@contextmanager
def free_ports(count: int, among: Sequence[int] = _FROM) -> Iterator[list[int]]:
    """So many free ports; until the block ends, no other process gets them from here. Raises OSError.

    A port is free until the program that is told of it listens there, which takes a while: without a lock,
    the servers of two workers might be told the same one, and one would be taken for the other.
    """
    folder = _folder()
    with ExitStack() as stack:
        ports: list[int] = []
        for port in random.sample(among, len(among)):
            if len(ports) == count:
                break
            if _is_free(port) and _is_ours(folder / str(port), stack):
                ports.append(port)
        if len(ports) < count:
            raise OSError(f"only {len(ports)} of {len(among)} ports are free")
        yield ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":  # as servers do: what remains of connections to an earlier one holds up none
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_ours(path: Path, stack: ExitStack) -> bool:
    try:
        stack.enter_context(locked_file(path))
    except Taken:
        return False
    return True


def _folder() -> Path:
    """Where this user's processes tell each other of ports that they have taken."""
    user = os.getuid() if hasattr(os, "getuid") else ""
    folder = Path(tempfile.gettempdir()) / f"agentest-ports-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
