"""What this machine may have no more of, whoever was asked: file descriptors, processes, memory, ports."""

from __future__ import annotations

import errno
from collections.abc import Iterable

_SHORTAGES = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL)
)


def shortage_in(errors: Iterable[BaseException]) -> OSError | None:
    """The error that says so, if one does."""
    said = (error for error in errors if isinstance(error, OSError) and error.errno in _SHORTAGES)
    return next(said, None)


def shortage_told(problem: str, error: OSError) -> str:
    """What could not be done, why, and what to do.

    Args:
        problem: the begin of the sentence, as "the command 'bot' cannot be started".
    """
    return (
        f"{problem}: this machine has no more to give ({error.strerror}); lower `concurrency`, or allow more "
        "(`ulimit -a` shows the limits)"
    )
