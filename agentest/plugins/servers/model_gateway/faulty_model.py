"""Faults of a model: answers that the gateway gives in the model's place, each in the form of its API."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256

import anyio

from agentest.domain.changes import Fault
from agentest.domain.messages import ToolSpec
from agentest.plugins.protocols.model_messages import Json, entry
from agentest.plugins.servers.model_gateway.conversation import GatewayConversation
from agentest.plugins.servers.model_gateway.exchange import ModelApi, ModelResponse, Reply
from agentest.plugins.servers.model_gateway.request_log import ConversationFaults
from agentest.plugins.servers.model_gateway.wire_form import WireForm, WireRequest, sse
from agentest.support.http.client import StoredResponse
from agentest.support.lazy_dataclasses import dataclass

_CUT_TEXT = "I have looked into this for you. In short, what you can do n"
_REFUSAL = "I'm sorry, but I can't help with that."
_RATE_LIMIT = "Rate limit reached for requests. Please try again in 1s."
_RETRY_AFTER_S = "1"
_NEVER_CAME = "the model did not answer (a fault that the scenario injected)"
_LOOK_S = 0.05
_ID_KINDS = ("call", "toolu", "msg", "fc")
Events = list[tuple[str | None, Json | str]]


@dataclass(slots=True)
class FaultyModel:
    """A model whose first answer is a fault, if one is due (implements `exchange.ModelApi`)."""

    form: WireForm
    request: WireRequest
    conversation: GatewayConversation
    faults: ConversationFaults
    upstream: ModelApi
    reply: Reply
    begun: bool = False

    async def send(self, body: Json) -> ModelResponse:
        # Faults are what the agent's own requests meet.
        number, fault = (0, None) if self.begun else self.faults.take(self.request)
        self.begun = True
        if fault is None:
            return await self.upstream.send(self.faults.known_to_provider(body))
        if fault.kind == "rate_limit":
            headers = {"retry-after": _RETRY_AFTER_S, "x-ratelimit-remaining-requests": "0"}
            return _response(_rate_limit(self.form.name), 429, headers)
        if fault.kind == "timeout":
            for _ in range(round(self.faults.hang_s / _LOOK_S)):
                if self.conversation.over or not self.reply.is_awaited:
                    break
                await anyio.sleep(_LOOK_S)
            return _response(self.form.error(504, _NEVER_CAME), 504)
        key = sha256(f"{self.conversation.who.conversation_id} {number}".encode()).hexdigest()[:24]
        answer = _Invented(
            model=self.request.model or "model",
            key=key,
            refuses=fault.kind == "refusal",
            tool=self._tool(fault) if fault.kind == "malformed_arguments" else None,
        )
        whole, events = _FORMS[self.form.name](answer, body)
        self.faults.invent(body, whole, [f"{kind}_{key}" for kind in _ID_KINDS])
        if not self.request.streams:
            return _response(whole)
        data = b"".join(sse(event, name) for name, event in events)
        return StoredResponse(status_code=200, headers={"content-type": "text/event-stream"}, body=data)

    def _tool(self, fault: Fault) -> ToolSpec:
        tools = self.request.tools
        if fault.tool is not None:
            return tools[fault.tool]
        mocked = (tool for name, tool in tools.items() if self.conversation.mock_name(name))
        return next(mocked, next(iter(tools.values())))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Invented:
    model: str
    key: str
    refuses: bool
    tool: ToolSpec | None

    @property
    def text(self) -> str:
        return "" if self.tool else _REFUSAL if self.refuses else _CUT_TEXT

    @property
    def cut_arguments(self) -> str:
        properties = entry(self.tool.parameters, "properties") if self.tool else {}
        return f'{{{json.dumps(next(iter(properties), "value"))}: "'


def _response(body: Json, status: int = 200, headers: dict[str, str] | None = None) -> StoredResponse:
    return StoredResponse(
        status_code=status,
        headers={"content-type": "application/json", **(headers or {})},
        body=json.dumps(body).encode(),
    )


def _rate_limit(form: str) -> Json:
    if form == "Anthropic messages":
        return {"type": "error", "error": {"type": "rate_limit_error", "message": _RATE_LIMIT}}
    if form == "Gemini":
        retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{_RETRY_AFTER_S}s"}
        error = {"code": 429, "message": _RATE_LIMIT, "status": "RESOURCE_EXHAUSTED", "details": [retry]}
        return {"error": error}
    error = {"message": _RATE_LIMIT, "type": "requests", "param": None, "code": "rate_limit_exceeded"}
    return {"error": error}


def _chat(answer: _Invented, body: Json) -> tuple[Json, Events]:
    message: Json = {"role": "assistant", "content": None if answer.refuses else answer.text or None}
    reason = "stop" if answer.refuses else "length"
    if answer.refuses:
        message["refusal"] = answer.text
    if answer.tool:
        reason = "tool_calls"
        function = {"name": answer.tool.name, "arguments": answer.cut_arguments}
        message["tool_calls"] = [{"id": f"call_{answer.key}", "type": "function", "function": function}]
    head: Json = {"id": f"chatcmpl-{answer.key}", "created": 0, "model": answer.model}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": usage,
    }
    delta = {**message}
    if answer.tool:
        delta["tool_calls"] = [{**call, "index": 0} for call in message["tool_calls"]]
    head["object"] = "chat.completion.chunk"
    chunks: list[Json] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    ]
    if entry(body, "stream_options").get("include_usage"):
        chunks.append({**head, "choices": [], "usage": usage})
    return whole, [*((None, chunk) for chunk in chunks), (None, "[DONE]")]


def _responses(answer: _Invented, body: Json) -> tuple[Json, Events]:
    cut = not answer.refuses and not answer.tool
    status = "incomplete" if cut else "completed"
    kind = "refusal" if answer.refuses else "text"
    part: Json = {"type": "refusal", "refusal": answer.text}
    if not answer.refuses:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
    item: Json = {"type": "message", "id": f"msg_{answer.key}", "role": "assistant", "content": [part]}
    if answer.tool:
        item = {"type": "function_call", "id": f"fc_{answer.key}", "call_id": f"call_{answer.key}"}
        item |= {"name": answer.tool.name, "arguments": answer.cut_arguments}
    item["status"] = status
    counts = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole: Json = {
        "id": f"resp_{answer.key}",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": body.get("instructions"),
        "metadata": {},
        "model": answer.model,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {**counts, **details},
    }
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    place: Json = {"item_id": item["id"], "output_index": 0}
    if answer.tool:
        empty = {**item, "arguments": "", "status": "in_progress"}
        arguments = "response.function_call_arguments"
        middle: list[Json] = [
            {"type": f"{arguments}.delta", **place, "delta": answer.cut_arguments},
            {"type": f"{arguments}.done", **place, "arguments": answer.cut_arguments},
        ]
    else:
        empty = {**item, "content": [], "status": "in_progress"}
        place["content_index"] = 0
        field = "refusal" if answer.refuses else "text"
        said = "response.refusal" if answer.refuses else "response.output_text"
        middle = [
            {"type": "response.content_part.added", **place, "part": {**part, kind: ""}},
            {"type": f"{said}.delta", **place, "delta": answer.text},
            {"type": f"{said}.done", **place, field: answer.text},
            {"type": "response.content_part.done", **place, "part": part},
        ]
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": empty},
        *middle,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": f"response.{status}", "response": whole},
    ]
    return whole, [(each["type"], {**each, "sequence_number": at}) for at, each in enumerate(events)]


def _messages(answer: _Invented, _: Json) -> tuple[Json, Events]:
    block: Json = {"type": "text", "text": answer.text}
    empty: Json = {"type": "text", "text": ""}
    delta: Json = {"type": "text_delta", "text": answer.text}
    reason = "refusal" if answer.refuses else "max_tokens"
    if answer.tool:
        # A whole answer of this API has arguments as an object, so what was cut is missing in it.
        reason = "tool_use"
        block = empty = {
            "type": "tool_use",
            "id": f"toolu_{answer.key}",
            "name": answer.tool.name,
            "input": {},
        }
        delta = {"type": "input_json_delta", "partial_json": answer.cut_arguments}
    whole: Json = {
        "id": f"msg_{answer.key}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [block],
        "stop_reason": reason,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    events: list[Json] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 0},
        },
        {"type": "message_stop"},
    ]
    return whole, [(each["type"], each) for each in events]


def _gemini(answer: _Invented, _: Json) -> tuple[Json, Events]:
    candidate: Json = {"index": 0, "finishReason": "SAFETY"}
    if answer.tool:  # calls of this API have arguments as an object, and it reports broken ones itself
        message = f"Malformed function call: {answer.tool.name}({answer.cut_arguments}"
        candidate = {"index": 0, "finishReason": "MALFORMED_FUNCTION_CALL", "finishMessage": message}
    elif not answer.refuses:
        content = {"role": "model", "parts": [{"text": answer.text}]}
        candidate = {"index": 0, "content": content, "finishReason": "MAX_TOKENS"}
    whole: Json = {
        "candidates": [candidate],
        "usageMetadata": {"promptTokenCount": 0, "candidatesTokenCount": 0, "totalTokenCount": 0},
        "modelVersion": answer.model,
        "responseId": answer.key,
    }
    return whole, [(None, whole)]


_FORMS: dict[str, Callable[[_Invented, Json], tuple[Json, Events]]] = {
    "chat completions": _chat,
    "responses": _responses,
    "Anthropic messages": _messages,
    "Gemini": _gemini,
}
