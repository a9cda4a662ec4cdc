"""Unpacking the body of an answer piece by piece: a few bytes may stand for gigabytes.

Only gzip and deflate, and only one of them: a piece of another coding cannot be bounded before it is there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

CODINGS = ("gzip", "deflate")
PIECE_BYTES = 65536
"""No piece that comes out is longer."""
_MAX_MEMBERS = 10_000
"""Of a gzip body: more of them hold nothing, and each takes time."""
_SLICE_BYTES = 4096  # zlib copies what is left of its input with every piece, and with every member
_GZIP, _ZLIB, _RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS


class PackedWrongly(ValueError):
    """The body cannot be unpacked; the message says why, as what follows the words "the answer"."""


class UnknownCoding(PackedWrongly):
    """The body is packed in a way that is not taken."""


class Unpacker:
    """Unpacks one body. `coding` is one of CODINGS."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream: zlib._Decompress | None = None
        self._held = b""
        self._members = 0
        self._began = False

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """What a further piece of the body unpacks to, in pieces. Raises PackedWrongly."""
        self._began = self._began or bool(packed)
        for start in range(0, len(packed), _SLICE_BYTES):
            yield from self._unpacked(self._held + packed[start : start + _SLICE_BYTES])

    def end(self) -> None:
        """Raise PackedWrongly where the body ended too early. One without a single byte is empty."""
        if self._began and (self._stream is not None or self._held or not self._members):
            raise PackedWrongly(f"was cut: its {self._coding} data ended too early")

    def _unpacked(self, packed: bytes) -> Iterator[bytes]:
        self._held = b""
        more = True
        while more:
            if self._stream is None:
                packed = self._rest_between(packed)
                if len(packed) < 2:
                    self._held = packed
                    return
                self._stream = self._member(packed)
            piece = self._piece(self._stream, packed)
            if piece:
                yield piece
            packed = self._stream.unconsumed_tail
            # A full piece may not have been all, though all of the input is used up.
            more = bool(packed) or len(piece) == PIECE_BYTES
            if self._stream.eof:
                packed, self._stream = self._stream.unused_data, None
                more = bool(packed)

    def _rest_between(self, packed: bytes) -> bytes:
        """What comes after a finished member without the zeros that may fill it up."""
        return packed.lstrip(b"\0") if self._members else packed

    def _member(self, packed: bytes) -> zlib._Decompress:
        self._members += 1
        if self._members > (_MAX_MEMBERS if self._coding == "gzip" else 1):
            raise PackedWrongly(f"goes on after the end of its {self._coding} data")
        if self._coding == "gzip":
            return zlib.decompressobj(_GZIP)
        # RFC 9110 means zlib's format; some servers send its inside alone.
        has_head = packed[0] & 0x0F == zlib.DEFLATED and int.from_bytes(packed[:2], "big") % 31 == 0
        return zlib.decompressobj(_ZLIB if has_head else _RAW)

    def _piece(self, stream: zlib._Decompress, packed: bytes) -> bytes:
        try:
            return stream.decompress(packed, PIECE_BYTES)
        except zlib.error as error:
            problem = f"is not {self._coding}, as its content-encoding says: {error}"
            raise PackedWrongly(problem) from None


def unpacker(encoding: str) -> Unpacker | None:
    """The unpacker of a content-encoding, None where nothing is packed. Raises PackedWrongly."""
    named = [coding.strip().lower().removeprefix("x-") for coding in encoding.split(",")]
    codings = [coding for coding in named if coding not in ("identity", "")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise UnknownCoding(
            f"has the content-encoding {encoding!r:.80}; the request allows {' or '.join(CODINGS)}, once"
        )
    return Unpacker(codings[0])
