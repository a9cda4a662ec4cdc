"""Server-sent events: the same data for any chunks, line endings and comments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.support.http.sse import Event, EventParser, events


def parse(*pieces: bytes) -> list[str]:
    parser = EventParser()
    fed = [event for piece in pieces for event in parser.feed(piece)]
    return [event.data for event in (*fed, *parser.rest())]


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    at = sorted({place % (len(stream) + 1) for place in places})
    return [stream[begin:end] for begin, end in zip([0, *at], [*at, len(stream)], strict=True)]


STREAM_BYTES = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"data:", b"data", b": ", b"id: 1", b"\xef\xbb\xbf", "é😀".encode()]
    )
    | st.binary(max_size=4),
    max_size=30,
).map(b"".join)


@given(STREAM_BYTES, st.lists(st.integers(0, 200), max_size=20))
def test_any_cut(stream: bytes, places: list[int]) -> None:
    """A byte stream split anywhere gives the events of the whole stream."""
    assert parse(*cut(stream, places)) == parse(stream)


@given(STREAM_BYTES)
def test_byte_by_byte(stream: bytes) -> None:
    """A byte stream that arrives byte by byte gives the events of the whole stream."""
    assert parse(*(stream[i : i + 1] for i in range(len(stream)))) == parse(stream)


LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from(["data:", "data: "]),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 400), max_size=8),
)
def test_written_events_come_back(
    written: list[list[str]], ending: str, field: str, bom: bool, last_line: bool, places: list[int]
) -> None:
    """Events written with any line ending, with or without BOM or last empty line, are read back."""
    if field == "data:":  # there a first space would be taken for the optional one
        written = [[line.lstrip(" ") for line in lines] for lines in written]
    text = "".join("".join(field + line + ending for line in lines) + ending for lines in written)
    if not last_line:
        text = text.removesuffix(ending)
    stream = ("\ufeff" if bom else "").encode() + text.encode()
    assert parse(*cut(stream, places)) == ["\n".join(lines) for lines in written]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: one\n\ndata: two\n\n", ["one", "two"]),
        (b"data:one\n\n", ["one"]),
        (b"data:  one\n\n", [" one"]),
        (b"data: one\ndata: two\n\n", ["one\ntwo"]),
        (b": comment\ndata: one\n:\n\n", ["one"]),
        (b": only a comment\n\n", []),
        (b"event: x\nid: 7\nretry: 10\ndata: one\n\n", ["one"]),
        (b"Data: not this\ndatas: nor this\n\n", []),
        (b"data\n\n", [""]),
        (b"data: one\r\n\r\ndata: two\r\n\r\n", ["one", "two"]),
        (b"data: one\r\rdata: two\r\r", ["one", "two"]),
        (b"data: one\n\r\ndata: two\r\n\n", ["one", "two"]),
        (b"\xef\xbb\xbfdata: one\n\n", ["one"]),
        (b"data: one\n\xef\xbb\xbfdata: two\n\n", ["one"]),
        (b"data: one", ["one"]),
        (b"data: one\n", ["one"]),
        (b"data: one\r", ["one"]),
        (b"data: a:b: c\n\n", ["a:b: c"]),
        (b"data: \xff\n\n", ["�"]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_forms_of_events(stream: bytes, expected: list[str]) -> None:
    """Each form of an event is read as the specification requires."""
    assert parse(stream) == expected


def test_a_character_in_two_pieces() -> None:
    """A character whose bytes arrive in two pieces is one character."""
    whole = "data: grüße 😀\n\n".encode()
    for place in range(len(whole)):
        assert parse(whole[:place], whole[place:]) == ["grüße 😀"]


def test_names_of_events() -> None:
    """The last `event` line names an event; without one it is a message."""
    parser = EventParser()
    fed = parser.feed(b"event: x\nevent: end\ndata: 1\n\ndata: 2\n\nevent: lost\n\ndata: 3\n\n")
    assert fed == [Event("1", "end"), Event("2"), Event("3")]


def test_a_long_line_in_many_pieces() -> None:
    """A line of a megabyte in a hundred thousand pieces is parsed in linear time."""
    assert parse(b"data: ", *[b"x" * 10] * 100_000, b"\n\n") == ["x" * 1_000_000]


def test_an_async_stream() -> None:
    """`events` yields the data of a chunked stream, including an unclosed last event."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"da", b"ta: one\r", b"\n\r\ndata: t", b"wo"):
            yield piece

    async def go() -> list[str]:
        return [event.data async for event in events(pieces())]

    assert anyio.run(go) == ["one", "two"]
