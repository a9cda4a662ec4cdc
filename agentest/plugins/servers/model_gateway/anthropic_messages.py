"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import field

from agentest.config.agents.mock_servers import Override
from agentest.domain.transcript import Usage
from agentest.plugins.servers.model_gateway.wire_form import (
    ANY_TOOL,
    CallResult,
    CutStream,
    Json,
    ModelCall,
    PassedAnswer,
    SeenMessage,
    WireAnswer,
    WireRequest,
    count,
    entry,
    matched,
    model_of,
    object_of,
    objects,
    offered_tools,
    parsed_arguments,
    parsed_result,
    result_text,
    sse,
    texts_of,
)
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass
from agentest.wire.stream_assembly import StreamedBlocks

_CACHE = "cache_control"


class AnthropicMessages:
    """Implements `WireForm`."""

    name = "Anthropic messages"

    def request(self, body: Json, path: str) -> WireRequest:
        del path
        messages = objects(body.get("messages"))
        blocks = [block for message in messages for block in _blocks(message)]
        names = {block.get("id"): block.get("name") for block in blocks if _is_call(block)}
        choice = entry(body, "tool_choice")
        texts = [(message.get("role"), texts_of(message.get("content"))) for message in messages]
        return WireRequest(
            body=body,
            streams=body.get("stream") is True,
            model=model_of(body),
            user_texts=tuple(text for role, text in texts if role == "user" and text),
            instructions=texts_of(body.get("system")),
            tools=offered_tools(objects(body.get("tools")), "input_schema"),
            ids=tuple(reversed([known for block in blocks for known in _ids(block)])),
            results=tuple(
                CallResult(
                    name=str(names.get(block.get("tool_use_id")) or ""),
                    result=parsed_result(texts_of(block.get("content"))),
                    call_id=block.get("tool_use_id"),
                    failed=block.get("is_error") is True,
                )
                for block in blocks
                if block.get("type") == "tool_result"
            ),
            history_texts=tuple(text for role, text in texts if role == "assistant"),
            forced=ANY_TOOL if choice.get("type") == "any" else choice.get("name"),
        )

    def answer(self, body: Json) -> WireAnswer:
        blocks = objects(body.get("content"))
        usage = entry(body, "usage")
        cached = count(usage.get("cache_read_input_tokens"))
        read = count(usage.get("input_tokens")) + cached + count(usage.get("cache_creation_input_tokens"))
        return WireAnswer(
            body=body,
            text=texts_of(blocks),
            calls=_calls_of(blocks),
            ids=tuple(known for block in blocks for known in _ids(block)),
            usage=Usage(read, count(usage.get("output_tokens")), cached),
            incomplete=body.get("stop_reason") == "max_tokens",
        )

    def overridden(self, body: Json, override: Override) -> Json:
        settings = override.settings
        settings.pop("seed", None)
        if effort := settings.pop("reasoning_effort", None):
            settings["output_config"] = {**entry(body, "output_config"), "effort": effort}
        return {**body, **settings}

    def completed(self, request: WireRequest, answers: Sequence[PassedAnswer]) -> Json:
        if not any(answer.hides for answer in answers):
            return request.body
        given = objects(request.body.get("messages"))
        messages: list[Json] = []
        owed: list[Json] = []
        for message, answer in zip(given, matched(answers, _seen(given)), strict=True):
            if (
                answer is not None
                and answer.hides
                and _calls_in(answer.shown.body)
                and not _calls_in(message)
            ):
                # The framework wrote a call as text, such as that of an output tool.
                messages += answer.before
                if answer.owed:
                    messages += [_only_hidden(answer), {"role": "user", "content": answer.owed}]
            elif answer is not None and answer.hides:
                messages += [*answer.before, *_with_cache_mark(answer.message, message)]
                owed = answer.owed
                continue
            if owed:  # results come before any text
                message, owed = {**message, "content": [*owed, *_blocks(message)]}, []
            messages.append(message)
        return {**request.body, "messages": messages}

    def next_round(
        self, body: Json, answer: WireAnswer, results: Sequence[CallResult], *, lift: bool
    ) -> tuple[Json, list[Json]]:
        new = [*self.message(answer), {"role": "user", "content": self.owed(results)}]
        changed: Json = {**body, "messages": [*objects(body.get("messages")), *new]}
        if lift:
            choice = {key: value for key, value in body["tool_choice"].items() if key != "name"}
            changed["tool_choice"] = {**choice, "type": "auto"}
        return changed, new

    def owed(self, results: Sequence[CallResult]) -> list[Json]:
        return [
            {
                "type": "tool_result",
                "tool_use_id": each.call_id,
                "content": result_text(each),
                **({"is_error": True} if each.failed else {}),
            }
            for each in results
        ]

    def message(self, answer: WireAnswer) -> list[Json]:
        return [{"role": "assistant", "content": answer.body.get("content") or []}]

    def shown(
        self, request: WireRequest, answer: WireAnswer, hidden: Iterable[ModelCall], output_tokens: int
    ) -> Json:
        del request
        shown, left_out = dict(answer.body), {call.place for call in hidden}
        if left_out:
            content = objects(answer.body.get("content"))
            shown["content"] = [block for place, block in enumerate(content) if place not in left_out]
        if isinstance(usage := answer.body.get("usage"), dict):
            shown["usage"] = {**usage, "output_tokens": output_tokens}
        return shown

    def stream(self, request: WireRequest) -> _MessageStream:
        del request
        return _MessageStream()

    def error(self, status: int, message: str) -> Json:
        kind = "invalid_request_error" if status < 500 else "api_error"
        return {"type": "error", "error": {"type": kind, "message": message}}


