"""Requests to backends of the AI SDK and their streamed responses, read chunk by chunk.

UI message streams (AI SDK 5 to 7) are server-sent events. Data streams (AI SDK 4) are lines of `code:JSON`,
which are converted to the same chunks. Text streams contain only the text of the reply.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agentest.agents.ai_sdk.parts import AssistantMessage, Chunk
from agentest.agents.bypassed_tools import BypassDetector
from agentest.agents.error_hints import is_page
from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender
from agentest.agents.json_reader import (
    excerpt,
    read_event,
    read_json,
    read_text,
    truncated_stream_error,
)
from agentest.agents.port import IgnoredCounter, Resources
from agentest.config.agents.frontends import AiSdkAgent
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import events
from agentest.support.templates import Template, Values

PLACE = "is the path right? such backends are usually at /api/chat"
_DATA_LINE = re.compile(rb"[0-9a-k]:[\[{\"]")
_LINE = "a line of the agent's data stream"
_MASKED_ERROR = "An error occurred."
_UI_HEADER, _DATA_HEADER = "x-vercel-ai-ui-message-stream", "x-vercel-ai-data-stream"
TEXT_STREAM_HIDES_CALLS = (
    "it answered with a text stream, which tells of none. To see them, have it answer with a UI message "
    "stream (toUIMessageStreamResponse). Otherwise leave out what judges calls"
)
_ACCEPT = {"accept": "text/event-stream, text/plain, application/json"}
_HANDED_OVER = "take `execute` from the tool, so that the backend hands its calls to the client"


class StreamResult:
    """One stream: the message that it adds to, its end, its usage and its form."""

    def __init__(self, message: AssistantMessage) -> None:
        self.message = message
        self.finish: Chunk | None = None
        self.is_text = False
        self.is_version_4 = False
        self._before = message.steps
        self._metadata: dict[str, Any] = {}
        """The message's metadata, as far as this stream has sent it."""

    @property
    def model_calls(self) -> int | None:
        """The number of model calls, one for each step of the stream; None without steps."""
        return self.message.steps - self._before or None

    @property
    def usage(self) -> Usage:
        """The tokens in the stream's `finish` chunk or in the message's metadata."""
        for source in (self.finish or {}, self._metadata):
            for key in ("totalUsage", "usage"):
                if isinstance(source.get(key), Mapping):
                    return _usage(source[key])
        return Usage()

    def take(self, chunk: Chunk) -> bool:
        """Take a chunk and return whether it had text. Raises AgentError for errors and aborts."""
        kind = chunk.get("type")
        if isinstance(chunk.get("messageMetadata"), Mapping):
            self._metadata.update(chunk["messageMetadata"])
        if kind == "error":
            raise AgentError(_reported_error(chunk.get("errorText")))
        if kind == "abort":
            reason = f": {excerpt(chunk['reason'])}" if chunk.get("reason") else ""
            raise AgentError(f"the agent aborted its reply{reason}")
        if kind == "finish":
            self.finish = chunk
            if chunk.get("finishReason") == "error":
                raise AgentError("the agent's stream reports an error: finishReason is `error`")
        return self.message.add(chunk)


def _reported_error(error: Any) -> str:
    text = f"the agent's stream reports an error: {excerpt(error)}"
    hint = " (the AI SDK's servers tell the cause where `onError` does)" if error == _MASKED_ERROR else ""
    return f"{text}{hint}"


def _usage(reported: Mapping[str, Any]) -> Usage:
    details = reported.get("inputTokenDetails")
    cached = details.get("cacheReadTokens") if isinstance(details, Mapping) else None
    return Usage(
        _tokens(reported, "inputTokens", "promptTokens"),
        _tokens(reported, "outputTokens", "completionTokens"),
        _tokens({"": cached}, "") or _tokens(reported, "cachedInputTokens"),
    )


def _tokens(reported: Mapping[str, Any], *keys: str) -> int:
    for key in keys:
        value = reported.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return 0


async def read_ui_messages(events: EventStream, result: StreamResult) -> None:
    """Read a UI message stream, which ends with `finish`, `[DONE]` or both. Raises AgentError."""
    async for event in events:
        data = event.data.strip()
        if data == "[DONE]":
            return
        if data and result.take(read_event(data)):
            events.note_first_token()
    if result.finish is None:
        raise truncated_stream_error("`finish` and `[DONE]`")


def looks_like_data_stream(beginning: bytes) -> bool:
    """Return whether a body begins like a data stream of AI SDK 4."""
    return bool(_DATA_LINE.match(beginning.lstrip()))


async def read_data_stream(
    pieces: AsyncIterator[bytes],
    result: StreamResult,
    on_text: Callable[[], None],
    on_unknown: Callable[[str, object], None],
) -> None:
    """Read a data stream of AI SDK 4, which ends with a `d:` line.

    Args:
        pieces: the body.
        result: receives the chunks.
        on_text: called for each chunk that has text.
        on_unknown: called with `line` and the code of an unknown line.

    Raises AgentError.
    """
    result.is_version_4 = True
    async for line in _lines(pieces):
        code, colon, text = line.partition(":")
        if not colon or len(code) != 1:
            raise AgentError(f"{_LINE} has no code: {excerpt(line)!r}")
        for chunk in _chunks(code, read_text(text, _LINE), on_unknown):
            if result.take(chunk):
                on_text()
    if result.finish is None:
        raise truncated_stream_error("its `d:` line (finish message)")


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    decoder, rest = getincrementaldecoder("utf-8")(errors="replace"), ""
    async for piece in pieces:
        *complete, rest = (rest + decoder.decode(piece)).split("\n")
        for line in complete:
            if line.strip():
                yield line.strip()
    if rest.strip():
        yield rest.strip()


