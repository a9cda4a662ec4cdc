"""Data inside the page: JSON, compressed, as text that stands in an element."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass, field

from agentest.support.json_text import encoded

CHUNK_BYTES = 256 * 1024
_LEVEL = 6
_LEAST_ROOM = 64 * 1024
"""Packed characters; where less is left, hardly another chunk has room."""

Place = tuple[int, int]
"""Number of a chunk, and which of its pieces."""


def packed(value: object) -> str:
    """A value of JSON types as the page unpacks it. The same value gives the same text."""
    return _packed(encoded(value))


def _packed(text: bytes) -> str:
    return base64.b64encode(gzip.compress(text, _LEVEL, mtime=0)).decode()


@dataclass(slots=True)
class Chunks:
    """Pieces of JSON, packed as lists of them, so that a page unpacks one list to see a piece.

    Only the list that is being filled is in memory as it is. `close` ends the last one.
    """

    most: int | None = None
    """How many packed characters there may be; None: any number."""
    packed: list[str | None] = field(default_factory=list)
    """The lists in their order; None: there was no room for this one."""
    left_out: int = 0
    """How many pieces had no room."""
    _pieces: list[bytes] = field(default_factory=list)
    _size: int = 0
    _used: int = 0
    _full: bool = False

    def add(self, piece: bytes) -> Place | None:
        """Put a piece behind the others. None: there is no room any more.

        A place may turn out to be in a list without room: then that is None in `packed`.
        """
        if self._pieces and self._size + len(piece) > CHUNK_BYTES:
            self.close()
        if self._full:
            self.leave_out(1)
            return None
        self._pieces.append(piece)
        self._size += len(piece)
        return len(self.packed), len(self._pieces) - 1

    def leave_out(self, number: int) -> None:
        """Count pieces that were not even made, as there is no room for them."""
        self.left_out += number

    @property
    def full(self) -> bool:
        """Whether nothing more has room."""
        return self._full

    @property
    def absent(self) -> list[int]:
        """The numbers of the lists that had no room."""
        return [number for number, text in enumerate(self.packed) if text is None]

    def close(self) -> None:
        """Pack what has been added since the last list."""
        if not self._pieces:
            return
        text = _packed(b"[" + b",".join(self._pieces) + b"]")
        if self.most is None or self._used + len(text) <= self.most:
            self.packed.append(text)
            self._used += len(text)
        else:
            self.packed.append(None)
            self.left_out += len(self._pieces)
            # A giant stands alone, and where it finds no room the next ones may.
            self._full = len(self._pieces) > 1 or self.most - self._used < _LEAST_ROOM
        self._pieces, self._size = [], 0
