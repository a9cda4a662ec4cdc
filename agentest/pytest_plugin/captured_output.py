"""Capture what scenario code prints while pytest reports other scenarios.

pytest does not capture output between items. A run continues in its threads during that time, and their
output would end up in pytest's report.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TextIO

from agentest.support.terminal import clean, clean_for_log

_STREAMS = ("stdout", "stderr")
_CAPTURE_ATTRIBUTES = ("_old", "tmpfile")
"""Attributes with the original and the captured stream."""


class OtherThreadsOutput:
    """Stores what other threads print while this thread reports scenarios.

    This includes the phases of items: pytest truncates its capture file without synchronization and
    would lose output of other threads.

    Args:
        capturing: pytest's capture manager. It restores its own streams around each phase of an item, so
            those are replaced too.
    """

    def __init__(self, capturing: object) -> None:
        self.said: list[str] = []
        """Pieces of captured output."""
        self._captures = list(_captures(capturing))

    def __enter__(self) -> OtherThreadsOutput:
        self.keep()
        for capture in self._captures:
            for name in _CAPTURE_ATTRIBUTES:
                setattr(capture, name, self._wrapped(getattr(capture, name)))
        return self

    def __exit__(self, *error: object) -> None:
        for capture in self._captures:
            for name in _CAPTURE_ATTRIBUTES:
                setattr(capture, name, _unwrapped(getattr(capture, name)))
        for name in _STREAMS:
            setattr(sys, name, _unwrapped(getattr(sys, name)))

    def keep(self) -> None:
        """Replace the standard streams again, because each phase of an item resets them."""
        for name in _STREAMS:
            setattr(sys, name, self._wrapped(getattr(sys, name)))

    def _wrapped(self, stream: TextIO | _ThreadStream) -> _ThreadStream:
        return stream if isinstance(stream, _ThreadStream) else _ThreadStream(stream, self.said)


class TerminalWriter:
    """Writes lines to the terminal immediately, from any thread. Create it while pytest does not capture."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):  # standard error is closed
            self._file = os.dup(2)

    def __call__(self, text: str) -> None:
        """Write a line. Write errors are ignored."""
        if self._file is not None:
            # pytest may have printed an unfinished line of dots.
            row = f"\n{clean_for_log(clean(text))}\n".encode("utf-8", "backslashreplace")
            with suppress(OSError):
                os.write(self._file, row)

    def close(self) -> None:
        """Close the stream; later lines are dropped."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _unwrapped(stream: TextIO | _ThreadStream) -> TextIO:
    return stream.real if isinstance(stream, _ThreadStream) else stream


def _captures(capturing: object) -> Iterator[Any]:
    """Yield pytest's captures of stdout and stderr, for every capture method."""
    both = getattr(capturing, "_global_capturing", None)
    for side in (getattr(both, "out", None), getattr(both, "err", None)):
        capture = getattr(side, "syscapture", side)
        if all(hasattr(capture, name) for name in _CAPTURE_ATTRIBUTES):
            yield capture


class _ThreadStream:
    """A stream that passes on output of the thread that created it and stores all other output."""

    def __init__(self, real: TextIO, said: list[str]) -> None:
        self.real = real
        self._said = said
        self._owner = threading.get_ident()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Return the real stream's class, because pytest checks the type of the stream that it truncates."""
        return type(self.real)

    def write(self, text: str) -> int:
        """Write the text, or store it if another thread wrote it."""
        if threading.get_ident() == self._owner:
            return self.real.write(text)
        self._said.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
