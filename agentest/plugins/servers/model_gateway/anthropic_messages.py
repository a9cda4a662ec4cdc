"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field

from agentest.config.agents.mock_servers import Override
from agentest.domain.transcript import Usage
from agentest.plugins.servers.model_gateway.wire_form import (
    ANY_TOOL,
    CallHandling,
    CallResult,
    CutStream,
    HandlingOf,
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

_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Type of a delta → the key of the delta and of its block."""
_CACHE = "cache_control"


class AnthropicMessages:
    """Implements `WireForm`."""

    name = "Anthropic messages"

    def request(self, body: Json, path: str) -> WireRequest:
        del path
        messages = objects(body.get("messages"))
        blocks = [block for message in messages for block in _blocks(message)]
        names = {block.get("id"): block.get("name") for block in blocks if block.get("type") == "tool_use"}
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
            calls=tuple(_call(block) for block in blocks if block.get("type") == "tool_use"),
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
        shown, left_out = dict(answer.body), {call.call_id for call in hidden}
        if left_out:
            content = objects(answer.body.get("content"))
            shown["content"] = [block for block in content if block.get("id") not in left_out]
        if isinstance(usage := answer.body.get("usage"), dict):
            shown["usage"] = {**usage, "output_tokens": output_tokens}
        return shown

    def stream(self, request: WireRequest, handling: HandlingOf) -> _MessageStream:
        del request
        return _MessageStream(handling)

    def error(self, status: int, message: str) -> Json:
        kind = "invalid_request_error" if status < 500 else "api_error"
        return {"type": "error", "error": {"type": kind, "message": message}}


@dataclass(slots=True)
class _MessageRound:
    """One streamed answer, collected."""

    message: Json = field(default_factory=dict)
    blocks: dict[int, Json] = field(default_factory=dict)
    arguments: dict[int, str] = field(default_factory=dict)
    """Index of a call → the JSON text of its arguments."""
    final: Json | None = None
    """The event with the reason why the answer ended."""
    held: list[Json] = field(default_factory=list)
    """Events for the agent that wait for the end of the answer."""


class _MessageStream:
    """Implements `AnswerStream`."""

    def __init__(self, handling: HandlingOf) -> None:
        self._handling_of = handling
        self._round = self._last = _MessageRound()
        self._places: dict[int, tuple[int, CallHandling]] = {}
        """Index of a block in this round → its index for the agent, and whether it is hidden."""
        self._shown = 0
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
            return b"" if began else sse(event.data, kind)
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
        index = count(data.get("index"))
        if kind == "content_block_start":
            self._open(index, dict(entry(data, "content_block")))
        elif kind == "content_block_delta":
            self._grow(index, entry(data, "delta"))
        else:
            self._close(index)
        place, handling = self._places.get(index, (index, CallHandling.SHOW))
        if handling is CallHandling.HIDE:
            return b""
        if handling is CallHandling.HOLD:
            self._round.held.append(data)
            return b""
        return sse({**data, "index": place}, kind)

    def _open(self, index: int, block: Json) -> None:
        self._round.blocks[index] = block
        handling = (
            self._handling_of(str(block.get("name")))
            if block.get("type") == "tool_use"
            else CallHandling.SHOW
        )
        if handling is CallHandling.SHOW and self._round.held:
            handling = CallHandling.HOLD
        self._places[index] = self._shown, handling
        self._shown += handling is CallHandling.SHOW
        self.text += block.get("text") or ""

    def _grow(self, index: int, delta: Json) -> None:
        block = self._round.blocks.setdefault(index, {})
        kind = str(delta.get("type"))
        if key := _GROWING.get(kind):
            block[key] = (block.get(key) or "") + (delta.get(key) or "")
            self.text += delta.get("text") or ""
        elif kind == "input_json_delta":
            partial = delta.get("partial_json") or ""
            self._round.arguments[index] = self._round.arguments.get(index, "") + partial
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]

    def _close(self, index: int) -> None:
        block = self._round.blocks.get(index, {})
        if text := self._round.arguments.get(index):
            # Unfinished arguments stay text, so that whoever reads them sees what came.
            block["input"] = parsed_arguments(text)[0]

    def round(self) -> Json:
        now = self._round
        if now.final is None:
            raise CutStream(told=self._told)
        self.ids += [
            known
            for index, block in now.blocks.items()
            if self._places[index][1] is CallHandling.SHOW
            for known in _ids(block)
        ]
        usage = {**entry(now.message, "usage"), **entry(now.final, "usage")}
        content = [now.blocks[index] for index in sorted(now.blocks)]
        body = {**now.message, **entry(now.final, "delta"), "content": content, "usage": usage}
        self._last, self._round, self._places = now, _MessageRound(), {}
        return body

    def end(self, shown: Json, hidden: Sequence[ModelCall]) -> bytes:
        answered, held = {call.call_id for call in hidden}, list[bytes]()
        for data in self._last.held:
            if self._last.blocks[count(data.get("index"))].get("id") not in answered:
                held.append(sse({**data, "index": self._shown}, data["type"]))
                self._shown += data["type"] == "content_block_stop"
        final = self._last.final or {}
        usage = {**entry(final, "usage"), "output_tokens": shown["usage"]["output_tokens"]}
        last = sse({**final, "usage": usage}, "message_delta")
        return b"".join([*held, last, sse({"type": "message_stop"}, "message_stop")])

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
    return [block for block in _blocks(message) if block.get("type") == "tool_use"]


def _only_hidden(answer: PassedAnswer) -> Json:
    """Return the model's last message with its hidden calls alone."""
    ids = {call.call_id for call in answer.hidden_calls}
    calls = [block for block in _calls_in(answer.message[0]) if block.get("id") in ids]
    return {"role": "assistant", "content": calls}


def _blocks(message: Json) -> list[Json]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _ids(block: Json) -> list[str]:
    """Return the ids in a block of an answer: of a call, or the signature of thoughts."""
    known = (
        block.get("id") if block.get("type") == "tool_use" else block.get("signature") or block.get("data")
    )
    return [known] if isinstance(known, str) and known else []


def _call(block: Json) -> ModelCall:
    arguments, problem = parsed_arguments(block.get("input"))
    return ModelCall(
        name=str(block.get("name") or ""), arguments=arguments, call_id=block.get("id"), problem=problem
    )


def _with_cache_mark(whole: list[Json], seen: Json) -> list[Json]:
    """Mark the end of a message for the prompt cache if the agent marked its own form of it."""
    mark = next((block[_CACHE] for block in _blocks(seen) if _CACHE in block), None)
    content = objects(whole[-1].get("content"))
    if mark is None or not content:
        return whole
    return [*whole[:-1], {**whole[-1], "content": [*content[:-1], {**content[-1], _CACHE: mark}]}]
