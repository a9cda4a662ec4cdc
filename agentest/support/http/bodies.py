"""The bodies of answers over HTTP: unpacked and bounded while they are read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import httpx
from anyio.lowlevel import checkpoint

from agentest.support.http.unpacking import PackedWrongly, unpacker

MAX_BODY_BYTES = 10 * 1024 * 1024
"""Of an answer's body, as it comes and unpacked."""


_BEGINNING_BYTES = 8192


class BadBody(httpx.HTTPError):
    """An answer's body that is not read to its end. The message goes on after the words "the answer"."""


class BodyTooLarge(BadBody):
    """The body is larger than MAX_BODY_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"is larger than {MAX_BODY_BYTES // 2**20} MB")


class _Headers(Protocol):
    def __contains__(self, name: object, /) -> bool: ...

    def getall(self, name: str, /) -> Sequence[str]: ...


class _Pieces(Protocol):
    def iter_any(self) -> AsyncIterator[bytes]: ...


class RawAnswer(Protocol):
    """An answer as it comes, packed and unbounded: what of aiohttp's is read here."""

    @property
    def status(self) -> int: ...

    @property
    def url(self) -> object: ...

    @property
    def headers(self) -> _Headers: ...

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]: ...

    @property
    def content(self) -> _Pieces: ...

    def release(self) -> object:
        """Let go of it, read to its end or not."""


class Body(httpx.AsyncByteStream):
    """The body of an answer, unpacked as it comes. Raises BadBody; more than a piece is never held."""

    def __init__(self, raw: RawAnswer) -> None:
        self._raw = raw
        self.beginning = b""
        """What has been read of it, up to a few kilobytes."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        packed = "content-encoding" in self._raw.headers
        left = MAX_BODY_BYTES
        async for piece in self._unpacked() if packed else self._as_it_comes():
            left -= len(piece)
            if left < 0:
                raise BodyTooLarge
            if len(self.beginning) < _BEGINNING_BYTES:
                self.beginning += piece[:_BEGINNING_BYTES]
            yield piece

    def _as_it_comes(self) -> AsyncIterator[bytes]:
        return self._raw.content.iter_any()

    async def _unpacked(self) -> AsyncIterator[bytes]:
        left = MAX_BODY_BYTES  # of what comes, too: it may unpack to nothing, for ever
        try:
            unpack = unpacker(", ".join(self._raw.headers.getall("content-encoding")))
            async for piece in self._as_it_comes():
                left -= len(piece)
                if left < 0:
                    raise BodyTooLarge
                for part in unpack.feed(piece) if unpack else (piece,):
                    yield part
                    await checkpoint()  # a few bytes may have been millions of events
            if unpack:
                unpack.end()
        except PackedWrongly as error:
            raise BadBody(str(error)) from None

    async def aclose(self) -> None:
        self._raw.release()  # closes the connection where the body was not read to its end


def headers_of(raw: RawAnswer) -> list[tuple[bytes, bytes]]:
    """An answer's headers without those that say how its body was packed: it comes unpacked."""
    if "content-encoding" not in raw.headers:
        return list(raw.raw_headers)
    packing = (b"content-encoding", b"content-length")
    return [header for header in raw.raw_headers if header[0].lower() not in packing]
