"""Read request bodies in our servers, with limits on size and time while they are decompressed.

aiohttp decompresses a body in pieces of megabytes, even while nothing reads it, so servers that use this
module are opened with `auto_decompress=False`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from anyio.lowlevel import checkpoint

from agentest.support.http.bodies import CODINGS, DecompressionError, UnknownCoding, decompressor_for

BODY_S = 30.0
"""Seconds that a body may take to arrive."""


class BodyRefused(ValueError):
    """A body was refused. The message continues the words "the body"; `status` is the response status.

    The rest of the body is not read, so the connection has to be closed.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: web.Request, most: int, body_s: float = BODY_S) -> bytes:
    """Return the decompressed body. Raises BodyRefused after `most` bytes, received or decompressed."""
    pieces: list[bytes] = []
    await _receive(request, most, body_s, pieces.append)
    return b"".join(pieces)


async def skip_body(request: web.Request, most: int, body_s: float = BODY_S) -> None:
    """Read a body to its end and discard it. Raises BodyRefused as `read_body` does."""
    await _receive(request, most, body_s, lambda _: None)


async def _receive(request: web.Request, most: int, body_s: float, take: Callable[[bytes], object]) -> None:
    left = most
    try:
        async with asyncio.timeout(body_s):
            async for piece in _unpacked(request, most):
                left -= len(piece)
                if left < 0:
                    raise _too_large(most)
                take(piece)
                await checkpoint()  # a few received bytes may decompress to millions
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


async def _unpacked(request: web.Request, most: int) -> AsyncIterator[bytes]:
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
