"""Decompression of bodies in bounded pieces, and refusal of anything invalid."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.support.http.bodies import PIECE_BYTES, DecompressionError, decompressor_for


def raw_deflate(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(data) + packing.flush()


def unpacked(encoding: str, *pieces: bytes) -> list[bytes]:
    unpack = decompressor_for(encoding)
    assert unpack
    parts = [part for piece in pieces for part in unpack.feed(piece)]
    unpack.end()
    return parts


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


# Long runs of one byte, so that a piece of the input stands for many of the output.
DATA = st.lists(
    st.tuples(st.binary(min_size=1, max_size=3), st.sampled_from([1, 7, 30_000, 65_536])), max_size=4
)
WAYS = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "Deflate ": raw_deflate}


@given(DATA, st.sampled_from(sorted(WAYS)), st.integers(1, 9000))
def test_any_data(runs: list[tuple[bytes, int]], way: str, size: int) -> None:
    """Compressed data is restored in pieces of at most 64 KB, however it is split on the way."""
    data = b"".join(run * length for run, length in runs)
    parts = unpacked(way, *cut(WAYS[way](data), size))
    assert b"".join(parts) == data
    assert all(0 < len(part) <= PIECE_BYTES for part in parts)


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.integers(0, 9), st.integers(1, 50))
def test_gzip_in_several_members(members: list[bytes], zeros: int, size: int) -> None:
    """A gzip body may have several members and zero padding."""
    packed = b"".join(map(gzip.compress, members)) + bytes(zeros)
    assert b"".join(unpacked("gzip", *cut(packed, size))) == b"".join(members)


@given(DATA, st.sampled_from(sorted(WAYS)), st.data())
def test_a_body_that_was_cut(runs: list[tuple[bytes, int]], way: str, drawn: st.DataObject) -> None:
    """A body cut anywhere is an error, however much was decompressed."""
    packed = WAYS[way](b"".join(run * length for run, length in runs))
    end = drawn.draw(st.integers(1, len(packed) - 1))
    with pytest.raises(DecompressionError, match="was cut"):
        unpacked(way, packed[:end])


@given(st.sampled_from(sorted(WAYS)), st.lists(st.binary(max_size=30), max_size=4))
def test_any_bytes(way: str, pieces: list[bytes]) -> None:
    """Any bytes are decompressed or refused, with one kind of error."""
    with suppress(DecompressionError):
        unpacked(way, *pieces)


def test_no_more_is_unpacked_than_is_asked_for() -> None:
    """The first pieces of a huge body are available without decompressing the rest."""
    packing = zlib.compressobj(wbits=31)
    bomb = b"".join(packing.compress(bytes(2**20)) for _ in range(64)) + packing.flush()
    unpack = decompressor_for("gzip")
    assert unpack
    assert [len(part) for part in islice(unpack.feed(bomb), 3)] == [PIECE_BYTES] * 3


@pytest.mark.parametrize("way", sorted(WAYS))
def test_data_after_the_end(way: str) -> None:
    """Data after the end of the compressed stream is an error."""
    with pytest.raises(DecompressionError, match=r"is not gzip|goes on after the end of its deflate data"):
        unpacked(way, WAYS[way](b"{}"), b"more of it")


def test_endless_empty_members() -> None:
    """Empty gzip members do not continue forever."""
    with pytest.raises(DecompressionError, match="goes on after the end"):
        unpacked("gzip", gzip.compress(b"") * 20_000)


def test_an_empty_body() -> None:
    """A body without bytes is empty with any coding."""
    assert unpacked("gzip", b"") == []


@pytest.mark.parametrize("encoding", ["", "identity", " Identity , "])
def test_uncompressed_bodies(encoding: str) -> None:
    """Without a coding, or with `identity`, nothing is decompressed."""
    assert decompressor_for(encoding) is None


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip,deflate", "nonsense", "br, identity"])
def test_unsupported_codings(encoding: str) -> None:
    """Another coding, or several, is refused by name."""
    with pytest.raises(
        DecompressionError, match=f"has the content-encoding '{encoding}'; the request allows gzip"
    ):
        decompressor_for(encoding)