def _chunks(code: str, value: Any, on_unknown: Callable[[str, object], None]) -> list[Chunk]:
    """Convert a line of a data stream to the chunks of a UI message stream."""
    chunk = value if isinstance(value, Mapping) else {}
    call = {key: chunk[key] for key in ("toolCallId", "toolName") if key in chunk}
    match code:
        case "0":
            return [{"type": "text-delta", "id": "0", "delta": value}]
        case "g":
            return [{"type": "reasoning-delta", "id": "g", "delta": value}]
        case "9":
            return [{"type": "tool-input-available", **call, "input": chunk.get("args")}]
        case "a":
            return [{"type": "tool-output-available", **call, "output": chunk.get("result")}]
        case "b":
            return [{"type": "tool-input-start", **call}]
        case "c":
            delta = chunk.get("argsTextDelta", "")
            return [{"type": "tool-input-delta", **call, "inputTextDelta": delta}]
        case "d":
            return [{**chunk, "type": "finish"}]
        case "e":
            # A text after the end of a step is a new text.
            return [{"type": "text-end", "id": "0"}, {"type": "reasoning-end", "id": "g"}]
        case "f":
            return [{"type": "start", "messageId": chunk.get("messageId")}, {"type": "start-step"}]
        case "3":
            return [{"type": "error", "errorText": value}]
        case "2" | "8" | "h" | "i" | "j" | "k":
            return []
    on_unknown("line", code)
    return []


async def read_stream(
    response: DirectResponse, result: StreamResult, on_unknown: Callable[[str, object], None]
) -> None:
    """Read a stream of any form into `result`. Raises AgentError; `result` then has the earlier chunks."""
    pieces = response.pieces()
    beginning = await _beginning(pieces)
    body, content_type = _with_beginning(beginning, pieces), response.headers.get("content-type", "")
    result.message.begin_stream()
    is_ui = _UI_HEADER in response.headers or "event-stream" in content_type
    if is_ui or beginning.lstrip().startswith(b"data:"):
        await read_ui_messages(EventStream(events(body), response.note_first_token), result)
    elif _DATA_HEADER in response.headers or looks_like_data_stream(beginning):
        await read_data_stream(body, result, response.note_first_token, on_unknown)
    elif "text/plain" in content_type and not is_page(beginning):
        await _read_text(body, result, response.note_first_token)
    else:
        raise AgentError(_no_stream_error(b"".join([piece async for piece in body])))


async def _beginning(pieces: AsyncIterator[bytes]) -> bytes:
    """Read enough of the body to detect its form."""
    read = b""
    async for piece in pieces:
        read += piece
        if len(read.lstrip()) > len("data:"):
            break
    return read


async def _with_beginning(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for piece in rest:
        yield piece


async def _read_text(pieces: AsyncIterator[bytes], result: StreamResult, on_text: Callable[[], None]) -> None:
    """Read a text stream. It contains only the reply, without calls or errors."""
    result.is_text = True
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    message: AssistantMessage = result.message
    async for piece in pieces:
        if message.add({"type": "text-delta", "id": "0", "delta": decoder.decode(piece)}):
            on_text()
    if not any(part["type"] == "text" and part["text"].strip() for part in message.parts):
        raise AgentError(
            "the agent's text stream is empty: that is how such streams end where the agent fails or calls "
            "tools alone; UI message streams (`toUIMessageStreamResponse`) tell more"
        )


def _no_stream_error(body: bytes) -> str:
    data = read_json(body, PLACE)
    error = data.get("error") if isinstance(data, dict) else None
    if error:
        return f"the agent answered with an error: {excerpt(error)}"
    return (
        "the agent's answer is no stream of the AI SDK (expected server-sent events, a data stream or plain "
        f"text), but JSON: {excerpt(data)}"
    )


class AiSdkSender:
    """Sends requests to one backend. Stores nothing about conversations."""

    def __init__(self, config: AiSdkAgent, resources: Resources) -> None:
        self.name = config.name
        self.version = config.version
        self.approvals = config.approvals
        self.on_unknown = IgnoredCounter(config.name, resources).note
        self.own_tools = BypassDetector(config.name, handed_over=_HANDED_OVER)
        self._endpoint = config.endpoint
        self._body = Template(config.body)
        self._sender = HttpSender(config, resources.client, resources.timeout_s, PLACE)

    async def send(
        self, payload: Mapping[str, Any], result: StreamResult, values: Values
    ) -> HttpAnswer[StreamResult]:
        """Send a request and read the response into `result`. Raises NoReply."""

        async def read(response: DirectResponse) -> None:
            await read_stream(response, result, self.on_unknown)

        body = {**self._body.filled(values), **payload}
        answer = await self._sender.post(self._endpoint, body, read, values=values, headers=_ACCEPT)
        return HttpAnswer(result, answer.latency_ms, answer.retries, answer.first_token_ms)
