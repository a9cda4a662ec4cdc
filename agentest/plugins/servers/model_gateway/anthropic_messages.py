"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field

from agentest.domain.transcript import ToolCall
from agentest.plugins.protocols.model_messages import (
    Json,
    count,
    entry,
    objects,
    read_message,
    texts_of,
)
from agentest.plugins.protocols.protocol_client import TOOL_USE, StreamedBlocks, made_calls
from agentest.plugins.servers.model_gateway import wire_form as wire
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass

_CACHE = "cache_control"
_MODELS_OWN = (TOOL_USE, "text", "thinking")


class AnthropicMessages(wire.WireForm):
    """Requests and answers of Anthropic's Messages."""

    name = "Anthropic messages"
    schema_keys = ("input_schema",)
    previous_at = ("thread", "previous_message_id")
    effort_key = "output_config"
    token_keys = ("input_tokens", "output_tokens", "")

    def facts(self, body: Json, _: str) -> Json:
        choice, previous = entry(body, "tool_choice"), entry(body, "thread").get("previous_message_id")
        forced = wire.ANY_TOOL if choice.get("type") == "any" else choice.get("name")
        held = isinstance(previous, str)
        return {"forced": forced, "named": (previous,) * held, "chained": held, "stored_tools": held}

    def ids_of(self, body: Json) -> Iterable[str]:
        return filter(None, (body.get("id"),))

    def put_back(self, groups: Iterable[tuple[list[Json], wire.PassedAnswer | None]]) -> Iterator[Json]:
        owed: list[Json] = []
        for [message], answer in groups:
            if answer is not None and answer.hides:
                yield from answer.before
                if _calls_in(message) or not _calls_in(answer.shown.body):
                    yield from _with_cache_mark(answer.message, message)
                    owed = answer.owed
                    continue
                if answer.owed:  # the framework wrote a call as text, such as that of an output tool
                    blocks = _blocks(answer.message[0])
                    hidden = [blocks[call.place] for call in answer.hidden_calls]
                    yield {"role": "assistant", "content": hidden}
                    yield {"role": "user", "content": answer.owed}
            # Results come before any text.
            yield {**message, "content": [*owed, *_blocks(message)]} if owed else message
            owed = []

    def in_messages(self, owed: list[Json], after: Sequence[Json] = ()) -> list[Json]:
        first = [each for each in after[:1] if each.get("role") == "user"]  # results come before any text
        content = [*owed, *(block for each in first for block in _blocks(each))]
        return [{"role": "user", "content": content}, *after[len(first) :]]

    def lifted(self, body: Json) -> Json:
        choice = {key: value for key, value in body["tool_choice"].items() if key != "name"}
        return {"tool_choice": {**choice, "type": "auto"}}

    def owed(self, results: Sequence[wire.CallResult]) -> list[Json]:
        return [
            {
                "type": "tool_result",
                "tool_use_id": each.call_id,
                "content": wire.result_text(each),
                **({"is_error": True} if each.failed else {}),
            }
            for each in results
        ]

    def message(self, body: Json) -> list[Json]:
        return [{"role": "assistant", "content": body.get("content") or []}]

    def made(self, body: Json) -> Sequence[ToolCall]:
        blocks = [each for each in objects(body.get("content")) if each.get("type") not in _MODELS_OWN]
        named = [{**each, "name": each.get("name") or each.get("type")} for each in blocks]
        called = {block.get("id") for block in blocks}
        answered = (block.get("tool_use_id") for block in blocks)
        # The API may pause between a call and its result.
        late = [
            {"type": "server_tool_use", "id": known, "name": ""}
            for known in answered
            if known not in {None, *called}
        ]
        return made_calls([*late, *named], 0) if blocks else ()

    def without(self, body: Json, places: Collection[int]) -> Json:
        content = objects(body.get("content"))
        return {"content": [block for place, block in enumerate(content) if place not in places]}

    def stream(self, _: wire.WireRequest) -> _MessageStream:
        return _MessageStream()

    def error(self, status: int, message: str) -> Json:
        kind = "invalid_request_error" if status < 500 else "api_error"
        return {"type": "error", "error": {"type": kind, "message": message}}


