"""Which kind of stream an answer is, and reading it into the message that it goes on with."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable

from agentest.agents.ai_sdk.parts import AssistantMessage
from agentest.agents.ai_sdk.streams import (
    PLACE,
    Told,
    looks_like_data_stream,
    read_data_stream,
    read_ui_messages,
)
from agentest.agents.answers import EventStream
from agentest.agents.hints import is_page
from agentest.agents.reading import read_json, shown
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import events

_UI, _DATA = "x-vercel-ai-ui-message-stream", "x-vercel-ai-data-stream"


async def read_stream(
    response: DirectResponse, told: Told, on_unknown: Callable[[str, object], None]
) -> None:
    """Read an answer of any kind. Raises AgentError; what was told before stays in `told`."""
    pieces = response.pieces()
    beginning = await _beginning(pieces)
    body, content_type = _again(beginning, pieces), response.headers.get("content-type", "")
    told.message.begin_stream()
    if _UI in response.headers or "event-stream" in content_type or beginning.lstrip().startswith(b"data:"):
        await read_ui_messages(EventStream(events(body), response.note_first_token), told)
    elif _DATA in response.headers or looks_like_data_stream(beginning):
        await read_data_stream(body, told, response.note_first_token, on_unknown)
    elif "text/plain" in content_type and not is_page(beginning):
        await _read_text(body, told, response.note_first_token)
    else:
        raise AgentError(_no_stream(b"".join([piece async for piece in body])))


async def _beginning(pieces: AsyncIterator[bytes]) -> bytes:
    """What comes first, up to enough to know it by."""
    read = b""
    async for piece in pieces:
        read += piece
        if len(read.lstrip()) > len("data:"):
            break
    return read


async def _again(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for piece in rest:
        yield piece


async def _read_text(pieces: AsyncIterator[bytes], told: Told, on_text: Callable[[], None]) -> None:
    """Read a text stream: all of it is the reply, and nothing tells of calls or errors."""
    told.is_text = True
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    message: AssistantMessage = told.message
    async for piece in pieces:
        if message.add({"type": "text-delta", "id": "0", "delta": decoder.decode(piece)}):
            on_text()
    if not any(part["type"] == "text" and part["text"].strip() for part in message.parts):
        raise AgentError(
            "the agent's text stream is empty: that is how such streams end where the agent fails or calls "
            "tools alone; UI message streams (`toUIMessageStreamResponse`) tell more"
        )


def _no_stream(body: bytes) -> str:
    data = read_json(body, PLACE)
    error = data.get("error") if isinstance(data, dict) else None
    if error:
        return f"the agent answered with an error: {shown(error)}"
    return (
        "the agent's answer is no stream of the AI SDK (expected server-sent events, a data stream or plain "
        f"text), but JSON: {shown(data)}"
    )
