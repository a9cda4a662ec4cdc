"""The streams in which backends of the AI SDK answer, read chunk by chunk.

UI message streams (AI SDK 5 to 7) are server-sent events, data streams (4) lines of `code:JSON`, which are
turned into the chunks of the former, and text streams the reply itself.
"""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agentest.agents.ai_sdk.parts import AssistantMessage, Chunk
from agentest.agents.bypassed_tools import OwnTools
from agentest.agents.error_hints import is_page
from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender
from agentest.agents.json_reader import cut_stream, read_event, read_json, read_text, shown
from agentest.agents.port import Ignored, Resources
from agentest.config.agents.ai_sdk import AiSdkAgent
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError
from agentest.support.http.client import DirectResponse
from agentest.support.http.sse import events
from agentest.support.templates import Template, Values

PLACE = "is the path right? such backends are usually at /api/chat"
_DATA_LINE = re.compile(rb"[0-9a-k]:[\[{\"]")
_LINE = "a line of the agent's data stream"
_HIDDEN = "An error occurred."


class Told:
    """What one stream has told beside the parts of the message."""

    def __init__(self, message: AssistantMessage) -> None:
        self.message = message
        self.finish: Chunk | None = None
        self.is_text = False
        self.is_version_4 = False
        self._before = message.steps
        self._metadata: dict[str, Any] = {}
        """Of the message, as far as this stream tells it."""

    @property
    def model_calls(self) -> int | None:
        """How many steps the stream had: a model is asked once for each."""
        return self.message.steps - self._before or None

    @property
    def usage(self) -> Usage:
        """The tokens of the stream, where its `finish` or the message's metadata has them."""
        for place in (self.finish or {}, self._metadata):
            for key in ("totalUsage", "usage"):
                if isinstance(place.get(key), Mapping):
                    return _usage(place[key])
        return Usage()

    def take(self, chunk: Chunk) -> bool:
        """Take a chunk; whether it had a piece of text. Raises AgentError for what ends the reply."""
        kind = chunk.get("type")
        if isinstance(chunk.get("messageMetadata"), Mapping):
            self._metadata.update(chunk["messageMetadata"])
        if kind == "error":
            raise AgentError(_reported(chunk.get("errorText")))
        if kind == "abort":
            reason = f": {shown(chunk['reason'])}" if chunk.get("reason") else ""
            raise AgentError(f"the agent aborted its reply{reason}")
        if kind == "finish":
            self.finish = chunk
            if chunk.get("finishReason") == "error":
                raise AgentError("the agent's stream reports an error: finishReason is `error`")
        return self.message.add(chunk)


def _reported(error: Any) -> str:
    text = f"the agent's stream reports an error: {shown(error)}"
    return f"{text} (the AI SDK's servers tell the cause where `onError` does)" if error == _HIDDEN else text


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


async def read_ui_messages(events: EventStream, told: Told) -> None:
    """Read a UI message stream. It ends with `finish` and `[DONE]`; either will do. Raises AgentError."""
    async for event in events:
        data = event.data.strip()
        if data == "[DONE]":
            return
        if data and told.take(read_event(data)):
            events.note_first_token()
    if told.finish is None:
        raise cut_stream("`finish` and `[DONE]`")


def looks_like_data_stream(beginning: bytes) -> bool:
    """Whether a body without a telling header begins as a data stream of AI SDK 4."""
    return bool(_DATA_LINE.match(beginning.lstrip()))


async def read_data_stream(
    pieces: AsyncIterator[bytes],
    told: Told,
    on_text: Callable[[], None],
    on_unknown: Callable[[str, object], None],
) -> None:
    """Read a data stream of AI SDK 4. It ends with its `d:` line. Raises AgentError."""
    told.is_version_4 = True
    async for line in _lines(pieces):
        code, colon, text = line.partition(":")
        if not colon or len(code) != 1:
            raise AgentError(f"{_LINE} has no code: {shown(line)!r}")
        for chunk in _chunks(code, read_text(text, _LINE), on_unknown):
            if told.take(chunk):
                on_text()
    if told.finish is None:
        raise cut_stream("its `d:` line (finish message)")


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    decoder, rest = getincrementaldecoder("utf-8")(errors="replace"), ""
    async for piece in pieces:
        *whole, rest = (rest + decoder.decode(piece)).split("\n")
        for line in whole:
            if line.strip():
                yield line.strip()
    if rest.strip():
        yield rest.strip()


def _chunks(code: str, value: Any, on_unknown: Callable[[str, object], None]) -> list[Chunk]:
    """What a line of a data stream says, in the chunks of a UI message stream."""
    given = value if isinstance(value, Mapping) else {}
    call = {key: given[key] for key in ("toolCallId", "toolName") if key in given}
    match code:
        case "0":
            return [{"type": "text-delta", "id": "0", "delta": value}]
        case "g":
            return [{"type": "reasoning-delta", "id": "g", "delta": value}]
        case "9":
            return [{"type": "tool-input-available", **call, "input": given.get("args")}]
        case "a":
            return [{"type": "tool-output-available", **call, "output": given.get("result")}]
        case "b":
            return [{"type": "tool-input-start", **call}]
        case "c":
            delta = given.get("argsTextDelta", "")
            return [{"type": "tool-input-delta", **call, "inputTextDelta": delta}]
        case "d":
            return [{**given, "type": "finish"}]
        case "e":
            # A text that goes on after a step is another one.
            return [{"type": "text-end", "id": "0"}, {"type": "reasoning-end", "id": "g"}]
        case "f":
            return [{"type": "start", "messageId": given.get("messageId")}, {"type": "start-step"}]
        case "3":
            return [{"type": "error", "errorText": value}]
        case "2" | "8" | "h" | "i" | "j" | "k":
            return []
    on_unknown("line", code)
    return []


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


TEXT_TELLS_NOTHING = (
    "it answered with a text stream, which tells of none. To see them, have it answer with a UI message "
    "stream (toUIMessageStreamResponse). Otherwise leave out what judges calls"
)
_ACCEPT = {"accept": "text/event-stream, text/plain, application/json"}


_HANDED_OVER = "take `execute` from the tool, so that the backend hands its calls to the client"


class Exchange:
    """Talks to one backend. Keeps nothing of any conversation."""

    def __init__(self, config: AiSdkAgent, resources: Resources) -> None:
        self.name = config.name
        self.version = config.version
        self.approvals = config.approvals
        self.on_unknown = Ignored(config.name, resources).note
        self.own_tools = OwnTools(config.name, handed_over=_HANDED_OVER)
        self._endpoint = config.endpoint
        self._body = Template(config.body)
        self._sender = HttpSender(config, resources.client, resources.timeout_s, PLACE)

    async def send(self, payload: Mapping[str, Any], told: Told, values: Values) -> HttpAnswer[Told]:
        """Send, and read the answer into `told`. Raises NoReply."""

        async def read(response: DirectResponse) -> None:
            await read_stream(response, told, self.on_unknown)

        body = {**self._body.filled(values), **payload}
        answer = await self._sender.post(self._endpoint, body, read, values=values, headers=_ACCEPT)
        return HttpAnswer(told, answer.latency_ms, answer.retries, answer.first_token_ms)
