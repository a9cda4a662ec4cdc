"""A log of what others print: its beginning and its end, where it is too long to be kept whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from agentest.store.late_file import open_new

MOST_BYTES = 50_000_000


class BoundedLog:
    """Lines in a file. When it would get too long, the middle is taken out and a line says how much that was.

    Args:
        warn: receives a message, once, when the file cannot be written to. It is not tried again: the log is
            beside what the run is for.
        most: bytes that it may have. A fifth of them is its beginning, at most two fifths its end.
    """

    def __init__(self, path: Path, warn: Callable[[str], None], most: int = MOST_BYTES) -> None:
        self._path = path
        self._warn = warn
        self._most = most
        self._file: BinaryIO | None = None
        self._size = 0
        self._head = 0
        """Where its beginning ends; 0: nothing was left out yet."""
        self._left_out = 0
        self._broken = False

    def add(self, text: str) -> None:
        """Write whole lines."""
        if self._broken:
            return
        data = f"{text}\n".encode("utf-8", "backslashreplace")
        try:
            self._write(data)
            if self._size > self._most:
                self._shorten()
        except OSError as error:
            self._broken = True
            self._warn(f"{self._path} is not complete ({error.strerror or error})")

    def close(self) -> None:
        """Close the file."""
        self._broken = True
        if self._file:
            self._file.close()

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = cast("BinaryIO", open_new(self._path))
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self._size += len(data)

    def _shorten(self) -> None:
        assert self._file
        if not self._head:
            self._head = self._line_after(self._most // 5)
        begins = self._line_after(self._size - self._most * 2 // 5)
        self._file.seek(begins)
        end = self._file.read(self._size - begins)
        self._left_out += begins - self._head - len(self._mark)  # the one that stands there now
        self._file.truncate(self._head)
        self._size = self._head
        self._write(self._mark + end)

    @property
    def _mark(self) -> bytes:
        return f"… {self._left_out:,} bytes left out …\n".encode() if self._left_out else b""

    def _line_after(self, position: int) -> int:
        """Where the first line begins after a position; the position itself where none begins soon."""
        assert self._file
        self._file.seek(position)
        found = self._file.read(65_536).find(b"\n")
        return position if found < 0 else position + found + 1