@dataclass(slots=True)
class _MessageRound:
    """One streamed answer, collected."""

    message: Json = field(default_factory=dict)
    content: StreamedBlocks = field(default_factory=StreamedBlocks)
    passed: int = 0
    """Number of blocks that the agent received as they came: those before the first call."""
    final: Json | None = None
    """The event with the reason why the answer ended."""
    held: list[tuple[int, Json]] = field(default_factory=list)
    """Places of blocks with events that wait for the end of the answer."""


class _MessageStream:
    """Implements `AnswerStream`."""

    def __init__(self) -> None:
        self._round, self._last = _MessageRound(), _MessageRound()
        self._shown = 0
        """Number of blocks that the agent has received of earlier rounds."""
        self._calls: Sequence[ModelCall] = ()
        """The calls of the last round."""
        self._began = self._told = False
        self.text = ""
        self.ids: list[str] = []

    def feed(self, event: Event) -> bytes:
        data = object_of(event)
        if data is None:
            return sse(event.data, event.name)
        kind, now = data.get("type"), self._round
        if kind == "message_start":
            now.message = dict(entry(data, "message"))
            began, self._began = self._began, True
            return self._released({call.place for call in self._calls}) if began else sse(event.data, kind)
        if kind == "message_delta":
            now.final = data
            return b""
        if kind == "message_stop":
            return b""
        if kind in ("content_block_start", "content_block_delta", "content_block_stop"):
            return self._block(kind, data)
        self._told = self._told or kind == "error"
        return sse(event.data, event.name)

    def _block(self, kind: str, data: Json) -> bytes:
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
            return sse({**data, "index": self._shown + place}, kind)
        now.held.append((place, data))
        return b""

    def _released(self, hidden: Collection[int]) -> bytes:
        """Return the events that were held back in the last round, but for those of hidden calls."""
        held = [(place, data) for place, data in self._last.held if place not in hidden]
        places = {place: self._shown + n for n, place in enumerate(sorted({place for place, _ in held}))}
        self._shown += len(places)
        return b"".join(sse({**data, "index": places[place]}, data["type"]) for place, data in held)

    def round(self) -> Json:
        now = self._round
        if now.final is None:
            raise CutStream(told=self._told)
        usage = {**entry(now.message, "usage"), **entry(now.final, "usage")}
        content = now.content.blocks
        body = {**now.message, **entry(now.final, "delta"), "content": content, "usage": usage}
        self._last, self._round = now, _MessageRound()
        self._shown += now.passed
        self._calls = _calls_of(content)
        self.ids += [known for block in content if not _is_call(block) for known in _ids(block)]
        return body

    def end(self, shown: Json, hidden: Sequence[ModelCall]) -> bytes:
        held = self._released({call.place for call in hidden})
        final = self._last.final or {}
        usage = {**entry(final, "usage"), "output_tokens": shown["usage"]["output_tokens"]}
        last = sse({**final, "usage": usage}, "message_delta")
        return b"".join([held, last, sse({"type": "message_stop"}, "message_stop")])

    def error(self, message: str) -> bytes:
        return sse(AnthropicMessages().error(500, message), "error")


def _seen(messages: Sequence[Json]) -> list[SeenMessage | None]:
    seen: list[SeenMessage | None] = []
    user_text = ""
    for message in messages:
        text, blocks = texts_of(message.get("content")), _blocks(message)
        if message.get("role") == "assistant":
            ids = tuple(known for block in blocks for known in _ids(block))
            seen.append(SeenMessage(ids, text, user_text, calls=bool(_calls_in(message))))
        else:
            user_text = text or user_text
            seen.append(None)
    return seen


def _calls_in(message: Json) -> list[Json]:
    return [block for block in _blocks(message) if _is_call(block)]


def _only_hidden(answer: PassedAnswer) -> Json:
    """Return the model's last message with its hidden calls alone."""
    blocks = _blocks(answer.message[0])
    return {"role": "assistant", "content": [blocks[call.place] for call in answer.hidden_calls]}


def _blocks(message: Json) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _ids(block: Json) -> list[str]:
    """Return the ids in a block of an answer: of a call, or the signature of thoughts."""
    known = block.get("id") if _is_call(block) else block.get("signature") or block.get("data")
    return [known] if isinstance(known, str) and known else []


def _is_call(block: Json) -> bool:
    return block.get("type") == "tool_use"


def _calls_of(blocks: Sequence[Json]) -> tuple[ModelCall, ...]:
    return tuple(_call(block, place) for place, block in enumerate(blocks) if _is_call(block))


def _call(block: Json, place: int) -> ModelCall:
    arguments, problem = parsed_arguments(block.get("input"))
    name = str(block.get("name") or "")
    return ModelCall(name=name, arguments=arguments, call_id=block.get("id"), problem=problem, place=place)


def _with_cache_mark(whole: list[Json], seen: Json) -> list[Json]:
    """Mark the end of a message for the prompt cache if the agent marked its own form of it."""
    mark = next((block[_CACHE] for block in _blocks(seen) if _CACHE in block), None)
    content = objects(whole[-1].get("content"))
    if mark is None or not content:
        return whole
    return [*whole[:-1], {**whole[-1], "content": [*content[:-1], {**content[-1], _CACHE: mark}]}]
