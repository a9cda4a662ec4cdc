"""Embed data in the page: JSON, compressed, as the text of an element."""

from __future__ import annotations

import base64
import gzip
from dataclasses import dataclass, field

from agentest.support.json_text import encoded

CHUNK_BYTES = 256 * 1024
_LEVEL = 6
_LEAST_ROOM = 64 * 1024
"""The minimum room for another chunk, in compressed characters."""

Place = tuple[int, int]
"""The index of a chunk, and the index of a piece in it."""


def packed(value: object) -> str:
    """Compress a value of JSON types for the page. Equal values give equal texts."""
    return _packed(encoded(value))


def _packed(text: bytes) -> str:
    return base64.b64encode(gzip.compress(text, _LEVEL, mtime=0)).decode()


@dataclass(slots=True)
class Chunks:
    """Pieces of JSON, compressed in lists, so that the page decompresses one list to show a piece.

    Only the list that is being filled is in memory uncompressed. `close` ends the last one.
    """

    most: int | None = None
    """The maximum of compressed characters; None for no limit."""
    packed: list[str | None] = field(default_factory=list)
    """The compressed lists in order; None for a list without room."""
    left_out: int = 0
    """The number of pieces without room."""
    _pieces: list[bytes] = field(default_factory=list)
    _size: int = 0
    _used: int = 0
    _full: bool = False

    def add(self, piece: bytes) -> Place | None:
        """Append a piece. Returns None if there is no more room.

        A place may turn out to be in a list without room, which is None in `packed`.
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
        """Count pieces that were not created because there is no room for them."""
        self.left_out += number

    @property
    def full(self) -> bool:
        """True if there is no more room."""
        return self._full

    @property
    def absent(self) -> list[int]:
        """Return the indices of the lists that had no room."""
        return [number for number, text in enumerate(self.packed) if text is None]

    def close(self) -> None:
        """Compress the pieces that were added since the last list."""
        if not self._pieces:
            return
        text = _packed(b"[" + b",".join(self._pieces) + b"]")
        if self.most is None or self._used + len(text) <= self.most:
            self.packed.append(text)
            self._used += len(text)
        else:
            self.packed.append(None)
            self.left_out += len(self._pieces)
            # A giant piece gets a list of its own; if that has no room, later pieces may still fit.
            self._full = len(self._pieces) > 1 or self.most - self._used < _LEAST_ROOM
        self._pieces, self._size = [], 0
