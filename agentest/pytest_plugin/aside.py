"""What the code of scenarios prints while pytest reports on others.

Pytest captures nothing between the steps of items, and a run goes on meanwhile: its threads would print into
the report.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO


class Aside:
    """Keeps what other threads than this one print, between the steps of items.

    Args:
        capturing: pytest's plugin that captures what is printed. After each step of an item it puts back the
            streams that it knows; these are ours, so that the real ones never stand there.
    """

    def __init__(self, capturing: object) -> None:
        self.said: list[str] = []
        """What they printed, piece by piece."""
        self._captures = list(_captures(capturing))

    def __enter__(self) -> Aside:
        self.keep()
        for capture in self._captures:
            if not isinstance(capture._old, _Divided):
                capture._old = _Divided(capture._old, self.said)
        return self

    def __exit__(self, *error: object) -> None:
        for capture in self._captures:
            if isinstance(capture._old, _Divided):
                capture._old = capture._old.real
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, _Divided):
                setattr(sys, name, stream.real)

    def keep(self) -> None:
        """Stand before the streams again: each step of an item has put others in their place."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if not isinstance(stream, _Divided):
                setattr(sys, name, _Divided(stream, self.said))


def _captures(capturing: object) -> Iterator[Any]:
    """What stands before each stream: of the whole session, whichever method of capturing was chosen."""
    both = getattr(capturing, "_global_capturing", None)
    for side in (getattr(both, "out", None), getattr(both, "err", None)):
        capture = getattr(side, "syscapture", side)
        if hasattr(capture, "_old"):
            yield capture


class _Divided:
    """A stream for the thread that made it; what the others write is kept."""

    def __init__(self, real: TextIO, said: list[str]) -> None:
        self.real = real
        self._said = said
        self._mine = threading.get_ident()

    def write(self, text: str) -> int:
        """Write, or keep."""
        if threading.get_ident() == self._mine:
            return self.real.write(text)
        self._said.append(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)
