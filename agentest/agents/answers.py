"""The bodies of agents' answers: whole, or server-sent events as they come."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import Event, events

T = TypeVar("T")


class EventStream:
    """The server-sent events of an answer, in order."""

    def __init__(
        self, events: AsyncIterator[Event], on_first_token: Callable[[], None] = lambda: None
    ) -> None:
        self._events = events
        self.note_first_token = on_first_token
        """To be called with every piece of the reply's text: the first one is timed."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events


async def read_body(
    response: DirectResponse,
    streaming: bool,
    whole: Callable[[bytes], T],
    stream: Callable[[EventStream], Awaitable[T]],
) -> T:
    """The body read by `whole`, or by `stream` where it is server-sent events.

    Args:
        streaming: whether events were asked for: a body of unknown type is taken for them then.
    """
    pieces = response.pieces()
    beginning = await first_piece(pieces)
    content_type = response.headers.get("content-type", "")
    streamed = "event-stream" in content_type or (streaming and "json" not in content_type)
    # JSON is an answer, whatever the header calls it: not every server can stream. And a web page is none.
    if streamed and not beginning.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"[", b"<")):
        return await stream(EventStream(events(again(beginning, pieces)), response.note_first_token))
    return whole(b"".join([piece async for piece in again(beginning, pieces)]))


async def first_piece(pieces: AsyncIterator[bytes]) -> bytes:
    """What comes first, up to something more than white space."""
    read: list[bytes] = []
    async for piece in pieces:
        read.append(piece)
        if piece.removeprefix(BOM_UTF8).strip():
            break
    return b"".join(read)


async def again(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for piece in rest:
        yield piece
