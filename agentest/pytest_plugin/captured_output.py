"""What the code of scenarios prints while pytest reports on others.

Pytest captures nothing between the steps of items, and a run goes on meanwhile: its threads would print into
the report.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

from agentest.support.terminal import clean, in_log

_STREAMS = ("stdout", "stderr")
_STREAMS_OF_A_CAPTURE = ("_old", "tmpfile")
"""Where nothing is captured, and where it is."""


class Aside:
    """Keeps what other threads than this one print while scenarios are reported.

    Also during the steps of items: pytest empties what it has captured without a thought for threads that
    print at that moment, and would lose some of it.

    Args:
        capturing: pytest's plugin that captures what is printed. Around each step of an item it puts back the
            streams that it knows; these are ours, so that others never stand there.
    """

    def __init__(self, capturing: object) -> None:
        self.said: list[str] = []
        """What they printed, piece by piece."""
        self._captures = list(_captures(capturing))

    def __enter__(self) -> Aside:
        self.keep()
        for capture in self._captures:
            for name in _STREAMS_OF_A_CAPTURE:
                setattr(capture, name, self._divided(getattr(capture, name)))
        return self

    def __exit__(self, *error: object) -> None:
        for capture in self._captures:
            for name in _STREAMS_OF_A_CAPTURE:
                setattr(capture, name, _whole(getattr(capture, name)))
        for name in _STREAMS:
            setattr(sys, name, _whole(getattr(sys, name)))

    def keep(self) -> None:
        """Stand before the streams again: each step of an item has put others in their place."""
        for name in _STREAMS:
            setattr(sys, name, self._divided(getattr(sys, name)))

    def _divided(self, stream: TextIO | _Divided) -> _Divided:
        return stream if isinstance(stream, _Divided) else _Divided(stream, self.said)


def _whole(stream: TextIO | _Divided) -> TextIO:
    return stream.real if isinstance(stream, _Divided) else stream


def _captures(capturing: object) -> Iterator[Any]:
    """What stands before each stream: of the whole session, whichever method of capturing was chosen."""
    both = getattr(capturing, "_global_capturing", None)
    for side in (getattr(both, "out", None), getattr(both, "err", None)):
        capture = getattr(side, "syscapture", side)
        if all(hasattr(capture, name) for name in _STREAMS_OF_A_CAPTURE):
            yield capture


class _Divided:
    """A stream for the thread that made it; what the others write is kept."""

    def __init__(self, real: TextIO, said: list[str]) -> None:
        self.real = real
        self._said = said
        self._mine = threading.get_ident()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Pytest asks whether what it empties is its own."""
        return type(self.real)

    def write(self, text: str) -> int:
        """Write, or keep."""
        if threading.get_ident() == self._mine:
            return self.real.write(text)
        self._said.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Aloud:
    """Writes lines at once, from any thread, whatever pytest captures meanwhile. Made while it does not."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):  # there is none: nobody sits there
            self._file = os.dup(2)

    def __call__(self, text: str) -> None:
        """Write a line; where that fails, it is lost."""
        if self._file is not None:
            # pytest may have begun a line of dots.
            row = f"\n{in_log(clean(text))}\n".encode("utf-8", "backslashreplace")
            with suppress(OSError):
                os.write(self._file, row)

    def close(self) -> None:
        """Write no more."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
