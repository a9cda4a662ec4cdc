"""Requests to the model gateway and answers to them, in each API that it knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from benchmarks.answers import REPLY
from benchmarks.workload import LINE

Json = dict[str, Any]
TOKEN = "token-of-the-gateway"
CONVERSATIONS = 20
"""Are under way at once."""
ID = "id-of-this-answer"
"""Stands for the id of an answer, which is another one each time."""
_INSTRUCTIONS = "You are the assistant of a hair salon. Look up openings before you offer any. " * 10
_WORDS = [f"{word} " for word in REPLY.split()]
_TOOLS = ("check_availability", "book_appointment", "cancel_appointment")
_SCHEMA = {
    "type": "object",
    "properties": {"service": {"type": "string"}, "date": {"type": "string", "format": "date"}},
    "required": ["service", "date"],
}
_DECLARED = [{"name": name, "description": "A tool of the hair salon."} for name in _TOOLS]


def said(conversation: int, turn: int) -> str:
    """What the user of a conversation says in a turn."""
    return f"Case {conversation:04}, question {turn:02}: {LINE}"


@dataclass(frozen=True)
class Api:
    """One API. Events are a name ("" for none) and data."""

    name: str
    path: str
    stream_path: str
    request: Callable[[list[tuple[str, str]]], Json]
    """Makes a request of a history: role (`user` or `assistant`) and text."""
    answer: Json
    events: list[tuple[str, Json]]
    done: str = ""
    """What ends a stream."""

    def body(self, conversation: int, turns: int, *, streams: bool) -> bytes:
        """A request in a turn of a conversation, with all turns before."""
        history = []
        for turn in range(turns - 1):
            history += [("user", said(conversation, turn)), ("assistant", "".join(_WORDS))]
        request = self.request([*history, ("user", said(conversation, turns - 1))])
        if streams and self.path == self.stream_path:
            request["stream"] = True
        return encoded(request)

    def pieces(self) -> list[bytes]:
        """A streamed answer, an event a piece."""
        named = [
            (f"event: {name}\n" if name else "").encode() + b"data: " + encoded(data) + b"\n\n"
            for name, data in self.events
        ]
        return [*named, self.done.encode()] if self.done else named


def encoded(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _messages(history: list[tuple[str, str]]) -> list[Json]:
    return [{"role": role, "content": text} for role, text in history]


def _chat() -> Api:
    def chunk(delta: Json, reason: str | None = None) -> tuple[str, Json]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return "", {**head, "object": "chat.completion.chunk", "choices": [choice]}

    head = {"id": ID, "created": 0, "model": "fake", "system_fingerprint": "fp_1"}
    message = {"role": "assistant", "content": "".join(_WORDS), "refusal": None}
    tools = [{"type": "function", "function": {**each, "parameters": _SCHEMA}} for each in _DECLARED]
    return Api(
        name="chat completions",
        path="/v1/chat/completions",
        stream_path="/v1/chat/completions",
        request=lambda history: {
            "model": "fake",
            "messages": [{"role": "system", "content": _INSTRUCTIONS}, *_messages(history)],
            "tools": tools,
        },
        answer={
            **head,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 900, "completion_tokens": 60, "total_tokens": 960},
        },
        events=[
            chunk({"role": "assistant", "content": ""}),
            *(chunk({"content": word}) for word in _WORDS),
            chunk({}, "stop"),
        ],
        done="data: [DONE]\n\n",
    )


def _responses() -> Api:
    numbers = count()

    def event(kind: str, **more: Any) -> tuple[str, Json]:
        return kind, {"type": kind, "sequence_number": next(numbers), **more}

    part = {"type": "output_text", "text": "".join(_WORDS), "annotations": []}
    item = {"type": "message", "id": f"msg-{ID}", "role": "assistant", "content": [part]}
    usage = {"input_tokens": 900, "output_tokens": 60, "total_tokens": 960}
    answer: Json = {"id": f"resp-{ID}", "object": "response", "model": "fake", "status": "completed"}
    answer |= {"output": [item], "usage": usage}
    place = {"item_id": f"msg-{ID}", "output_index": 0, "content_index": 0}
    begun = {**answer, "status": "in_progress", "output": [], "usage": None}
    return Api(
        name="responses",
        path="/v1/responses",
        stream_path="/v1/responses",
        request=lambda history: {
            "model": "fake",
            "instructions": _INSTRUCTIONS,
            "input": _messages(history),
            "tools": [{"type": "function", **each, "parameters": _SCHEMA} for each in _DECLARED],
        },
        answer=answer,
        events=[
            event("response.created", response=begun),
            event("response.output_item.added", output_index=0, item={**item, "content": []}),
            *(event("response.output_text.delta", **place, delta=word) for word in _WORDS),
            event("response.output_item.done", output_index=0, item=item),
            event("response.completed", response=answer),
        ],
    )


def _anthropic() -> Api:
    def event(kind: str, **more: Any) -> tuple[str, Json]:
        return kind, {"type": kind, **more}

    def delta(word: str) -> tuple[str, Json]:
        return event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})

    usage = {"input_tokens": 900, "output_tokens": 60}
    answer: Json = {"id": ID, "type": "message", "role": "assistant", "model": "fake", "usage": usage}
    answer |= {"content": [{"type": "text", "text": "".join(_WORDS)}], "stop_reason": "end_turn"}
    return Api(
        name="Anthropic messages",
        path="/v1/messages",
        stream_path="/v1/messages",
        request=lambda history: {
            "model": "fake",
            "max_tokens": 1000,
            "system": _INSTRUCTIONS,
            "messages": _messages(history),
            "tools": [{**each, "input_schema": _SCHEMA} for each in _DECLARED],
        },
        answer=answer,
        events=[
            event("message_start", message={**answer, "content": [], "stop_reason": None}),
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            *map(delta, _WORDS),
            event("content_block_stop", index=0),
            event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 60}),
            event("message_stop"),
        ],
    )


def _gemini() -> Api:
    def content(text: str, role: str = "model") -> Json:
        return {"role": role, "parts": [{"text": text}]}

    def answer(text: str, **more: Any) -> Json:
        usage = {"promptTokenCount": 900, "candidatesTokenCount": 60, "totalTokenCount": 960}
        candidate = {"content": content(text), "index": 0, **more}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "fake"}

    roles = {"user": "user", "assistant": "model"}
    return Api(
        name="Gemini",
        path="/v1beta/models/fake:generateContent",
        stream_path="/v1beta/models/fake:streamGenerateContent?alt=sse",
        request=lambda history: {
            "systemInstruction": {"parts": [{"text": _INSTRUCTIONS}]},
            "contents": [content(text, roles[role]) for role, text in history],
            "tools": [{"functionDeclarations": [{**each, "parameters": _SCHEMA} for each in _DECLARED]}],
        },
        answer=answer("".join(_WORDS), finishReason="STOP"),
        events=[*(("", answer(word)) for word in _WORDS), ("", answer("", finishReason="STOP"))],
    )


APIS = (_chat(), _responses(), _anthropic(), _gemini())