@dataclass(slots=True)
class _MessageRound:
    message: Json = field(default_factory=dict)
    content: StreamedBlocks = field(default_factory=StreamedBlocks)
    passed: int = 0  # number of blocks that the agent received as they came: those before the first call
    final: Json | None = None
    held: list[tuple[int, Json]] = field(default_factory=list)


class _MessageStream(wire.AnswerStream):
    def __init__(self) -> None:
        super().__init__()
        self._round, self._last = _MessageRound(), _MessageRound()
        self._shown = 0  # number of blocks that the agent has received of earlier rounds
        self._calls: Collection[int] = ()
        self._began = False

    def take(self, data: Json, event: Event) -> bytes:
        kind, now = data.get("type"), self._round
        if kind == "message_start":
            now.message = dict(entry(data, "message"))
            began, self._began = self._began, True
            self.ids += [] if began else AnthropicMessages().ids_of(now.message)
            return self._released(self._calls) if began else wire.sse(event.data, kind)
        if kind in ("message_delta", "message_stop"):
            now.final = data if kind == "message_delta" else now.final
            return b""
        if kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            return self._block(kind, data, event.data)
        self.told = self.told or kind == "error"
        return wire.sse(event.data, event.name)

    def _block(self, kind: str, data: Json, given: str) -> bytes:
        index, now = count(data.get("index")), self._round
        if kind == "content_block_start":
            block = dict(entry(data, "content_block"))
            now.content.start(index, block)
            self.text += texts_of(block.get("text"))
        elif kind == "content_block_delta":
            delta = entry(data, "delta")
            now.content.grow(index, delta)
            self.text += texts_of(delta.get("text"))
        place = now.content.place(index)
        if not now.held and now.content.is_content(place):
            now.passed = max(now.passed, place + 1)
        if place < now.passed:
            shown = self._shown + place
            return wire.sse(given if data.get("index") == shown else {**data, "index": shown}, kind)
        now.held.append((place, data))
        return b""

    def _released(self, hidden: Collection[int]) -> bytes:
        events, self._shown = wire.released(self._last.held, hidden, self._shown, "index")
        return b"".join(wire.sse(data, data["type"]) for data in events)

    def round(self) -> Json:
        now = self._round
        if now.final is None:
            raise wire.CutStream(wire.CUT)
        usage = {**entry(now.message, "usage"), **entry(now.final, "usage")}
        content = now.content.blocks
        body = {**now.message, **entry(now.final, "delta"), "content": content, "usage": usage}
        self._last, self._round = now, _MessageRound()
        self._shown += now.passed
        message = read_message({"role": "assistant", "content": content})
        self._calls = [part.place for part in message.calls]
        self.ids += [known for part in message.parts if part.kind != "call" for known in part.ids]
        return body

    def end(self, shown: Json, hidden: Sequence[wire.ModelCall]) -> bytes:
        held = self._released({call.place for call in hidden})
        final = self._last.final or {}
        usage = {**entry(final, "usage"), "output_tokens": shown["usage"]["output_tokens"]}
        last = wire.sse({**final, "usage": usage}, "message_delta")
        return b"".join([held, last, wire.sse({"type": "message_stop"}, "message_stop")])

    def error(self, message: str) -> bytes:
        return wire.sse(AnthropicMessages().error(500, message), "error")


def _calls_in(message: Json) -> list[Json]:
    return [block for block in _blocks(message) if block.get("type") == "tool_use"]


def _blocks(message: Json) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _with_cache_mark(whole: list[Json], seen: Json) -> list[Json]:
    mark = next((block[_CACHE] for block in _blocks(seen) if _CACHE in block), None)
    content = objects(whole[-1].get("content"))
    if mark is None or not content:
        return whole
    return [*whole[:-1], {**whole[-1], "content": [*content[:-1], {**content[-1], _CACHE: mark}]}]
