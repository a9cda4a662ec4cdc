"""Response bodies, decompressed and limited in size while they are read."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from anyio.lowlevel import checkpoint
from multidict import CIMultiDictProxy

if TYPE_CHECKING:
    from aiohttp import web  # a tenth of a run's start-up, and clients do not need it

MAX_BODY_BYTES = 10 * 1024 * 1024  # maximum size of a response body, both as received and decompressed


class BadBody(Exception):
    """A response body could not be read to its end. The message continues the words "the answer"."""


class UnusableBody(BadBody):
    """A body that would be as bad at the next attempt: too large, or not in its coding."""


class BodyTooLarge(UnusableBody):
    """The body is larger than allowed."""

    def __init__(self, most: int = MAX_BODY_BYTES) -> None:
        super().__init__(f"is larger than {most // 2**20} MB")


class _Pieces(Protocol):
    async def readany(self) -> bytes: ...

    def at_eof(self) -> bool: ...


class RawResponse(Protocol):
    """A response as received, compressed and unlimited: the part of aiohttp's interface used here."""

    @property
    def status(self) -> int: ...

    @property
    def url(self) -> object: ...

    @property
    def headers(self) -> CIMultiDictProxy[str]: ...

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    @property
    def content(self) -> _Pieces: ...

    @property
    def held_up(self) -> float: ...

    def release(self) -> object:
        """Release the connection, whether the body was read to its end or not."""


CODINGS = ("gzip", "deflate")
PIECE_BYTES = 65536
_MAX_MEMBERS = 10_000  # maximum number of gzip members. More of them contain nothing, and each takes time.
_SLICE_BYTES = 4096  # zlib copies its remaining input with every piece and every member
_GZIP, _ZLIB, _RAW = zlib.MAX_WBITS | 16, zlib.MAX_WBITS, -zlib.MAX_WBITS


class DecompressionError(ValueError):
    """The body cannot be decompressed. The message continues the words "the answer"."""


class CutData(DecompressionError):
    """The body ended before its compressed data did."""


class UnknownCoding(DecompressionError):
    """The body has a content encoding that is not supported."""


class Decompressor:
    """Decompresses one body. `coding` is one of CODINGS."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream: zlib._Decompress | None = None
        self._held = b""
        self._members = 0
        self._began = False

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """Decompress the next piece of the body, in pieces. Raises DecompressionError."""
        self._began = self._began or bool(packed)
        for start in range(0, len(packed), _SLICE_BYTES):
            yield from self._unpacked(self._held + packed[start : start + _SLICE_BYTES])

    def end(self) -> None:
        """Raise CutData if the body ended too early. A body without any byte is empty."""
        if self._began and (self._stream is not None or self._held or not self._members):
            raise CutData(f"was cut: its {self._coding} data ended too early")

    def _unpacked(self, packed: bytes) -> Iterator[bytes]:
        self._held = b""
        more = True
        while more:
            if self._stream is None:
                packed = packed.lstrip(b"\0") if self._members else packed  # members may be padded
                if len(packed) < 2:
                    self._held = packed
                    return
                self._stream = self._member(packed)
            try:
                piece = self._stream.decompress(packed, PIECE_BYTES)
            except zlib.error as error:
                problem = f"is not {self._coding}, as its content-encoding says: {error}"
                raise DecompressionError(problem) from None
            if piece:
                yield piece
            packed = self._stream.unconsumed_tail
            # A full piece may be incomplete even if all input is used up.
            more = bool(packed) or len(piece) == PIECE_BYTES
            if self._stream.eof:
                packed, self._stream = self._stream.unused_data, None
                more = bool(packed)

    def _member(self, packed: bytes) -> zlib._Decompress:
        self._members += 1
        if self._members > (_MAX_MEMBERS if self._coding == "gzip" else 1):
            raise DecompressionError(f"goes on after the end of its {self._coding} data")
        if self._coding == "gzip":
            return zlib.decompressobj(_GZIP)
        # RFC 9110 means the zlib format; some servers send raw deflate.
        has_head = packed[0] & 0x0F == zlib.DEFLATED and int.from_bytes(packed[:2], "big") % 31 == 0
        return zlib.decompressobj(_ZLIB if has_head else _RAW)


def decompressor_for(encoding: str) -> Decompressor | None:
    """Return the decompressor for a content encoding; None if there is none. Raises DecompressionError."""
    named = [coding.strip().lower().removeprefix("x-") for coding in encoding.split(",")]
    codings = [coding for coding in named if coding not in ("identity", "")]
    if not codings:
        return None
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise UnknownCoding(
            f"has the content-encoding {encoding!r:.80}; the request allows {' or '.join(CODINGS)}, once"
        )
    return Decompressor(codings[0])


BODY_S = 30.0  # seconds that a body may take to arrive


class BodyRefused(ValueError):
    """A body was refused. The message continues the words "the body"; `status` is the response status.

    The rest of the body is not read, so the connection has to be closed.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: web.BaseRequest, most: int, body_s: float = BODY_S) -> bytes:
    """Return the decompressed body. Raises BodyRefused after `most` bytes, received or decompressed."""
    content = request.content
    if content.is_eof() and content.exception() is None and "Content-Encoding" not in request.headers:
        body = content.read_nowait()  # all of it came with the head
        if len(body) > most:
            raise _too_large(most)
        return body
    from aiohttp import web

    if "Expect" in request.headers and not isinstance(request, web.Request) and request.transport:
        # aiohttp answers only the requests of its applications.
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    pieces, left = list[bytes](), most
    try:
        async with asyncio.timeout(body_s):
            async for piece in _unpacked(request, most):
                left -= len(piece)
                if left < 0:
                    raise _too_large(most)
                pieces.append(piece)
                await checkpoint()  # a few received bytes may decompress to millions
            return b"".join(pieces)
    except TimeoutError:
        raise BodyRefused(f"has not come within {body_s:g} s", 408) from None
    except UnknownCoding:
        named = request.headers.getall("Content-Encoding")
        raise BodyRefused(
            f"is packed as {named!r:.80}; {' and '.join(CODINGS)} are unpacked, once", 415
        ) from None
    except DecompressionError as error:
        raise BodyRefused(f"cannot be unpacked: it {error}", 400) from None
    except web.RequestPayloadError as error:
        raise BodyRefused(f"cannot be read: {' '.join(str(error).split())}"[:300], 400) from None


async def _unpacked(request: web.BaseRequest, most: int) -> AsyncIterator[bytes]:
    unpack = decompressor_for(", ".join(request.headers.getall("Content-Encoding", [])))
    left = most  # limits received bytes as well, because they may decompress to nothing forever
    async for piece in request.content.iter_any():
        left -= len(piece)
        if left < 0:
            raise _too_large(most)
        for part in unpack.feed(piece) if unpack else (piece,):
            yield part
    if unpack:
        unpack.end()


def _too_large(most: int) -> BodyRefused:
    return BodyRefused(f"is larger than {most / 1e6:g} MB", 413)
