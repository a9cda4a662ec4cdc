"""What the code of scenarios prints while pytest reports on others.

Pytest captures nothing between the steps of items, and a run goes on meanwhile: its threads would print into
the report.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO


class Aside:
    """Keeps what other threads than this one print, between the steps of items."""

    def __init__(self) -> None:
        self.said: list[str] = []
        """What they printed, piece by piece."""

    def __enter__(self) -> Aside:
        self.keep()
        return self

    def __exit__(self, *error: object) -> None:
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
