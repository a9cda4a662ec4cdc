"""Request bodies of our servers, limited and decompressed while they arrive."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from aiohttp import web
from multidict import CIMultiDict

from agentest.support.http.bodies import BodyRefused, read_body


class Sent:
    """A body that arrives in pieces, and counts how many were read."""

    def __init__(self, pieces: Iterable[bytes], **headers: str) -> None:
        self._pieces = iter(pieces)
        self.taken = 0
        self.headers = CIMultiDict({name.replace("_", "-"): value for name, value in headers.items()})
        self.content = SimpleNamespace(iter_any=self._iter, is_eof=lambda: False, exception=lambda: None)

    async def _iter(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self.taken += 1
            yield piece

    def read(self, most: int, **more: Any) -> bytes:
        return anyio.run(lambda: read_body(cast("web.Request", self), most, **more))


def pieces_of(data: bytes, size: int = 100) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "identity", ""])
def test_a_whole_body(coding: str) -> None:
    """It may be compressed."""
    data = b"hello" * 1000
    sent = gzip.compress(data) if "gzip" in coding.lower() else data
    assert Sent(pieces_of(sent), content_encoding=coding).read(5000) == data


def test_reading_stops_at_the_limit() -> None:
    """This applies to received and to decompressed bytes."""
    plain = Sent([b"x" * 100] * 1000)
    packed = Sent(pieces_of(gzip.compress(b" " * 50_000_000)), content_encoding="gzip")
    for sent, most in ((plain, 250), (packed, 100_000)):
        with pytest.raises(BodyRefused, match="is larger than") as raised:
            sent.read(most)
        assert (raised.value.status, sent.taken <= 3) == (413, True)


def test_empty_gzip_members_count_as_received() -> None:
    """Otherwise empty members could continue forever."""
    sent = Sent([gzip.compress(b"")] * 1000, content_encoding="gzip")
    with pytest.raises(BodyRefused, match="is larger than"):
        sent.read(200)


@pytest.mark.parametrize(
    ("coding", "sent", "status", "problem"),
    [
        ("gzip", b"no gzip", 400, "cannot be unpacked: it is not gzip"),
        ("gzip", gzip.compress(b"hello")[:-5], 400, "cannot be unpacked: it was cut"),
        ("br", b"abc", 415, r"is packed as \['br'\]; gzip and deflate are unpacked"),
        ("gzip, deflate", b"abc", 415, "are unpacked, once"),
    ],
    ids=["not gzip", "cut", "another coding", "twice"],
)
def test_invalid_compression(coding: str, sent: bytes, status: int, problem: str) -> None:
    """The status tells whose fault it is, and the message has the accepted codings."""
    with pytest.raises(BodyRefused, match=problem) as raised:
        Sent([sent], content_encoding=coding).read(1000)
    assert raised.value.status == status


def test_a_body_that_never_arrives() -> None:
    """Reading a body has a time limit."""

    class Silent(Sent):
        async def _iter(self) -> AsyncIterator[bytes]:
            yield b"{"
            await anyio.sleep_forever()

    with pytest.raises(BodyRefused, match="has not come within") as raised:
        Silent([]).read(1000, body_s=0.001)
    assert raised.value.status == 408
