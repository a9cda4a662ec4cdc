"""One run at a time in a folder, held by a lock that the system gives back when its holder dies."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
