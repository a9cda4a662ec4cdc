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
from agentest.agents.answers import EventStream
from agentest.agents.reading import cut_stream, read_event, read_text, shown
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError

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
